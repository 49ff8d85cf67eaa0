"""Occupancy, and the first resource limit that a launch exceeds.

The rules are those of the CUDA occupancy calculator (`cuda_occupancy.h`) for compute capability 8.0 and above.
Registers are allocated per warp in units of 256, and warps in groups of four. Shared memory is allocated in units of
128 bytes, plus 1 KB per block for the system.
"""

from __future__ import annotations

from evokern.compile.launch_attributes import Excess, grid_excess, launch_attributes, synchronises_grid
from evokern.compile.records import EntryUse, Program
from evokern.declaration.kernel import AtMost, Launch
from evokern.hardware.profiles import Profile
from evokern.study.trial import Resources

_WARP = 32
_REGISTER_UNIT = 256
_WARP_GROUP = 4
_SHARED_UNIT = 128


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _warps(launch: Launch) -> int:
    return -(-launch.threads // _WARP)


def registers_of_block(use: EntryUse, launch: Launch) -> int:
    """Return the number of registers allocated to a resident block."""
    of_warp = _round_up(use.registers * _WARP, _REGISTER_UNIT)
    return of_warp * _round_up(_warps(launch), _WARP_GROUP)


def blocks_per_sm(use: EntryUse, launch: Launch, chip: Profile) -> int:
    """Return the number of blocks of a launch that fit on an SM at once; 0 if none fits."""
    warps = _warps(launch)
    limits = [chip.blocks_per_sm, chip.threads_per_sm // (warps * _WARP)]
    of_warp = _round_up(use.registers * _WARP, _REGISTER_UNIT)
    if of_warp:
        # Each of the four partitions of an SM has a quarter of the registers, and a warp runs in one partition.
        resident = chip.registers_per_sm // _WARP_GROUP // of_warp * _WARP_GROUP
        limits.append(resident // warps)
    shared = use.static_shared_bytes + launch.shared_bytes + chip.shared_bytes_reserved
    limits.append(chip.shared_bytes_per_sm // _round_up(shared, _SHARED_UNIT))
    return min(limits)


def resources(use: EntryUse, launch: Launch, chip: Profile) -> Resources:
    """Return the resources of a launch and its occupancy, the ratio of resident warps to the maximum of an SM."""
    per_sm = blocks_per_sm(use, launch, chip)
    return Resources(
        registers=use.registers,
        spill_bytes=use.spill_bytes,
        stack_bytes=use.stack_bytes,
        static_shared_bytes=use.static_shared_bytes,
        dynamic_shared_bytes=launch.shared_bytes,
        occupancy=per_sm * _warps(launch) * _WARP / chip.threads_per_sm,
        blocks=launch.blocks,
        resident=per_sm * chip.sms,
        sms=chip.sms,
    )


def launch_excess(program: Program, launch: Launch, chip: Profile) -> Excess | None:
    """Return the first limit of the kernel or the chip that a launch of a compiled program exceeds, or None."""
    use, symbol = program.uses[launch.entry], program.lowered[launch.entry]
    over = launch_attributes(program.ptx, symbol).violated_by(launch) or excess(use, launch, chip)
    if over is None and synchronises_grid(program.ptx, symbol):
        return grid_excess(launch, blocks_per_sm(use, launch, chip), chip)
    return over


def cooperative_entries(program: Program) -> frozenset[str]:
    """Return the entry points that need a cooperative launch, because they synchronise their whole grid."""
    return frozenset(name for name, symbol in program.lowered.items() if synchronises_grid(program.ptx, symbol))


def excess(use: EntryUse, launch: Launch, chip: Profile) -> Excess | None:
    """Return the first resource limit that a compiled launch exceeds, or None if it can be launched."""
    static, total = use.static_shared_bytes, use.static_shared_bytes + launch.shared_bytes
    checks = (
        ("static_shared_memory", AtMost(static, chip.shared_bytes_static, "bytes"), "static shared memory over 48 KB"),
        (
            "shared_memory_per_block",
            AtMost(total, chip.shared_bytes_per_block, "bytes"),
            "static plus dynamic shared memory",
        ),
        (
            "registers_per_thread",
            AtMost(use.registers, chip.registers_per_thread, "registers"),
            "more registers than a thread can have",
        ),
        (
            "registers_per_block",
            AtMost(registers_of_block(use, launch), chip.registers_per_sm, "registers"),
            f"{launch.threads} threads with {use.registers} registers each do not fit on an SM",
        ),
    )
    for name, need, reason in checks:
        if not need.holds:
            return Excess(name, need, reason)
    if blocks_per_sm(use, launch, chip) < 1:
        shared = AtMost(total + chip.shared_bytes_reserved, chip.shared_bytes_per_sm, "bytes")
        return Excess("shared_memory_per_sm", shared, "not even one block fits on an SM")
    return None
