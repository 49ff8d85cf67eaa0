"""The gradient of a bias."""

from __future__ import annotations


def reference(p, t):
    return {"dbias": t["dout"].sum((0, 1))}


REFERENCE_H = """
for (int o = 0; o < OC; o++) {
  dbias[o] = 0;
  for (int i = 0; i < B * T; i++) dbias[o] += dout[static_cast<long>(i) * OC + o];
}
"""
TOLERANCE = {"dbias": (0.01, 0.0001)}
PROBLEM = "8,64,384"
WRONG_INDEX = ("b * T * OC + t * OC + o", "b * T * OC + t + o")
