"""The loss of each position. Inputs drawn normal are no probabilities: the logarithm of half of them is no number."""

from __future__ import annotations

import torch


def reference(p, t):
    rows = torch.arange(p.B * p.T)
    chosen = t["probs"].reshape(-1, p.V)[rows, t["targets"].reshape(-1).long()]
    return {"losses": -torch.log(chosen).reshape(p.B, p.T)}


REFERENCE_H = """
for (int i = 0; i < B * T; i++) losses[i] = -std::log(probs[static_cast<long>(i) * V + static_cast<int>(targets[i])]);
"""
TOLERANCE = {"losses": (0.001, 0.001)}
PROBLEM = "8,256,1024"
WRONG_INDEX = ("probs_bt[ix]", "probs_bt[0]")
