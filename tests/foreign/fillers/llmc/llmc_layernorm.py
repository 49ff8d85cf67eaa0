"""Layer normalisation of rows, with its statistics."""

from __future__ import annotations


def reference(p, t):
    x = t["inp"]
    mean = x.mean(1)
    rstd = (x.var(1, correction=0) + 1e-5).rsqrt()
    out = (x - mean[:, None]) * rstd[:, None] * t["weight"] + t["bias"]
    return {"out": out, "mean": mean, "rstd": rstd}


REFERENCE_H = """
for (int n = 0; n < N; n++) {
  const double* x = inp + static_cast<long>(n) * C;
  double m = 0, v = 0;
  for (int c = 0; c < C; c++) m += x[c] / C;
  for (int c = 0; c < C; c++) v += (x[c] - m) * (x[c] - m) / C;
  const double s = 1 / std::sqrt(v + 1e-5);
  for (int c = 0; c < C; c++) out[static_cast<long>(n) * C + c] = s * (x[c] - m) * weight[c] + bias[c];
  mean[n] = m;
  rstd[n] = s;
}
"""
TOLERANCE = {"out": (0.5, 0.001), "mean": (0.001, 0.0001), "rstd": (0.5, 0.01)}
PROBLEM = "2048,768"
WRONG_INDEX = ("n * weight[c]", "n * weight[c / 2]")
