"""The scalar product of two vectors, added to what is there."""

from __future__ import annotations


def reference(p, t):
    return {"y": t["y"] + t["a"] @ t["b"]}


REFERENCE_H = """
y_out[0] = y[0];
for (int i = 0; i < N; i++) y_out[0] += a[i] * b[i];
"""
TOLERANCE = {"y": (0.1, 0.001)}
PROBLEM = "1000000"
WRONG_INDEX = ("b[idx]", "b[idx / 2]")
