// Attention in double: o = softmax(q k^T / sqrt(D)) v for each head; causal hides keys after the row. dtype (0 fp16,
// 1 bf16) is the type to which q, k and v were rounded; it has no effect here.
#pragma once

#include <cmath>
#include <vector>

inline void reference(int B, int H, int S, int D, int causal, int /*dtype*/, const double* q, const double* k,
                      const double* v, double* o) {
  std::vector<double> weight(S);
  const double scale = 1 / std::sqrt(static_cast<double>(D));
  for (long long head = 0; head < static_cast<long long>(B) * H; head++) {
    const long long start = head * S * D;
    for (int row = 0; row < S; row++) {
      const double* query = q + start + static_cast<long long>(row) * D;
      double* output = o + start + static_cast<long long>(row) * D;
      const int keys = causal ? row + 1 : S;
      double top = -HUGE_VAL, total = 0;
      for (int key = 0; key < keys; key++) {
        double score = 0;
        for (int d = 0; d < D; d++) score += query[d] * k[start + static_cast<long long>(key) * D + d];
        weight[key] = score * scale;
        top = std::fmax(top, weight[key]);
      }
      for (int d = 0; d < D; d++) output[d] = 0;
      for (int key = 0; key < keys; key++) {
        const double share = std::exp(weight[key] - top);
        total += share;
        for (int d = 0; d < D; d++) output[d] += share * v[start + static_cast<long long>(key) * D + d];
      }
      for (int d = 0; d < D; d++) output[d] /= total;
    }
  }
}
