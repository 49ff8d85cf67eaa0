"""The derivative of GELU, times the gradient above."""

from __future__ import annotations

import torch


def reference(p, t):
    x = t["inp"]
    slope = (2 / torch.pi) ** 0.5
    tanh = torch.tanh(slope * (x + 0.044715 * x**3))
    local = 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * slope * (1 + 3 * 0.044715 * x**2)
    return {"dinp": local * t["dout"]}


REFERENCE_H = """
const double k = std::sqrt(2 / 3.14159265358979323846);
for (int i = 0; i < N; i++) {
  const double x = inp[i], h = std::tanh(k * (x + 0.044715 * x * x * x));
  dinp[i] = (0.5 * (1 + h) + 0.5 * x * (1 - h * h) * k * (1 + 3 * 0.044715 * x * x)) * dout[i];
}
"""
TOLERANCE = {"dinp": (0.01, 0.01)}
PROBLEM = "1000000"
WRONG_INDEX = ("(float)dout[i]", "(float)dout[i / 2]")
