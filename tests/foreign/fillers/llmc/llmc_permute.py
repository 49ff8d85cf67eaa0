"""Four axes in another order."""

from __future__ import annotations


def reference(p, t):
    whole = t["matrix"].reshape(p.DIM1, p.DIM2, p.DIM3, p.DIM4)
    moved = whole.permute(3, 2, 0, 1).contiguous()
    return {"out_matrix": moved.reshape(p.DIM4, p.DIM3, p.DIM1, p.DIM2)}


REFERENCE_H = """
for (int a = 0; a < DIM1; a++)
  for (int b = 0; b < DIM2; b++)
    for (int c = 0; c < DIM3; c++)
      for (int d = 0; d < DIM4; d++)
        out_matrix[((d * DIM3 + c) * DIM1 + a) * DIM2 + b] = matrix[((a * DIM2 + b) * DIM3 + c) * DIM4 + d];
"""
TOLERANCE = {"out_matrix": (0, 1e-06)}
PROBLEM = "24,42,20,32"
WRONG_INDEX = ("i3 * (dim1 * dim2)", "i3 * (dim1 * dim3)")
