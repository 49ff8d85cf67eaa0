"""x times its logistic function."""

from __future__ import annotations

import torch


def reference(p, t):
    return {"y": t["x"] * torch.sigmoid(t["x"])}


REFERENCE_H = """
for (int i = 0; i < N; i++) y[i] = x[i] / (1 + std::exp(-x[i]));
"""
TOLERANCE = {"y": (1e-05, 0.0001)}
PROBLEM = "1000000"
WRONG_INDEX = ("swish(reg_x.z)", "swish(reg_x.y)")
