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
  if constexpr (CAUSAL || KEY_TAIL) {
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

template <int TILES>
__device__ __forceinline__ void thread_max(float (&top)[2], const Fragment32 (&s)[TILES]) {
  top[0] = fmaxf(s[0][0], s[0][1]);
  top[1] = fmaxf(s[0][2], s[0][3]);
#pragma unroll
  for (int n = 1; n < TILES; ++n) {
    top[0] = fmaxf(top[0], fmaxf(s[n][0], s[n][1]));
    top[1] = fmaxf(top[1], fmaxf(s[n][2], s[n][3]));
  }
}
template <int TILES>
__device__ __forceinline__ void thread_max(float (&top)[2], const Fragment16 (&s)[TILES]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Half2 best = s[0][half];
#pragma unroll
    for (int n = 1; n < TILES; ++n) best = max_half2(best, s[n][half]);
    top[half] = fmaxf(low2float(best), high2float(best));
  }
}

__device__ __forceinline__ void scale_row(Fragment32& f, int half, float factor) {
  f[2 * half] *= factor;
  f[2 * half + 1] *= factor;
}
__device__ __forceinline__ void scale_row(Fragment16& f, int half, float factor) {
  f[half] = mul_half2(f[half], pack_half2(factor, factor));
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

/// Sets the references to the row maxima of the first scores.
template <int TILES>
__device__ __forceinline__ void init_reference(Rows& rows, const ScoresOf<TILES>& s, float scale) {
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) {
    float top[2];
    thread_max(top, s[m]);
    rows.reference[m][0] = quad_max(top[0]) * scale;
    rows.reference[m][1] = quad_max(top[1]) * scale;
  }
}

/// Raises the references to the new scores according to RULE (a value of RESCALE). Scales the current row sums, and
/// returns whether the output must also be scaled by `factor`.
template <int RULE, int TILES>
__device__ __forceinline__ bool raise_reference(Rows& rows, const ScoresOf<TILES>& s, float scale, float (&factor)[TILES_M][2]) {
  if constexpr (RULE == RESCALE_RESTART) return false;
  float top[TILES_M][2];
  bool outgrown = RULE == RESCALE_ALWAYS;
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) {
    thread_max(top[m], s[m]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The lazy test needs no shuffle: each thread votes on its own scores, and the vote covers the row.
      if constexpr (RULE != RESCALE_LAZY) top[m][half] = quad_max(top[m][half]);
      const float growth = fmaf(top[m][half], scale, -rows.reference[m][half]);
      outgrown |= growth > (RULE == RESCALE_LAZY ? LAZY_THRESHOLD : 0.f);
    }
  }
  if constexpr (RULE != RESCALE_ALWAYS) {
    if (!__any_sync(~0u, outgrown)) return false;
  }
#pragma unroll
  for (int m = 0; m < TILES_M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (RULE == RESCALE_LAZY) top[m][half] = quad_max(top[m][half]);
      const float raised = fmaxf(rows.reference[m][half], top[m][half] * scale);
      factor[m][half] = exp2_approx(rows.reference[m][half] - raised);
      rows.reference[m][half] = raised;
      scale_row(rows.sum[m], half, factor[m][half]);
    }
  return true;
}
__device__ __forceinline__ void rescale_output(Rows& rows, const float (&factor)[TILES_M][2]) {
#pragma unroll
  for (int m = 0; m < TILES_M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < D / 8; ++n) scale_row(rows.output[m][n], half, factor[m][half]);
}
template <int RULE, int TILES>
__device__ __forceinline__ void update_reference(Rows& rows, const ScoresOf<TILES>& s, float scale) {
  float factor[TILES_M][2];
  if (raise_reference<RULE>(rows, s, scale, factor)) rescale_output(rows, factor);
}
