"""Pairs of numbers turned by an angle that depends on row and column."""

from __future__ import annotations

import torch


def reference(p, t):
    x = t["x"]
    place = torch.arange(p.SEQ_LEN, dtype=torch.float64)[:, None]
    angle = place * 10000.0 ** -(torch.arange(p.N, dtype=torch.float64)[None, :] / p.N)
    sin, cos = torch.sin(angle), torch.cos(angle)
    turned = (x[..., 0] * cos - x[..., 1] * sin, x[..., 0] * sin + x[..., 1] * cos)
    return {"out": torch.stack(turned, -1)}


REFERENCE_H = """
for (int s = 0; s < SEQ_LEN; s++)
  for (int n = 0; n < N; n++) {
    const double angle = s * std::pow(10000.0, -static_cast<double>(n) / N);
    const double a = x[(s * N + n) * 2], b = x[(s * N + n) * 2 + 1];
    out[(s * N + n) * 2] = a * std::cos(angle) - b * std::sin(angle);
    out[(s * N + n) * 2 + 1] = a * std::sin(angle) + b * std::cos(angle);
  }
"""
TOLERANCE = {"out": (0.01, 0.001)}
PROBLEM = "512,128"
WRONG_INDEX = ("float x2 = x[idx * 2 + 1]", "float x2 = x[idx * 2]")
