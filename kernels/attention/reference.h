// Attention in double: o = softmax(q k^T / sqrt(D)) v for each head; causal hides keys after the row. dtype (0 fp16,
// 1 bf16) is the type to which q, k and v were rounded; it has no effect here.
#pragma once

#include "../common/attention_reference.h"

inline void reference(int B, int H, int S, int D, int causal, int /*dtype*/, const double* q, const double* k,
                      const double* v, double* o) {
  for (long long head = 0; head < static_cast<long long>(B) * H; head++) {
    const long long at = head * S * D;
    attention_of_head(S, D, causal, 1 / std::sqrt(static_cast<double>(D)), 0, 1, q + at, k + at, v + at, o + at);
  }
}
