"""Softmax of rows."""

from __future__ import annotations

import torch


def reference(p, t):
    return {"out": torch.softmax(t["inp"], 1)}


REFERENCE_H = """
for (int n = 0; n < N; n++) {
  const double* x = inp + static_cast<long>(n) * C;
  double most = x[0], sum = 0;
  for (int c = 1; c < C; c++) most = std::fmax(most, x[c]);
  for (int c = 0; c < C; c++) sum += std::exp(x[c] - most);
  for (int c = 0; c < C; c++) out[static_cast<long>(n) * C + c] = std::exp(x[c] - most) / sum;
}
"""
TOLERANCE = {"out": (1e-06, 0.001)}
PROBLEM = "2048,768"
WRONG_INDEX = ("expf(x[i] - offset)", "expf(x[i / 2] - offset)")
