"""The sum of squares, added to what is there."""

from __future__ import annotations


def reference(p, t):
    return {"out": t["out"] + (t["data"] ** 2).sum()}


REFERENCE_H = """
out_out[0] = out[0];
for (int i = 0; i < COUNT; i++) out_out[0] += data[i] * data[i];
"""
TOLERANCE = {"out": (0.01, 0.0001)}
PROBLEM = "1000000"
WRONG_INDEX = ("(float)data[i] * (float)data[i]", "(float)data[i] * (float)data[index]")
