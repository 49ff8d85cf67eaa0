// Root-mean-square normalisation of rows in double, with or without a residual.
#pragma once
#include <cmath>

// dtype (0 fp16, 1 bf16) is the type to which x and weight were rounded; it has no effect here. residual is 0.
inline void reference(int ROWS, int COLS, int /*dtype*/, int /*residual*/, const double* x, const double* weight, double* y) {
  for (int r = 0; r < ROWS; r++) {
    const double* row = x + static_cast<long long>(r) * COLS;
    double sum = 0;
    for (int c = 0; c < COLS; c++) sum += row[c] * row[c];
    const double scale = 1.0 / std::sqrt(sum / COLS + 1e-5);
    for (int c = 0; c < COLS; c++) y[static_cast<long long>(r) * COLS + c] = row[c] * scale * weight[c];
  }
}

// Returns the nearest number of the dtype, ties to even: 11 significant bits down to 2^-24, or 8 bits down to 2^-133.
inline double rounded(double value, int dtype) {
  const int bits = dtype ? 8 : 11, least = dtype ? -133 : -24;
  if (value == 0 || !std::isfinite(value)) return value;
  const int last = std::ilogb(value) - (bits - 1);  // exponent of a unit in the last place
  const int unit = last < least ? least : last;
  const double nearest = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  const double largest = dtype ? std::ldexp(255, 120) : 65504;
  return std::fabs(nearest) > largest ? std::copysign(HUGE_VAL, value) : nearest;
}

// x + residual is rounded to the dtype, returned, and normalised.
inline void reference(int ROWS, int COLS, int dtype, int /*residual*/, const double* x, const double* residual,
                      const double* weight, double* y, double* sum) {
  for (long long i = 0; i < static_cast<long long>(ROWS) * COLS; i++) sum[i] = rounded(x[i] + residual[i], dtype);
  reference(ROWS, COLS, dtype, 0, sum, weight, y);
}
