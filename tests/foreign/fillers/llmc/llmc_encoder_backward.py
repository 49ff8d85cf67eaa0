"""Gradients of the embeddings, added to what is there."""

from __future__ import annotations


def reference(p, t):
    dwte = t["dwte"].clone()
    dwte.index_add_(0, t["inp"].long().reshape(-1), t["dout"].reshape(-1, p.C))
    return {"dwte": dwte, "dwpe": t["dwpe"] + t["dout"].sum(0)}


REFERENCE_H = """
for (int i = 0; i < 8 * C; i++) dwte_out[i] = dwte[i];
for (int i = 0; i < T * C; i++) dwpe_out[i] = dwpe[i];
for (int b = 0; b < B; b++)
  for (int s = 0; s < T; s++)
    for (int c = 0; c < C; c++) {
      const double d = dout[(b * T + s) * C + c];
      dwte_out[static_cast<int>(inp[b * T + s]) * C + c] += d;
      dwpe_out[s * C + c] += d;
    }
"""
TOLERANCE = {"dwte": (0.01, 0.001), "dwpe": (0.01, 0.001)}
PROBLEM = "4,64,128"
WRONG_INDEX = ("dwpe + t * C + c", "dwpe + c")
