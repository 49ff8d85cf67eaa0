"""A scaled vector."""

import sys

import torch

import evokern


def reference(x):
    return 2 * x


SOURCE = """
__global__ void twice(const float* x, float* y, int n) {
  int first = (blockIdx.x * blockDim.x + threadIdx.x) * ITEMS;
  for (int i = first; i < first + ITEMS && i < n; i++) y[i] = 2 * x[i];
}
"""
x = torch.randn(100_000)
result = evokern.tune(
    SOURCE, "twice", [x, evokern.out_like(x), 100_000], {"BLOCK": [64, 256], "ITEMS": [1, 2, 4]},
    grid=lambda p: evokern.cdiv(100_000, p.BLOCK * p.ITEMS), block=lambda p: p.BLOCK,
    reference=reference, device=sys.argv[1], trials=8,
)  # fmt: skip
