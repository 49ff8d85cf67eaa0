"""A 3 x 3 stencil."""

import sys
from pathlib import Path

import torch

import evokern


def reference(image, weights):
    return torch.nn.functional.conv2d(image[None, None], weights[None, None], padding=1)[0, 0]


image, weights = torch.randn(200, 300), torch.randn(3, 3)
result = evokern.tune(
    Path(__file__).with_suffix(".cu"), "stencil",
    args=[image, weights, evokern.out_like(image), 200, 300],
    params={"TILE_X": [16, 32, 64], "TILE_Y": [2, 4, 8], "ROWS": [1, 2, 4]},
    where=lambda p: p.TILE_X * p.TILE_Y <= 256,
    grid=lambda p: (evokern.cdiv(300, p.TILE_X), evokern.cdiv(200, p.TILE_Y * p.ROWS)),
    block=lambda p: (p.TILE_X, p.TILE_Y), reference=reference, device=sys.argv[1], trials=8,
)  # fmt: skip
