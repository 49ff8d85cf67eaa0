"""GELU by its tanh approximation."""

from __future__ import annotations

import torch


def reference(p, t):
    x = t["inp"]
    return {"out": 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))}


REFERENCE_H = """
const double k = std::sqrt(2 / 3.14159265358979323846);
for (int i = 0; i < N; i++) out[i] = 0.5 * inp[i] * (1 + std::tanh(k * (inp[i] + 0.044715 * inp[i] * inp[i] * inp[i])));
"""
TOLERANCE = {"out": (0.01, 0.01)}
PROBLEM = "1000000"
WRONG_INDEX = ("load128cs(inp + i)", "load128cs(inp + i / 2 / x128::size * x128::size)")
