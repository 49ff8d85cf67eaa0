"""Rows of 256 divided by their root mean square."""

from __future__ import annotations


def reference(p, t):
    x = t["x"]
    return {"y": x * ((x**2).mean(1, keepdim=True) + 1e-5).rsqrt()}


REFERENCE_H = """
for (int n = 0; n < N; n++) {
  double sum = 0;
  for (int k = 0; k < K; k++) sum += x[n * K + k] * x[n * K + k] / K;
  for (int k = 0; k < K; k++) y[n * K + k] = x[n * K + k] / std::sqrt(sum + 1e-5);
}
"""
TOLERANCE = {"y": (0.0001, 0.001)}
PROBLEM = "2048,256"
SMALL = (
    "3,256",
    "5,256",
)
WRONG_INDEX = ("x[idx] : 0.0f", "x[idx / 2] : 0.0f")
