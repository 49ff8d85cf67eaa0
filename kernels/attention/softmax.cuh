// From scores to probabilities: masks, row maxima, the reference that exponents are taken against, exponentials.
#pragma once

/// P of 16 keys: 2^(score * scale - reference), as A fragments.
__device__ __forceinline__ void exponentiate(Probabilities& p, const Scores& s, int n, Rows& rows, float scale) {
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    const float ref0 = rows.reference[m][0], ref1 = rows.reference[m][1];
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const ScoreFragment& f = s[m][2 * n + x];
      if constexpr (QK_ACC == QK_ACC_FP16) {
        const Pair c = pack(scale, scale);
        p[m][2 * x] = exp2_pair(fma_pair(f.v[0], c, pack(-ref0, -ref0)));
        p[m][2 * x + 1] = exp2_pair(fma_pair(f.v[1], c, pack(-ref1, -ref1)));
      } else {
        const float e0 = fmaf(f.v[0], scale, -ref0), e1 = fmaf(f.v[1], scale, -ref0);
        const float e2 = fmaf(f.v[2], scale, -ref1), e3 = fmaf(f.v[3], scale, -ref1);
        if constexpr (EXP == EXP_F16X2) {
          p[m][2 * x] = exp2_pair(pack(e0, e1));
          p[m][2 * x + 1] = exp2_pair(pack(e2, e3));
        } else {
          const float p0 = exp2_fast(e0), p1 = exp2_fast(e1), p2 = exp2_fast(e2), p3 = exp2_fast(e3);
          p[m][2 * x] = pack(p0, p1);
          p[m][2 * x + 1] = pack(p2, p3);
          if constexpr (ROW_SUM == ROW_SUM_ADD) rows.sum[m].v[0] += p0 + p1, rows.sum[m].v[2] += p2 + p3;
        }
      }
    }
  }
}

__device__ __forceinline__ void mask(Fragment32& f, const bool (&hidden)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) f.v[i] = hidden[i] ? MASKED_SCORE : f.v[i];
}
__device__ __forceinline__ void mask(Fragment16& f, const bool (&hidden)[4]) {
  constexpr Pair LOW = 0x0000F800u, HIGH = 0xF8000000u;  // -32768 in the lower and the upper half
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (hidden[2 * i]) f.v[i] = (f.v[i] & 0xFFFF0000u) | LOW;
    if (hidden[2 * i + 1]) f.v[i] = (f.v[i] & 0x0000FFFFu) | HIGH;
  }
}
/// Hides keys past the end and, when causal, keys after the row; only tiles on such an edge pay for it.
__device__ __forceinline__ void mask_edges(Scores& s, int first_key, int first_row, int length, const Place& at) {
  if constexpr (CAUSAL || KEY_TAIL) {
    const bool cut = KEY_TAIL && first_key + BLOCK_N > length;
    const bool diagonal = CAUSAL && first_key + BLOCK_N - 1 > first_row + at.warp_m * MT * 16;
    if (cut || diagonal) {
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; ++n) {
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

__device__ __forceinline__ void own_max(float (&top)[2], const Fragment32 (&s)[BLOCK_N / 8]) {
  top[0] = fmaxf(s[0].v[0], s[0].v[1]);
  top[1] = fmaxf(s[0].v[2], s[0].v[3]);
#pragma unroll
  for (int n = 1; n < BLOCK_N / 8; ++n) {
    top[0] = fmaxf(top[0], fmaxf(s[n].v[0], s[n].v[1]));
    top[1] = fmaxf(top[1], fmaxf(s[n].v[2], s[n].v[3]));
  }
}
__device__ __forceinline__ void own_max(float (&top)[2], const Fragment16 (&s)[BLOCK_N / 8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Pair best = s[0].v[half];
#pragma unroll
    for (int n = 1; n < BLOCK_N / 8; ++n) best = max_pair(best, s[n].v[half]);
    top[half] = fmaxf(low_half(best), high_half(best));
  }
}

__device__ __forceinline__ void scale_row(Fragment32& f, int half, float factor) {
  f.v[2 * half] *= factor;
  f.v[2 * half + 1] *= factor;
}
__device__ __forceinline__ void scale_row(Fragment16& f, int half, float factor) {
  f.v[half] = mul_pair(f.v[half], pack(factor, factor));
}

/// Sets the references to the row maxima of the first scores.
__device__ __forceinline__ void begin_reference(Rows& rows, const Scores& s, float scale) {
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    float top[2];
    own_max(top, s[m]);
    rows.reference[m][0] = quad_max(top[0]) * scale;
    rows.reference[m][1] = quad_max(top[1]) * scale;
  }
}

/// Raises the references to the new scores as RULE (a value of RESCALE) says, and scales what was summed so far.
template <int RULE>
__device__ __forceinline__ void update_reference(Rows& rows, const Scores& s, float scale) {
  if constexpr (RULE == RESCALE_RESTART) return;
  float top[MT][2];
  bool outgrown = RULE == RESCALE_ALWAYS;
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    own_max(top[m], s[m]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The lazy test needs no shuffle: a thread votes on its own scores, and the vote covers the row.
      if constexpr (RULE != RESCALE_LAZY) top[m][half] = quad_max(top[m][half]);
      const float growth = fmaf(top[m][half], scale, -rows.reference[m][half]);
      outgrown |= growth > (RULE == RESCALE_LAZY ? LAZY_THRESHOLD : 0.f);
    }
  }
  if constexpr (RULE != RESCALE_ALWAYS) {
    if (!__any_sync(~0u, outgrown)) return;
  }
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (RULE == RESCALE_LAZY) top[m][half] = quad_max(top[m][half]);
      const float raised = fmaxf(rows.reference[m][half], top[m][half] * scale);
      const float factor = exp2_fast(rows.reference[m][half] - raised);
      rows.reference[m][half] = raised;
      scale_row(rows.sum[m], half, factor);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) scale_row(rows.output[m][n], half, factor);
    }
}
