"""The sum of a vector, added to what is there."""

from __future__ import annotations


def reference(p, t):
    return {"y": t["y"] + t["a"].sum()}


REFERENCE_H = """
y_out[0] = y[0];
for (int i = 0; i < N; i++) y_out[0] += a[i];
"""
TOLERANCE = {"y": (0.01, 0.001)}
PROBLEM = "1000000"
WRONG_INDEX = ("a[idx] : 0.0f", "a[idx / 2] : 0.0f")
