"""The grid is part of the verdict on speed: idle SMs, a nearly empty last wave, a low share of the bound."""

from __future__ import annotations

import pytest

from evokern.compile.occupancy import resources
from evokern.compile.records import EntryUse
from evokern.declaration.kernel import Launch
from evokern.hardware.profiles import CHIPS
from evokern.measurement.grid import grid_facts
from evokern.study.trial import Resources


def used(blocks: int, threads: int = 256) -> Resources:
    """Return the resources of a launch on an L4, which has 58 SMs with six blocks of 256 threads each."""
    return resources(EntryUse(32), Launch("k", blocks, threads, ()), CHIPS["l4"])


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        (1, "1 block uses 1 of 58 SMs; raise the grid"),
        (8, "8 blocks use 8 of 58 SMs; raise the grid"),
        (57, "57 blocks use 57 of 58 SMs"),
        (60, "60 blocks give 2 of 58 SMs 2 blocks each and the others 1; choose tiles"),
        (360, "360 blocks run in waves of 348, and the last wave has only 12; choose tiles"),
    ],
)
def test_a_grid_that_leaves_a_part_of_the_chip_idle(blocks: int, told: str) -> None:
    assert grid_facts([used(blocks)], 0.9)["note"].startswith(told)


@pytest.mark.parametrize("blocks", [58, 116, 348, 348 * 2, 348 * 8 + 1, 100_000])
def test_a_grid_that_fills_the_chip(blocks: int) -> None:
    found = grid_facts([used(blocks), used(1)], 0.9)  # a small second launch does not count
    assert found == {"blocks": blocks, "sms": 58, "resident": 348, "note": ""}


def test_a_low_share_of_the_bound() -> None:
    """Less than a quarter of the bound is said, also if the grid is unknown, as for trials of earlier versions."""
    assert "reaches only 6 % of the roofline bound" in grid_facts([], 0.06)["note"]
    old = Resources(32, 0, 0, 0, 0, 0.5)
    assert grid_facts([old], 0.25) == {"blocks": None, "sms": None, "resident": None, "note": ""}
    both = grid_facts([used(8)], 0.06)["note"]
    assert "8 of 58 SMs" in both and "6 % of the roofline bound" in both
