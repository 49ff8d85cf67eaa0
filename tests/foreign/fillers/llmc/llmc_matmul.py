"""A linear layer."""

from __future__ import annotations


def reference(p, t):
    return {"out": t["inp"] @ t["weight"].T + t["bias"]}


REFERENCE_H = """
for (int r = 0; r < BT; r++)
  for (int o = 0; o < OC; o++) {
    double sum = bias[o];
    for (int c = 0; c < C; c++) sum += inp[static_cast<long>(r) * C + c] * weight[static_cast<long>(o) * C + c];
    out[static_cast<long>(r) * OC + o] = sum;
  }
"""
TOLERANCE = {"out": (0.05, 0.001)}
PROBLEM = "256,384,256"
WRONG_INDEX = ("weight + oc * C", "weight + bt * C")
