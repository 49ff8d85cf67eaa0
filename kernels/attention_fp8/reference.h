// Attention in double: o = softmax(q k^T |q_scale k_scale| / sqrt(D)) v |v_scale| for each head, with one scale of each
// kind per head; causal hides keys after the row. dtype 0: elements are numbers (E4M3); 1: bytes with zero point 128.
#pragma once

#include "../common/attention_reference.h"

inline void reference(int B, int H, int S, int D, int causal, int dtype, const double* q, const double* k,
                      const double* v, const double* q_scale, const double* k_scale, const double* v_scale, double* o) {
  for (long long head = 0; head < static_cast<long long>(B) * H; head++) {
    const long long at = head * S * D;
    const double scale = std::fabs(q_scale[head]) * std::fabs(k_scale[head]) / std::sqrt(static_cast<double>(D));
    attention_of_head(S, D, causal, scale, dtype == 1 ? 128 : 0, std::fabs(v_scale[head]), q + at, k + at, v + at, o + at);
  }
}
