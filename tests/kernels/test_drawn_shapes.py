"""Shapes that `tests/scripts/drawn_shapes.py` draws from its seed."""

from __future__ import annotations

import sys

import pytest
from paths import KERNELS, ROOT

from evokern.study.discovery import load_kernel

sys.path.append(str(ROOT / "tests/scripts"))

import drawn_shapes


@pytest.mark.parametrize("name", ["attention", "matmul"])
def test_drawn_and_named_shapes_are_problems_in_their_ranges(name: str) -> None:
    kernel, drawn = load_kernel(KERNELS / name), drawn_shapes.drawn(name, 56)
    assert len(set(drawn)) == 12 and drawn == drawn_shapes.drawn(name, 56)
    for p in map(kernel.problem, drawn):
        if name == "attention":
            assert 8 <= p.B * p.H <= 128 <= p.S <= 8192
        else:
            assert all(128 <= size <= 8192 and size % 8 == 0 for size in (p.M, p.N, p.K))
    for problem in (*drawn_shapes.NAMED[name], *drawn_shapes.drawn(name, 56, small=True)):
        kernel.problem(problem)


def test_the_fastest_peer_gives_the_ratio() -> None:
    peers = {"SDPA": {"us": 3.0, "ratio": 1.5}, "FlashAttention 4": {"us": 2.0, "ratio": 1.0}}
    assert drawn_shapes.fastest_peer({"peers": peers}) == {"name": "FlashAttention 4", "us": 2.0, "ratio": 1.0}
    assert drawn_shapes.fastest_peer({"error": "none"}) is None
