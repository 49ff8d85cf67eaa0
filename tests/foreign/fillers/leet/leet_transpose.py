"""A matrix transposed."""

from __future__ import annotations


def reference(p, t):
    return {"y": t["x"].T.contiguous()}


REFERENCE_H = """
for (int r = 0; r < ROW; r++)
  for (int c = 0; c < COL; c++) y[c * ROW + r] = x[r * COL + c];
"""
TOLERANCE = {"y": (0, 1e-06)}
PROBLEM = "1024,768"
WRONG_INDEX = ("x[global_y * col + global_x]", "x[global_y * row + global_x]")
