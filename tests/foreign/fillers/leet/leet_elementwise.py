"""The sum of two vectors."""

from __future__ import annotations


def reference(p, t):
    return {"c": t["a"] + t["b"]}


REFERENCE_H = """
for (int i = 0; i < N; i++) c[i] = a[i] + b[i];
"""
TOLERANCE = {"c": (1e-06, 1e-06)}
PROBLEM = "1000000"
WRONG_INDEX = ("reg_c.y = reg_a.y + reg_b.y", "reg_c.y = reg_a.y + reg_b.x")
