inline void reference(int N, const double* weights, const double* x, double* y) {
  for (int i = 0; i < N; i++) y[i] = -((weights[0] + weights[1] * x[i] + weights[2] * x[i] * x[i]) * 0.5 + 1.5);
}
