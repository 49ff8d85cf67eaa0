"""Queries, keys and values taken apart."""

from __future__ import annotations


def reference(p, t):
    whole = t["inp"].reshape(p.B, p.T, 3, p.NH, p.HS)
    parts = [whole[:, :, part].permute(0, 2, 1, 3).contiguous().reshape(p.B, p.T, p.NH, p.HS) for part in range(3)]
    return dict(zip("qkv", parts, strict=True))


REFERENCE_H = """
double* parts[3] = {q, k, v};
for (int b = 0; b < B; b++)
  for (int s = 0; s < T; s++)
    for (int part = 0; part < 3; part++)
      for (int h = 0; h < NH; h++)
        for (int d = 0; d < HS; d++)
          parts[part][((b * NH + h) * T + s) * HS + d] = inp[(((b * T + s) * 3 + part) * NH + h) * HS + d];
"""
TOLERANCE = {"q": (0, 1e-06), "k": (0, 1e-06), "v": (0, 1e-06)}
PROBLEM = "4,64,8,64"
WRONG_INDEX = ("t * 3 * NH * HS", "t * 2 * NH * HS")
