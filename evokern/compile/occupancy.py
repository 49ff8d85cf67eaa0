"""How many blocks of a launch fit an SM, and which limit of the chip a compiled launch breaks.

The rules are those of the CUDA occupancy calculator (`cuda_occupancy.h` of the CUDA toolkit): registers are allocated
per warp in units of 256 to warps that come in groups of four, shared memory in units of 128 bytes with the system's
1 KB added to each block (compute capability 8.0 and above).
"""

from __future__ import annotations

from dataclasses import dataclass

from evokern.compile.records import EntryUse
from evokern.declaration.kernel import Launch, Need
from evokern.hardware.profiles import Profile
from evokern.study.trial import Resources

_WARP = 32
_REGISTER_UNIT = 256
_WARP_GROUP = 4
_SHARED_UNIT = 128


@dataclass(frozen=True)
class Excess:
    """A limit that a compiled launch breaks."""

    constraint: str
    """Its name."""
    need: Need
    """What the launch needs and what there is."""
    reason: str
    """Why that cannot work, in a sentence."""


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _warps(launch: Launch) -> int:
    return -(-launch.threads // _WARP)


def registers_of_block(use: EntryUse, launch: Launch) -> int:
    """Return the registers that a resident block takes."""
    of_warp = _round_up(use.registers * _WARP, _REGISTER_UNIT)
    return of_warp * _round_up(_warps(launch), _WARP_GROUP)


def blocks_per_sm(use: EntryUse, launch: Launch, chip: Profile) -> int:
    """Return how many blocks of a launch are resident on an SM at once; 0 when not even one fits."""
    warps = _warps(launch)
    limits = [chip.blocks_per_sm, chip.threads_per_sm // (warps * _WARP)]
    of_warp = _round_up(use.registers * _WARP, _REGISTER_UNIT)
    if of_warp:
        # Each of an SM's four partitions has a quarter of the registers, and a warp lives in one partition.
        resident = chip.registers_per_sm // _WARP_GROUP // of_warp * _WARP_GROUP
        limits.append(resident // warps)
    shared = use.static_shared_bytes + launch.shared_bytes + chip.shared_bytes_reserved
    limits.append(chip.shared_bytes_per_sm // _round_up(shared, _SHARED_UNIT))
    return min(limits)


def resources(use: EntryUse, launch: Launch, chip: Profile) -> Resources:
    """Return what the compiler gave a launch, and its occupancy: resident warps over those an SM can hold."""
    resident = blocks_per_sm(use, launch, chip) * _warps(launch)
    return Resources(
        registers=use.registers,
        spill_bytes=use.spill_bytes,
        stack_bytes=use.stack_bytes,
        static_shared_bytes=use.static_shared_bytes,
        dynamic_shared_bytes=launch.shared_bytes,
        occupancy=resident * _WARP / chip.threads_per_sm,
    )


def excess(use: EntryUse, launch: Launch, chip: Profile) -> Excess | None:
    """Return the first limit of the chip that a compiled launch breaks, or None when it can be launched."""
    static, total = use.static_shared_bytes, use.static_shared_bytes + launch.shared_bytes
    checks = (
        ("static_shared_memory", Need(static, chip.shared_bytes_static, "bytes"), "static shared memory over 48 KB"),
        ("shared_memory_per_block", Need(total, chip.shared_bytes_per_block, "bytes"), "static and dynamic together"),
        (
            "registers_per_thread",
            Need(use.registers, chip.registers_per_thread, "registers"),
            "more registers than a thread can have",
        ),
        (
            "registers_per_block",
            Need(registers_of_block(use, launch), chip.registers_per_sm, "registers"),
            f"{launch.threads} threads of {use.registers} registers do not fit an SM",
        ),
    )
    for name, need, reason in checks:
        if not need.holds:
            return Excess(name, need, reason)
    if blocks_per_sm(use, launch, chip) < 1:
        shared = Need(total + chip.shared_bytes_reserved, chip.shared_bytes_per_sm, "bytes")
        return Excess("shared_memory_per_sm", shared, "not even one block fits an SM")
    return None
