"""A histogram with atomics, added to counts."""

import sys
from pathlib import Path

import torch

import evokern


def reference(data, counts):
    return counts + torch.bincount(data, minlength=256)


data = torch.randint(0, 256, (50_000,), dtype=torch.uint8)
counts = torch.zeros(256, dtype=torch.int32)
result = evokern.tune(
    Path(__file__).with_suffix(".cu"), "histogram",
    args=[data, evokern.inout(counts), data.numel()],
    params={"PRIVATE": [False, True], "BLOCK": [64, 128, 256], "BLOCKS": [16, 32, 64]},
    grid=lambda p: p.BLOCKS, block=lambda p: p.BLOCK, reference=reference, device=sys.argv[1],
    trials=8,
)  # fmt: skip
