// Attention in double: o = softmax(q k^T |q_scale k_scale| / sqrt(D)) v |v_scale| for each head, with one scale of each
// kind per head; causal hides keys after the row. dtype 0: elements are numbers (E4M3); 1: bytes with zero point 128.
#pragma once

#include <cmath>
#include <vector>

inline void reference(int B, int H, int S, int D, int causal, int dtype, const double* q, const double* k,
                      const double* v, const double* q_scale, const double* k_scale, const double* v_scale, double* o) {
  std::vector<double> weight(S);
  const double zero = dtype == 1 ? 128 : 0;
  for (long long head = 0; head < static_cast<long long>(B) * H; head++) {
    const long long start = head * S * D;
    const double scale = std::fabs(q_scale[head]) * std::fabs(k_scale[head]) / std::sqrt(static_cast<double>(D));
    for (int row = 0; row < S; row++) {
      const double* query = q + start + static_cast<long long>(row) * D;
      double* output = o + start + static_cast<long long>(row) * D;
      const int keys = causal ? row + 1 : S;
      double top = -HUGE_VAL, total = 0;
      for (int key = 0; key < keys; key++) {
        double score = 0;
        for (int d = 0; d < D; d++) score += (query[d] - zero) * (k[start + static_cast<long long>(key) * D + d] - zero);
        weight[key] = score * scale;
        top = std::fmax(top, weight[key]);
      }
      for (int d = 0; d < D; d++) output[d] = 0;
      for (int key = 0; key < keys; key++) {
        const double share = std::exp(weight[key] - top);
        total += share;
        for (int d = 0; d < D; d++) output[d] += share * (v[start + static_cast<long long>(key) * D + d] - zero);
      }
      for (int d = 0; d < D; d++) output[d] *= std::fabs(v_scale[head]) / total;
    }
  }
}
