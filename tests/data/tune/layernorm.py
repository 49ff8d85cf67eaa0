"""Layer normalisation."""

import sys
from pathlib import Path

import torch

import evokern


def reference(x, weight, bias):
    return torch.nn.functional.layer_norm(x, (768,), weight, bias)


x, weight, bias = (torch.randn(*shape, dtype=torch.half) for shape in ((96, 768), (768,), (768,)))
result = evokern.tune(
    Path(__file__).with_suffix(".cu"), "layernorm",
    args=[x, weight, bias, evokern.out_like(x), 768], params={"THREADS": [32, 64, 128, 256]},
    grid=96, block=lambda p: p.THREADS, reference=reference,
    device=sys.argv[1], trials=8,
)  # fmt: skip
