"""The sum of each row of a matrix."""

import sys
from pathlib import Path

import torch

import evokern


def reference(x):
    return x.sum(1)


x = torch.rand(96, 1000)
result = evokern.tune(
    Path(__file__).with_suffix(".cu"), "row_sums",
    args=[x, evokern.out_like(torch.empty(96)), 1000], params={"BLOCK": [32, 64, 128, 256, 512]},
    grid=96, block=lambda p: p.BLOCK, reference=reference, device=sys.argv[1], trials=8,
)  # fmt: skip
