"""A piecewise swish."""

from __future__ import annotations


def reference(p, t):
    return {"y": t["x"] * (t["x"] + 3).clamp(0, 6) / 6}


REFERENCE_H = """
for (int i = 0; i < N; i++) y[i] = x[i] * std::fmin(std::fmax(x[i] + 3, 0.0), 6.0) / 6;
"""
TOLERANCE = {"y": (1e-05, 0.0001)}
PROBLEM = "1000000"
WRONG_INDEX = ("hardswish(x[idx])", "hardswish(x[idx / 2])")
