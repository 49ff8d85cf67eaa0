"""Negative numbers become zero."""

from __future__ import annotations


def reference(p, t):
    return {"y": t["x"].clamp_min(0)}


REFERENCE_H = """
for (int i = 0; i < N; i++) y[i] = std::fmax(0.0, x[i]);
"""
TOLERANCE = {"y": (1e-06, 1e-06)}
PROBLEM = "1000000"
WRONG_INDEX = ("x[idx])", "x[idx ^ 1])")
