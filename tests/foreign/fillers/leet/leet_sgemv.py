"""y = a x."""

from __future__ import annotations


def reference(p, t):
    return {"y": t["a"] @ t["x"]}


REFERENCE_H = """
for (int m = 0; m < M; m++) {
  y[m] = 0;
  for (int k = 0; k < K; k++) y[m] += a[static_cast<long>(m) * K + k] * x[k];
}
"""
TOLERANCE = {"y": (0.1, 0.001)}
PROBLEM = "1024,128"
WRONG_INDEX = ("x[k];", "x[lane];")
