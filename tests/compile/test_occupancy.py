"""Occupancy: resident blocks, registers as they are allocated, and the limits of a block."""

from __future__ import annotations

import pytest

from evokern.compile.occupancy import blocks_per_sm, excess, registers_of_block, resources
from evokern.compile.records import EntryUse
from evokern.declaration.kernel import Launch
from evokern.hardware.profiles import chip


def launch(threads: int, shared: int = 0) -> Launch:
    return Launch("k", (1,), (threads,), (), shared_bytes=shared)


@pytest.mark.parametrize(
    ("name", "registers", "threads", "shared", "blocks"),
    [
        ("h200", 32, 1024, 0, 2),
        ("l4", 32, 1024, 0, 1),  # 1,536 threads an SM
        ("h200", 255, 256, 0, 1),  # 65,536 / (256 x 255 rounded up to 256 a thread)
        ("h200", 128, 128, 0, 4),
        ("h200", 129, 128, 0, 3),  # 129 rounds up to 136: 15 warps fit, 12 in whole groups
        ("h200", 16, 32, 0, 32),  # blocks an SM
        ("h200", 32, 128, 100_000, 2),  # shared memory: 233,472 / 101,024
        ("l4", 32, 128, 99 * 1024, 1),
        ("h200", 168, 384, 0, 1),
    ],
)
def test_resident_blocks_follow_the_tightest_limit(
    name: str, registers: int, threads: int, shared: int, blocks: int
) -> None:
    """Resident blocks are what CUDA's occupancy calculator gives."""
    assert blocks_per_sm(EntryUse(registers), launch(threads, shared), chip(name)) == blocks


def test_occupancy_counts_warps_of_the_sm() -> None:
    """Occupancy is resident warps over the SM's limit; a partial warp takes a whole one."""
    assert resources(EntryUse(32), launch(1024), chip("l4")).occupancy == pytest.approx(1024 / 1536)
    assert resources(EntryUse(128), launch(100), chip("h200")).occupancy == pytest.approx(4 * 4 / 64)


def test_registers_are_allocated_in_units() -> None:
    """A warp's registers round up to 256 and warps to groups of four."""
    assert registers_of_block(EntryUse(33), launch(32)) == 4 * 1280


def test_a_block_that_cannot_be_resident_breaks_a_limit() -> None:
    """Too many registers or too much shared memory names the limit, with what is needed and what there is."""
    over = excess(EntryUse(80), launch(1024), chip("h200"))
    assert over is not None
    assert (over.constraint, over.need.needed, over.need.available) == ("registers_per_block", 81_920, 65_536)
    over = excess(EntryUse(32, static_shared_bytes=1024), launch(128, 101_376), chip("l4"))
    assert over is not None
    assert (over.constraint, over.need.needed) == ("shared_memory_per_block", 102_400)
    assert excess(EntryUse(64), launch(1024), chip("h200")) is None
