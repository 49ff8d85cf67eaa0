"""The sum of two vectors."""

from __future__ import annotations


def reference(p, t):
    return {"c": t["a"] + t["b"]}


REFERENCE_H = """
for (int i = 0; i < N; i++) c[i] = a[i] + b[i];
"""
TOLERANCE = {"c": (1e-06, 1e-06)}
PROBLEM = "10000000"
WRONG_INDEX = ("b[i]", "b[i / 2]")
