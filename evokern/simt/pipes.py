"""For how long one warp instruction holds a pipe of its SM: rates of the chip's profile, per instruction.

An SM has four schedulers, each with a quarter of the tensor and special-function pipes to itself (CUDA Programming
Guide, "Hardware Multithreading"; throughputs: "Arithmetic Instructions" and `profiles`). Shared memory serves one
wavefront a clock for all four, and the port to L2 a fixed number of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evokern.profiles import Profile
from evokern.simt.counters import SECTOR, Counters
from evokern.simt.latencies import SPECIAL
from evokern.simt.operations.matrix_ops import shape_of
from evokern.simt.program import Program
from evokern.simt.syntax import Instruction

SCHEDULERS = 4
"""Schedulers of an SM, each of which issues a warp instruction a clock."""
_SAME_OPERAND = {"u8": "s8", "e5m2": "e4m3"}
_NO_TYPE = frozenset({"sync", "aligned", "row", "col", "mma", "satfinite"})


@dataclass(frozen=True, slots=True)
class Hold:
    """A pipe and for how long one instruction of a warp that runs alone holds it."""

    pipe: str
    """`tensor`, `sfu`, `shared` or `global`."""
    clocks: float
    """SM clocks."""


def tensor_rate(kinds: tuple[str, ...], chip: Profile) -> float:
    """Return the operations a clock and SM of a matrix instruction.

    Args:
        kinds: its types: of the result, of both operands, of the accumulator. A `wmma` on f16 leaves the operands' out.
        chip: the chip.
    """
    accumulator, operand = kinds[0], kinds[1] if len(kinds) > 2 else "f16"
    operand = _SAME_OPERAND.get(operand, operand)
    rates = chip.tensor_flops_per_clock
    return rates.get(f"{operand}->{accumulator}") or rates.get(f"{operand}->f32") or min(rates.values())


def holds(program: Program, counters: Counters, chip: Profile) -> dict[int, Hold]:
    """Return instruction → the pipe that it holds for more than the clock of its issue."""
    found: dict[int, Hold] = {}
    runs = np.maximum(counters.warp_instructions, 1)
    wavefronts = counters.shared_wavefronts / runs
    l2_clocks = (counters.load_sectors + counters.store_sectors) / runs * SECTOR / chip.l2_bytes_per_clock_per_sm
    for number, instruction in enumerate(program.instructions):
        if wavefronts[number] > 1:
            found[number] = Hold("shared", float(wavefronts[number]))
        elif l2_clocks[number] > 1:
            found[number] = Hold("global", float(l2_clocks[number]))
        elif counters.pipes[number] == "tensor" and not instruction.has("load", "store"):
            if instruction.opcode in ("mma", "wmma"):
                found[number] = Hold("tensor", _tensor_clocks(instruction, chip))
        elif instruction.opcode in SPECIAL:
            found[number] = Hold("sfu", 32 * SCHEDULERS / chip.sfu_per_clock)
    return found


def _tensor_clocks(instruction: Instruction, chip: Profile) -> float:
    m, n, k = shape_of(instruction)
    kinds = [word for word in instruction.modifiers if word not in _NO_TYPE][1:]
    return 2.0 * m * n * k * SCHEDULERS / tensor_rate(tuple(kinds), chip)
