"""C = A B + C."""

from __future__ import annotations


def reference(p, t):
    return {"C": t["A"] @ t["B"] + t["C"]}


REFERENCE_H = """
for (int m = 0; m < M; m++)
  for (int n = 0; n < N; n++) {
    double sum = C[static_cast<long>(m) * N + n];
    for (int k = 0; k < K; k++) sum += A[static_cast<long>(m) * K + k] * B[static_cast<long>(k) * N + n];
    C_out[static_cast<long>(m) * N + n] = sum;
  }
"""
TOLERANCE = {"C": (0.2, 0.001)}
PROBLEM = "512,512,256"
WRONG_INDEX = ("B[i * N + cCol]", "B[i * N + cRow]")
