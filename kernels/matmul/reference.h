// Matrix product in double.
#pragma once

// dtype (0 fp16, 1 bf16) says how a and b were rounded, and changes nothing here; layout says whether b is [K, N] (0, nn)
// or [N, K] (1, nt).
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
