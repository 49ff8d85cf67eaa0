"""The sum of two vectors."""

from __future__ import annotations


def reference(p, t):
    return {"C": t["A"] + t["B"]}


REFERENCE_H = """
for (int i = 0; i < NUMELEMENTS; i++) C[i] = A[i] + B[i];
"""
TOLERANCE = {"C": (1e-06, 1e-06)}
PROBLEM = "1000000"
WRONG_INDEX = ("B[i]", "B[i / 2]")
