"""The logistic function."""

from __future__ import annotations

import torch


def reference(p, t):
    return {"y": torch.sigmoid(t["x"])}


REFERENCE_H = """
for (int i = 0; i < N; i++) y[i] = 1 / (1 + std::exp(-x[i]));
"""
TOLERANCE = {"y": (1e-06, 1e-05)}
PROBLEM = "1000000"
WRONG_INDEX = ("float v = x[idx]", "float v = x[idx / 2]")
