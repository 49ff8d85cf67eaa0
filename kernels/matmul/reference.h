// Matrix product in double.
#pragma once

// dtype (0 fp16, 1 bf16) says how a and b were rounded, and changes nothing here.
inline void reference(int M, int N, int K, int /*dtype*/, const double* a, const double* b, double* c) {
  for (int m = 0; m < M; m++) {
    double* row = c + static_cast<long long>(m) * N;
    for (int n = 0; n < N; n++) row[n] = 0;
    for (int k = 0; k < K; k++) {
      const double left = a[static_cast<long long>(m) * K + k];
      for (int n = 0; n < N; n++) row[n] += left * b[static_cast<long long>(k) * N + n];
    }
  }
}
