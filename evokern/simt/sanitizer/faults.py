"""Accesses that no allocation allows, in any state space: misaligned ones, and those outside of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch

Describe = Callable[[int, int], tuple[str, int, str]]
"""(address, lane) → allocation, offset within it, detail for the message."""


def misaligned(
    batch: Batch, active: Active, where: Array, width: int, number: int, describe: Describe, *, base: int = 0
) -> Array:
    """Report a misaligned access, which ends a launch at once unless its options say otherwise.

    Args:
        batch: the lanes.
        active: those that access.
        where: addresses, one per active lane.
        width: bytes of the access.
        number: the instruction.
        describe: names the allocation.
        base: what the finding adds to an address.

    Returns:
        Which lanes are aligned and go on; the others' access has no effect, and reads give zero.

    Raises:
        Stopped: the launch ends here.
    """
    bad = (where & (width - 1)) != 0
    lane = int(active.lanes[bad][0])
    at = int(where[bad][0])
    name, offset, _ = describe(at, lane)
    batch.report(
        "misaligned",
        number,
        lane,
        count=int(np.count_nonzero(bad)),
        address=at + base,
        allocation=name,
        offset=offset,
        detail=f"The address is {at % width} bytes past a multiple of {width}",
    )
    if not batch.options.past_misaligned:
        batch.stop()
    aligned: Array = ~bad
    return aligned


def outside(
    batch: Batch, active: Active, where: Array, bad: Array, width: int, number: int, describe: Describe, *,
    base: int = 0,
) -> None:  # fmt: skip
    """Report accesses outside every allocation; they have no effect and reads give zero.

    Args:
        batch: the lanes.
        active: those that access.
        where: addresses, one per active lane.
        bad: which of them are outside.
        width: bytes of the access.
        number: the instruction.
        describe: names the nearest allocation.
        base: what the finding adds to an address.
    """
    lane = int(active.lanes[bad][0])
    at = int(where[bad][0])
    name, offset, detail = describe(at, lane)
    batch.report(
        "out_of_bounds",
        number,
        lane,
        count=int(np.count_nonzero(bad)),
        address=at + base,
        allocation=name,
        offset=offset,
        detail=f"The access of {width} bytes is at offset {offset}. {detail}",
    )
