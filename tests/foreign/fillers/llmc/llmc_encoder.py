"""Token and position embeddings, added."""

from __future__ import annotations


def reference(p, t):
    return {"out": t["wte"][t["inp"].long()] + t["wpe"]}


REFERENCE_H = """
for (int b = 0; b < B; b++)
  for (int s = 0; s < T; s++)
    for (int c = 0; c < C; c++)
      out[(b * T + s) * C + c] = wte[static_cast<int>(inp[b * T + s]) * C + c] + wpe[s * C + c];
"""
TOLERANCE = {"out": (0.01, 0.01)}
PROBLEM = "8,256,768"
WRONG_INDEX = ("int ix = inp[b * T + t];", "int ix = inp[b * T];")
