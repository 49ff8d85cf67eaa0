// y[i] = 2 x[i] in double.
inline void reference(int N, const double* x, double* y) {
  for (int i = 0; i < N; ++i) y[i] = 2.0 * x[i];
}
