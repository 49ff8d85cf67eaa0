"""Layer normalisation of rows of 256, plus one."""

from __future__ import annotations


def reference(p, t):
    x = t["x"]
    spread = (x.var(1, correction=0, keepdim=True) + 1e-5).rsqrt()
    return {"y": (x - x.mean(1, keepdim=True)) * spread + 1}


REFERENCE_H = """
for (int n = 0; n < N; n++) {
  double m = 0, v = 0;
  for (int k = 0; k < K; k++) m += x[n * K + k] / K;
  for (int k = 0; k < K; k++) v += (x[n * K + k] - m) * (x[n * K + k] - m) / K;
  for (int k = 0; k < K; k++) y[n * K + k] = (x[n * K + k] - m) / std::sqrt(v + 1e-5) + 1;
}
"""
TOLERANCE = {"y": (0.2, 0.001)}
PROBLEM = "2048,256"
SMALL = (
    "3,256",
    "5,256",
)
WRONG_INDEX = ("x[idx] : 0.0f", "x[idx / 2] : 0.0f")
