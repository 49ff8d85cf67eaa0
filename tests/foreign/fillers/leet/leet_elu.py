"""The exponential linear unit."""

from __future__ import annotations

import torch


def reference(p, t):
    return {"y": torch.where(t["x"] > 0, t["x"], torch.expm1(t["x"]))}


REFERENCE_H = """
for (int i = 0; i < N; i++) y[i] = x[i] > 0 ? x[i] : std::expm1(x[i]);
"""
TOLERANCE = {"y": (1e-05, 0.0001)}
PROBLEM = "1000000"
WRONG_INDEX = ("elu(x[idx])", "elu(x[idx / 2])")
