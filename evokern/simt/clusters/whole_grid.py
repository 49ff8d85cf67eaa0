"""Batches for grids whose blocks wait for each other, and therefore all run at once."""

from __future__ import annotations

from evokern.compile.launch_attributes import grid_excess
from evokern.compile.occupancy import blocks_per_sm
from evokern.compile.records import EntryUse
from evokern.declaration.kernel import Launch
from evokern.errors import GridTooLargeError, UsageError
from evokern.hardware.profiles import CHIPS, Profile

BATCH_BYTES = 1 << 30
"""Maximum bytes of registers and shared memory of a batch that cannot be split, because its blocks wait for each
other."""


def whole_grid_blocks(launch: Launch, launches: int, block_bytes: int, target: str, chip: Profile) -> int:
    """Return the size of batches that hold the grids of all launches if possible, otherwise of one.

    Args:
        launch: the launch, with its static shared memory.
        launches: number of launches that run concurrently.
        block_bytes: bytes of memory that a block needs on the PTX machine.
        target: architecture of the PTX.
        chip: the simulated chip, for architectures without a known chip.

    Raises:
        GridTooLargeError: no chip of the architecture holds all blocks of the grid at once.
        UsageError: the PTX machine lacks the memory for them.
    """
    use = EntryUse(0, static_shared_bytes=launch.static_shared_bytes)  # PTX does not state the number of registers
    chips = [one for one in CHIPS.values() if one.architecture == target.rstrip("af")] or [chip]
    holding = {one.name: blocks_per_sm(use, launch, one) for one in chips}
    largest = max(chips, key=lambda one: holding[one.name] * one.sms)
    excess = grid_excess(launch, holding[largest.name], largest)
    if excess is not None:
        raise GridTooLargeError(f"{excess.reason}; use a smaller grid", excess.evidence)
    need = launch.blocks * block_bytes
    if need > BATCH_BYTES:
        raise UsageError(
            f"the blocks of {launch.entry} wait for each other; running all {launch.blocks} at once needs "
            f"{need >> 20} MiB, but the simulator uses at most {BATCH_BYTES >> 20} MiB: use a smaller grid"
        )
    return launch.blocks * max(min(launches, BATCH_BYTES // need), 1)
