"""A matrix product whose tiles are template arguments."""

import sys
from pathlib import Path

import torch

import evokern


def reference(a, b):
    return a @ b


M, N, K = 128, 192, 64
a, b = torch.randn(M, K), torch.randn(K, N)
result = evokern.tune(
    Path(__file__).with_suffix(".cu"), "gemm<{TILE_M}, {TILE_N}, {TILE_K}>",
    args=[a, b, evokern.out_like(torch.empty(M, N)), N, K],
    params={"TILE_M": [16, 32], "TILE_N": [16, 32, 64], "TILE_K": [8, 16], "THREADS": [64, 128]},
    grid=lambda p: (N // p.TILE_N, M // p.TILE_M), block=lambda p: p.THREADS, reference=reference,
    device=sys.argv[1], trials=8,
)  # fmt: skip
