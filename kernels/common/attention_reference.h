// Attention of one head in double: o = softmax(scale q k^T) v * factor, with `zero` subtracted from each element of q, k and
// v; causal hides keys after the row.
#pragma once

#include <cmath>
#include <vector>

inline void attention_of_head(int S, int D, int causal, double scale, double zero, double factor, const double* q,
                              const double* k, const double* v, double* o) {
  std::vector<double> weight(S);
  for (int row = 0; row < S; row++) {
    const double* query = q + static_cast<long long>(row) * D;
    double* output = o + static_cast<long long>(row) * D;
    const int keys = causal ? row + 1 : S;
    double top = -HUGE_VAL, total = 0;
    for (int key = 0; key < keys; key++) {
      const double* one = k + static_cast<long long>(key) * D;
      double sums[8] = {}, score = 0;  // sums that a compiler vectorises; D is a multiple of 8
      for (int d = 0; d < D; d += 8)
        for (int i = 0; i < 8; i++) sums[i] += (query[d + i] - zero) * (one[d + i] - zero);
      for (const double sum : sums) score += sum;
      weight[key] = score * scale;
      top = std::fmax(top, weight[key]);
    }
    for (int d = 0; d < D; d++) output[d] = 0;
    for (int key = 0; key < keys; key++) {
      const double share = std::exp(weight[key] - top);
      total += share;
      for (int d = 0; d < D; d++) output[d] += share * (v[static_cast<long long>(key) * D + d] - zero);
    }
    for (int d = 0; d < D; d++) output[d] *= factor / total;
  }
}
