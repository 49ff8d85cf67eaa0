"""How often each number stands in a vector, added to what is there."""

from __future__ import annotations

import torch


def reference(p, t):
    counts = torch.bincount(t["a"].long(), minlength=t["y"].numel())
    return {"y": t["y"] + counts.to(torch.float64)}


REFERENCE_H = """
for (int k = 0; k < 8; k++) y_out[k] = y[k];
for (int i = 0; i < N; i++) y_out[static_cast<int>(a[i])] += 1;
"""
TOLERANCE = {"y": (0, 0)}
PROBLEM = "1000000"
WRONG_INDEX = ("y[a[idx]]", "y[a[idx / 2]]")
