"""Softmax of each row."""

import sys
from pathlib import Path

import torch

import evokern


def reference(x):
    return torch.softmax(x, -1)


x = torch.randn(200, 300)
result = evokern.tune(
    Path(__file__).with_suffix(".cu"), "softmax", args=[x, evokern.out_like(x), 200, 300],
    params={"WARPS": [1, 2, 4, 8], "UNROLL": [1, 2, 4]}, grid=lambda p: evokern.cdiv(200, p.WARPS),
    block=lambda p: 32 * p.WARPS, reference=reference, device=sys.argv[1], trials=8,
)  # fmt: skip
