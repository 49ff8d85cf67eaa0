// Matrix product in double.
#pragma once

// dtype (0 fp16, 1 bf16) is the type to which a and b were rounded; it has no effect here. b is [K, N] for layout 0 (nn),
// and [N, K] for layout 1 (nt).
inline void reference(int M, int N, int K, int /*dtype*/, int layout, const double* a, const double* b, double* c) {
  const long long down = layout == 0 ? N : 1, along = layout == 0 ? 1 : K;  // to the next k, to the next n
  for (int m = 0; m < M; m++) {
    double* row = c + static_cast<long long>(m) * N;
    for (int n = 0; n < N; n++) row[n] = 0;
    for (int k = 0; k < K; k++) {
      const double left = a[static_cast<long long>(m) * K + k];
      for (int n = 0; n < N; n++) row[n] += left * b[k * down + n * along];
    }
  }
}
