"""The gradient of softmax and loss together, added to what is there."""

from __future__ import annotations

import torch


def reference(p, t):
    chosen = torch.arange(p.V)[None, None, :] == t["targets"][:, :, None]
    return {"dlogits": t["dlogits"] + (t["probs"] - chosen.double()) * t["dlosses"][:, :, None]}


REFERENCE_H = """
for (int i = 0; i < B * T; i++)
  for (int v = 0; v < V; v++) {
    const long at = static_cast<long>(i) * V + v;
    dlogits_out[at] = dlogits[at] + (probs[at] - (v == static_cast<int>(targets[i]))) * dlosses[i];
  }
"""
TOLERANCE = {"dlogits": (0.01, 0.001)}
PROBLEM = "8,64,512"
WRONG_INDEX = ("dlosses[b * T + t]", "dlosses[b * T]")
