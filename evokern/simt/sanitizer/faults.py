"""Invalid accesses in any state space: misaligned, or outside every allocation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch
from evokern.simt.sanitizer.findings import WILD_BYTES

Describe = Callable[[int, int], tuple[str, int, str]]
"""(address, lane) → allocation, offset within it, detail for the message."""


def misaligned(
    batch: Batch, active: Active, where: Array, width: int, number: int, describe: Describe, *, base: int = 0
) -> Array:
    """Report misaligned accesses, which end the launch unless its options allow it to continue.

    Args:
        batch: the lanes.
        active: lanes that access.
        where: addresses, one per active lane.
        width: bytes of the access.
        number: the instruction.
        describe: function that describes the allocation.
        base: offset that the finding adds to an address.

    Returns:
        A mask of the aligned lanes. Accesses of the other lanes have no effect, and their reads return zero.

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
    """Report accesses outside all allocations; they have no effect, and reads return zero.

    Args:
        batch: the lanes.
        active: lanes that access.
        where: addresses, one per active lane.
        bad: which lanes access memory outside all allocations.
        width: bytes of the access.
        number: the instruction.
        describe: function that describes the nearest allocation.
        base: offset that the finding adds to an address.
    """
    lane = int(active.lanes[bad][0])
    at = int(where[bad][0])
    name, offset, detail = describe(at, lane)
    detail = f"The access of {width} bytes is at offset {offset}. {detail}"
    if abs(offset) >= WILD_BYTES:
        name, offset, detail = "", 0, f"The access of {width} bytes is at address {at + base:#x}, far from every buffer"
    batch.report(
        "out_of_bounds",
        number,
        lane,
        count=int(np.count_nonzero(bad)),
        address=at + base,
        allocation=name,
        offset=offset,
        detail=detail,
    )
