"""The sum of two activations."""

from __future__ import annotations


def reference(p, t):
    return {"out": t["inp1"] + t["inp2"]}


REFERENCE_H = """
for (int i = 0; i < N; i++) out[i] = inp1[i] + inp2[i];
"""
TOLERANCE = {"out": (0.01, 0.01)}
PROBLEM = "1000000"
WRONG_INDEX = ("(float)inp2[idx]", "(float)inp2[idx > 0 ? idx - 1 : 0]")
