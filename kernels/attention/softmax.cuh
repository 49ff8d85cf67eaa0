// Softmax: masks, row maxima, references, and exponentials.
#pragma once

/// Replaces the scores of 16 keys by 2^(score * scale - reference): as floats, or as pairs of halves in elements 0 and 2
/// (both elements of an fp16 accumulator).
template <int TILES>
__device__ __forceinline__ void exponentiate(ScoresOf<TILES>& s, int n, Rows& rows, float scale) {
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) {
    const float ref0 = rows.reference[m][0], ref1 = rows.reference[m][1];
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      ScoreFragment& f = s[m][2 * n + x];
      if constexpr (QK_ACC == QK_ACC_FP16) {
        const Half2 c = pack_half2(scale, scale);
        f[0] = exp2_half2(fma_half2(f[0], c, pack_half2(-ref0, -ref0)));
        f[1] = exp2_half2(fma_half2(f[1], c, pack_half2(-ref1, -ref1)));
      } else {
        const float e0 = fmaf(f[0], scale, -ref0), e1 = fmaf(f[1], scale, -ref0);
        const float e2 = fmaf(f[2], scale, -ref1), e3 = fmaf(f[3], scale, -ref1);
        if constexpr (EXP == EXP_F16X2) {
          f[0] = __uint_as_float(exp2_half2(pack_half2(e0, e1)));
          f[2] = __uint_as_float(exp2_half2(pack_half2(e2, e3)));
        } else {
          f[0] = exp2_approx(e0), f[1] = exp2_approx(e1), f[2] = exp2_approx(e2), f[3] = exp2_approx(e3);
          if constexpr (ROW_SUM == ROW_SUM_ADD) rows.sum[m][0] += f[0] + f[1], rows.sum[m][2] += f[2] + f[3];
        }
      }
    }
  }
}
/// Packs P of 16 keys into A fragments, after exponentiate().
template <int TILES>
__device__ __forceinline__ void pack_probabilities(Probabilities& p, const ScoresOf<TILES>& s, int n) {
#pragma unroll
  for (int m = 0; m < TILES_M; ++m)
#pragma unroll
    for (int x = 0; x < 2; ++x)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const ScoreFragment& f = s[m][2 * n + x];
        Half2& pair = p[m][2 * x + half];
        if constexpr (QK_ACC == QK_ACC_FP16) pair = f[half];
        else if constexpr (EXP == EXP_F16X2) pair = __float_as_uint(f[2 * half]);
        else pair = pack_half2(f[2 * half], f[2 * half + 1]);
      }
}

__device__ __forceinline__ void mask(Fragment32& f, const bool (&hidden)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) f[i] = hidden[i] ? MASKED_SCORE : f[i];
}
__device__ __forceinline__ void mask(Fragment16& f, const bool (&hidden)[4]) {
  constexpr Half2 LOW = 0x0000F800u, HIGH = 0xF8000000u;  // -32768 in the lower and the upper half
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (hidden[2 * i]) f[i] = (f[i] & 0xFFFF0000u) | LOW;
    if (hidden[2 * i + 1]) f[i] = (f[i] & 0x0000FFFFu) | HIGH;
  }
}
/// Masks keys past the end and, if causal, keys after the row; only tiles on such an edge do work.
template <int TILES>
__device__ __forceinline__ void mask_edges(ScoresOf<TILES>& s, int first_key, int first_row, int length, const ThreadCoord& at) {
  if constexpr (EDGES) {
    const bool cut = KEY_TAIL && first_key + 8 * TILES > length;
    const bool diagonal = CAUSAL && first_key + 8 * TILES - 1 > first_row + at.warp_m * TILES_M * 16;
    if (cut || diagonal) {
#pragma unroll
      for (int m = 0; m < TILES_M; ++m)
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
          bool hidden[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = first_key + n * 8 + 2 * at.column_pair() + i % 2;
            hidden[i] = (KEY_TAIL && key >= length) || (CAUSAL && key > first_row + at.row(m, i / 2));
          }
          mask(s[m][n], hidden);
        }
    }
  }
}

using Factors = float[TILES_M][2];  // by which rows of the output must be scaled
__device__ __forceinline__ void rescale_output(Rows& rows, const Factors& factor) {
#pragma unroll
  for (int m = 0; m < TILES_M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) rescale_output(rows, m, half, factor[m][half]);
}
template <int RULE, int TILES>
__device__ __forceinline__ bool raise_reference(Rows& rows, const ScoresOf<TILES>& s, float scale, Factors& factor) {
  return raise_reference<RULE>(rows, s, scale, [&](int m, int half, float by) { factor[m][half] = by; });
}
template <int RULE, int TILES>
__device__ __forceinline__ void update_reference(Rows& rows, const ScoresOf<TILES>& s, float scale) {
  Factors factor;
  if (raise_reference<RULE>(rows, s, scale, factor)) rescale_output(rows, factor);
}

/// Adds the row sums of a row's threads, if each thread has added only its own elements.
__device__ __forceinline__ void reduce_row_sums(Rows& rows) {
  if constexpr (ROW_SUM == ROW_SUM_ADD) {
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {
      rows.sum[m][0] = quad_sum(rows.sum[m][0]);
      rows.sum[m][2] = quad_sum(rows.sum[m][2]);
    }
  }
}

/// Returns whether some P may have exceeded LARGEST_HALF. A sum bounds all its summands. NaN counts as overflow.
__device__ __forceinline__ bool overflowed(const Rows& rows) {
  bool beyond = false;
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) beyond |= !(rows.sum[m][0] <= LARGEST_HALF) || !(rows.sum[m][2] <= LARGEST_HALF);
  return beyond;
}
