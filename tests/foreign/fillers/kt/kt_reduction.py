"""The sum of a vector."""

from __future__ import annotations


def reference(p, t):
    return {"sum_global_total": t["array"].sum().reshape(1)}


REFERENCE_H = """
sum_global_total[0] = 0;
for (int i = 0; i < N; i++) sum_global_total[0] += array[i];
"""
TOLERANCE = {"sum_global_total": (0.05, 0.001)}
PROBLEM = "1000000"
SMALL = (
    "8192",
    "16384",
)
WRONG_INDEX = ("sum_global[blockIdx.x]", "sum_global[blockIdx.x / 2]")
