"""Softmax of rows of 256."""

from __future__ import annotations

import torch


def reference(p, t):
    return {"y": torch.cat([torch.softmax(row, 0) for row in t["x"].split(256)])}


REFERENCE_H = """
for (int first = 0; first < N; first += 256) {
  const int last = first + 256 < N ? first + 256 : N;
  double most = x[first], sum = 0;
  for (int i = first; i < last; i++) most = std::fmax(most, x[i]);
  for (int i = first; i < last; i++) sum += std::exp(x[i] - most);
  for (int i = first; i < last; i++) y[i] = std::exp(x[i] - most) / sum;
}
"""
TOLERANCE = {"y": (1e-06, 0.001)}
PROBLEM = "262144"
WRONG_INDEX = ("expf(x[idx] - max_val)", "expf(x[idx / 2] - max_val)")
