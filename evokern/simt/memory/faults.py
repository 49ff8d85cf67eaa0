"""Invalid accesses in any state space: misaligned, or outside every allocation."""

from __future__ import annotations

from collections.abc import Callable

from evokern.simt.arrays import Array
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.sanitizer.findings import WILD_BYTES, Access

Describe = Callable[[int, int], tuple[Access, str]]
"""(address, lane) → the address and the nearest allocation, detail for the message."""


def misaligned(batch: Batch, lanes: Array, where: Array, width: int, number: int, describe: Describe) -> None:
    """Report misaligned accesses, which end the launch unless its options allow it to continue.

    If it continues, the accesses have no effect, and reads return zero.

    Args:
        batch: the lanes.
        lanes: lanes with a misaligned access.
        where: their addresses.
        width: bytes of the access.
        number: the instruction.
        describe: function that describes the allocation.

    Raises:
        Stopped: the launch ends here.
    """
    at = int(where[0])
    access, _ = describe(at, int(lanes[0]))
    detail = f"The address is {at % width} bytes past a multiple of {width}"
    batch.report("misaligned", Occurrence.of(number, lanes), access, detail=detail)
    if not batch.options.past_misaligned:
        batch.stop()


def outside(batch: Batch, lanes: Array, where: Array, width: int, number: int, describe: Describe) -> None:
    """Report accesses outside all allocations; they have no effect, and reads return zero.

    Args:
        batch: the lanes.
        lanes: lanes with an access outside all allocations.
        where: their addresses.
        width: bytes of the access.
        number: the instruction.
        describe: function that describes the nearest allocation.
    """
    access, detail = describe(int(where[0]), int(lanes[0]))
    detail = f"The access of {width} bytes is at offset {access.offset}. {detail}"
    if abs(access.offset) >= WILD_BYTES:
        detail = f"The access of {width} bytes is at address {access.address:#x}, far from every buffer"
        access = Access(address=access.address)
    batch.report("out_of_bounds", Occurrence.of(number, lanes), access, detail=detail)
