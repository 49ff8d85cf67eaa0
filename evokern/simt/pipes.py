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
from evokern.simt.operations.matrix_ops import matrix_name, operations_of, shape_of
from evokern.simt.program import Program
from evokern.simt.syntax import Instruction, Vector

SCHEDULERS = 4
"""Schedulers of an SM, each of which issues a warp instruction a clock."""
_SAME_OPERAND = {"u8": "s8", "e5m2": "e4m3"}
_OPERAND_BYTES_PER_CLOCK = 128.0
"""What shared memory delivers to the tensor cores of an SM a clock: one wavefront."""


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


def matrix_rate(name: str, chip: Profile) -> float:
    """Return the operations a clock and SM of a matrix instruction, given what counters call it.

    Those of warpgroups, and no others, reach the peak of the chip.
    """
    shape, *kinds = name.split(".")
    return chip.tensor_peak_flops_per_clock if shape.startswith("m64") else tensor_rate(tuple(kinds), chip)


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
            if instruction.opcode in ("mma", "wmma", "wgmma"):
                found[number] = Hold("tensor", _tensor_clocks(instruction, chip))
        elif instruction.opcode in SPECIAL:
            found[number] = Hold("sfu", 32 * SCHEDULERS / chip.sfu_per_clock)
    return found


def _tensor_clocks(instruction: Instruction, chip: Profile) -> float:
    """Return the clocks of one product on a quarter of the tensor pipe.

    A product of a warpgroup takes N / 2 clocks at full rate, or as long as its factors take to come from shared memory:
    with A there too and N below 64 that is longer (16 + N / 4). Luo et al. (arXiv 2402.13499) measured both: 128 clocks
    for m64n256k16, 32 for m64n64k16.
    """
    clocks = operations_of(instruction) * SCHEDULERS / matrix_rate(matrix_name(instruction.modifiers), chip)
    if instruction.opcode == "wgmma":
        m, n, k = shape_of(instruction)
        elements = n * k + (0 if isinstance(instruction.operands[1], Vector) else m * k)
        clocks = max(clocks, 2 * elements / _OPERAND_BYTES_PER_CLOCK)
    return clocks
