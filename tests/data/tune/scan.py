"""Inclusive prefix sums of rows."""

import sys
from pathlib import Path

import torch

import evokern


def reference(x):
    return x.cumsum(1)


x = torch.rand(48, 1000)
result = evokern.tune(
    Path(__file__).with_suffix(".cu"), "scan", args=[x, evokern.out_like(x), 1000],
    params={"THREADS": [32, 64, 128, 256], "ITEMS": [1, 2, 4]}, grid=48, block=lambda p: p.THREADS,
    shared=lambda p: 4 * p.THREADS, reference=reference, device=sys.argv[1],
    trials=8,
)  # fmt: skip
