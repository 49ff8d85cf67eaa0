"""C = A B for a square A."""

from __future__ import annotations


def reference(p, t):
    return {"C": t["A"] @ t["B"]}


REFERENCE_H = """
for (int m = 0; m < WA; m++)
  for (int n = 0; n < WB; n++) {
    double sum = 0;
    for (int k = 0; k < WA; k++) sum += A[m * WA + k] * B[k * WB + n];
    C[m * WB + n] = sum;
  }
"""
TOLERANCE = {"C": (0.1, 0.001)}
PROBLEM = "256,192"
WRONG_INDEX = ("Bs[k][tx]", "Bs[k][ty]")
