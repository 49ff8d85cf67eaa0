"""The gradient of a bias, added to what is there."""

from __future__ import annotations


def reference(p, t):
    return {"dbias": t["dbias"] + t["dout"].sum((0, 1))}


REFERENCE_H = """
for (int o = 0; o < OC; o++) {
  dbias_out[o] = dbias[o];
  for (int i = 0; i < B * T; i++) dbias_out[o] += dout[static_cast<long>(i) * OC + o];
}
"""
TOLERANCE = {"dbias": (0.1, 0.01)}
PROBLEM = "8,256,384"
WRONG_INDEX = ("x[i * OC]", "x[i]")
