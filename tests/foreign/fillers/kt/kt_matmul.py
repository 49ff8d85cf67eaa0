"""C = A B for square matrices."""

from __future__ import annotations


def reference(p, t):
    return {"C": t["A"] @ t["B"]}


REFERENCE_H = """
for (int m = 0; m < WIDTH; m++)
  for (int n = 0; n < WIDTH; n++) {
    double sum = 0;
    for (int k = 0; k < WIDTH; k++) sum += A[m * WIDTH + k] * B[k * WIDTH + n];
    C[m * WIDTH + n] = sum;
  }
"""
TOLERANCE = {"C": (0.5, 0.001)}
PROBLEM = "1024"
WRONG_INDEX = ("sB[kb][tx + j * block_size_x]", "sB[kb][ty + j * block_size_x]")
