"""A transposed matrix."""

import sys
from pathlib import Path

import numpy as np

import evokern


def reference(x):
    return np.ascontiguousarray(x.T)


x = np.random.default_rng().standard_normal((200, 300), dtype=np.float32)
result = evokern.tune(
    Path(__file__).with_suffix(".cu"), "transpose",
    args=[x, evokern.out_like(x.T.copy()), 200, 300],
    params={"TILE": [16, 32], "ROWS": [4, 8, 16], "PADDING": [0, 1]},
    grid=lambda p: (evokern.cdiv(300, p.TILE), evokern.cdiv(200, p.TILE)),
    block=lambda p: (p.TILE, p.ROWS), reference=reference, tolerance=0,
    device=sys.argv[1], trials=8,
)  # fmt: skip
