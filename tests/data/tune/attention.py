"""Attention."""

import sys
from pathlib import Path

import torch

import evokern


def reference(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


q, k, v = (torch.randn(1, 2, 128, 32, dtype=torch.half) for _ in range(3))
result = evokern.tune(
    Path(__file__).with_suffix(".cu"), "attention<128, 32>", args=[q, k, v, evokern.out_like(q)],
    params={"BLOCK_M": [32, 64, 128], "BLOCK_N": [16, 32, 64]},
    grid=lambda p: (2, 128 // p.BLOCK_M), block=lambda p: p.BLOCK_M, reference=reference,
    device=sys.argv[1], trials=8,
)  # fmt: skip
