"""c = a b."""

from __future__ import annotations


def reference(p, t):
    return {"c": t["a"] @ t["b"]}


REFERENCE_H = """
for (int m = 0; m < M; m++)
  for (int n = 0; n < N; n++) {
    double sum = 0;
    for (int k = 0; k < K; k++) sum += a[static_cast<long>(m) * K + k] * b[static_cast<long>(k) * N + n];
    c[static_cast<long>(m) * N + n] = sum;
  }
"""
TOLERANCE = {"c": (0.1, 0.001)}
PROBLEM = "256,256,128"
WRONG_INDEX = ("b[k * N + n]", "b[k * N + m]")
