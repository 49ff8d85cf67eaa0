"""Numbers between -0.5 and 0.5 become zero."""

from __future__ import annotations

import torch


def reference(p, t):
    return {"y": torch.where(t["x"].abs() > 0.5, t["x"], 0.0)}


REFERENCE_H = """
for (int i = 0; i < N; i++) y[i] = std::fabs(x[i]) > 0.5 ? x[i] : 0;
"""
TOLERANCE = {"y": (1e-06, 1e-06)}
PROBLEM = "1000000"
WRONG_INDEX = ("hardshrink(x[idx])", "hardshrink(x[idx / 2])")
