"""GELU by its tanh approximation."""

from __future__ import annotations

import torch


def reference(p, t):
    x = t["x"].clamp(-88.3762626647949, 88.3762626647949)  # as the file does
    return {"y": 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))}


REFERENCE_H = """
const double k = std::sqrt(2 / 3.14159265358979323846);
for (int i = 0; i < N; i++) {
  const double v = std::fmin(std::fmax(x[i], -88.3762626647949), 88.3762626647949);
  y[i] = 0.5 * v * (1 + std::tanh(k * (v + 0.044715 * v * v * v)));
}
"""
TOLERANCE = {"y": (1e-05, 0.0001)}
PROBLEM = "1000000"
WRONG_INDEX = ("fmaxf(x[idx]", "fmaxf(x[idx / 2]")
