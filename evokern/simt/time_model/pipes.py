"""Times for which one warp instruction occupies a pipe of its SM, from the rates in the chip's profile.

An SM has four schedulers. Each has its own quarter of the tensor and special-function pipes (CUDA Programming Guide,
"Hardware Multithreading"; throughputs: "Arithmetic Instructions" and `profiles`). Shared memory serves one wavefront
per clock for all four, and the port to L2 a fixed number of bytes per clock.

A warp that runs alone can use a quarter of a pipe (`holds`); all warps together share the whole pipe (`pipe_clocks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evokern.hardware.profiles import Profile
from evokern.ptx.matrix_shapes import matrix_name, operations_of, shape_of
from evokern.ptx.program import PtxProgram
from evokern.ptx.syntax import Instruction, Vector
from evokern.simt.arrays import Array
from evokern.simt.counters import SECTOR, Counters
from evokern.simt.time_model.latencies import FREE, SPECIAL

SCHEDULERS = 4
"""Schedulers of an SM; each issues one warp instruction per clock."""
NAMES = (
    "issue", "tensor", "fp32", "fp16", "fp64", "integer", "multiply", "sfu", "shared", "l1", "l2"
)  # fmt: skip
"""Pipes of an SM, in the order of the rows of `Demands`."""
TENSOR, L2 = NAMES.index("tensor"), NAMES.index("l2")
FP64_PER_CLOCK: Mapping[int, float] = {80: 32.0, 89: 2.0, 90: 64.0}
"""fp64 results per clock and SM, by compute capability × 10 (CUDA Programming Guide, "Arithmetic Instructions").

A missing generation silently uses `FP64_ELSEWHERE`.
"""
FP64_ELSEWHERE = 2.0
"""fp64 results per clock and SM for other generations: the rate of chips that are not designed for fp64."""
WIDENING = "cvt.f32.f16"
"""Conversion that the assembler replaces with an addition of halves (HADD2.F32), at the rate of that addition."""
EITHER_PIPE = frozenset({"add", "sub", "shl"})
"""Integer operations that the assembler assigns to the integer pipe or, as IMAD.IADD and IMAD.SHL, to the multiply-add
pipe, whichever is free; machine code for sm_90 uses both about equally."""
MULTIPLIES = frozenset({"mul", "mad"})
"""Integer operations on the multiply-add pipe (IMAD), which is separate from the integer pipe and equally fast."""
COMPARES = frozenset({"min", "max"})
"""fp32 operations on the integer pipe (FMNMX)."""
PARTIAL_WRITE = 2.0
"""Further sectors that L2 transfers for the write of a part of a sector: it reads the sector, and writes it again.

On an H200, stores of C that filled half of each sector took 2.2 to 2.5 clocks per sector and SM. Whole sectors took
0.76 clocks."""
_SAME_OPERAND = {"u8": "s8", "e5m2": "e4m3"}
_RELATIVE_RATE = {"tf32": 0.5, "e4m3": 2.0, "e5m2": 2.0, "s8": 2.0, "u8": 2.0}
"""Rate of products by operand type, relative to fp16; their energy is assumed to be inversely proportional to it."""
_OPERAND_BYTES_PER_CLOCK = 128.0
"""Bytes per clock that shared memory delivers to the tensor cores of an SM: one wavefront."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Pipe, and the time for which an instruction occupies this pipe if the warp runs alone."""

    pipe: str
    """`tensor`, `sfu`, `shared` or `global`."""
    clocks: float
    """SM clocks."""


@dataclass(frozen=True)
class Demands:
    """Clocks for which one execution of each instruction by a warp occupies the pipes of the SM."""

    in_line: Array
    """Clocks on each pipe (a row, in the order of `NAMES`) per instruction, without background work."""
    copies: Array
    """Clocks for which an asynchronous copy occupies the port to L2 in the background."""
    contention_factor: float
    """Number of blocks whose demands compete on an SM (1 for a block alone); included in the clocks above."""


@dataclass(frozen=True)
class PipeUse:
    """Use of the pipes of an SM by the instructions of a launch."""

    holds: Mapping[int, Hold] = field(default_factory=dict)
    """Instruction number → the pipe that it occupies, and for how long."""
    demands: Demands | None = None
    """Demand of instructions for the pipes that all warps share; None without contention."""
    products_wait: bool = False
    """Whether each product of a warpgroup starts only after the previous one has ended."""


def demands(program: PtxProgram, counters: Counters, chip: Profile, contention_factor: float = 1.0) -> Demands:
    """Return the pipe clocks that instructions take on an SM, computed from mean counters.

    Args:
        program: the program that ran.
        counters: its counters.
        chip: the chip.
        contention_factor: number of blocks whose demands compete on an SM; 1 for a block alone on its SM.
    """
    found = pipe_clocks(counters, chip)
    runs = np.maximum(counters.warp_instructions, 1) / contention_factor
    found["l2"] = _port_clocks(counters, chip)
    in_line = np.stack([found[name] for name in NAMES]) / runs
    is_copy = np.array([instruction.opcode == "cp" for instruction in program.instructions])
    is_product = np.array([instruction.opcode == "wgmma" for instruction in program.instructions])
    copies = np.where(is_copy, in_line[L2], 0.0)
    in_line[L2, is_copy] = 0.0
    in_line[TENSOR, is_product] = 0.0
    return Demands(in_line, copies, contention_factor)


def pipe_clocks(counters: Counters, chip: Profile) -> dict[str, Array]:
    """Return, for each pipe of an SM, the clocks for which all executions of each instruction occupy the pipe."""
    issued = _issued(counters)
    generation = chip.compute_capability[0] * 10 + chip.compute_capability[1]
    fp32_lanes = chip.fp32_flops_per_clock / 2
    fp64_lanes = FP64_PER_CLOCK.get(generation, FP64_ELSEWHERE)
    sectors = counters.load_sectors + counters.store_sectors + counters.local_bytes / 32
    return {
        "issue": np.asarray(sum(issued.values())) / SCHEDULERS,
        "tensor": _tensor_clocks(counters, chip),
        "fp32": issued["fp32"] * 32 / fp32_lanes,
        "fp16": issued["fp16"] * 32 / fp32_lanes,
        "fp64": issued["fp64"] * 32 / fp64_lanes,
        "integer": issued["integer"] * 32 / chip.int32_per_clock,
        "multiply": issued["multiply"] * 32 / chip.int32_per_clock,
        "sfu": _special_operations(counters, issued["sfu"]) * 32 / chip.sfu_per_clock,
        "shared": counters.shared_wavefronts,
        "l1": sectors / 4,
    }


def tensor_rate(kinds: tuple[str, ...], chip: Profile) -> float:
    """Return the operations per clock and SM of a matrix instruction.

    Args:
        kinds: types of the result, of both operands, and of the accumulator. A `wmma` on f16 omits the operands' types.
        chip: the chip.
    """
    accumulator, operand = kinds[0], kinds[1] if len(kinds) > 2 else "f16"
    operand = _SAME_OPERAND.get(operand, operand)
    rates = chip.tensor_flops_per_clock
    return rates.get(f"{operand}->{accumulator}") or rates.get(f"{operand}->f32") or min(rates.values())


def matrix_rate(name: str, chip: Profile) -> float:
    """Return the operations per clock and SM of a matrix instruction, given its name in the counters.

    Only warpgroup instructions reach the peak of the chip.
    """
    shape, *kinds = name.split(".")
    if shape.startswith("m64"):
        return chip.tensor_peak_flops_per_clock * _of_width(kinds)
    return tensor_rate(tuple(kinds), chip)


def _of_width(kinds: Sequence[str]) -> float:
    """Return the rate of a matrix instruction relative to one on fp16, given its types."""
    return _RELATIVE_RATE.get(kinds[1] if len(kinds) > 2 else "f16", 1.0)


def sustained_us(counters: Counters, chip: Profile) -> float:
    """Return the time that the counted arithmetic takes if it alone draws the power limit of the chip, in µs."""
    products = sum(flops / _of_width(name.split(".")[1:]) for name, (_, flops) in counters.mma.items())
    work = {"f16": products, "f32": 64.0 * counters.by_pipe()["fp32"]}  # an FMA counts as two
    return sum(1e6 * done / chip.sustained_flops[kind] for kind, done in work.items() if kind in chip.sustained_flops)


def holds(program: PtxProgram, counters: Counters, chip: Profile) -> dict[int, Hold]:
    """Return a map from each instruction to the pipe that the instruction occupies for longer than one issue slot."""
    found: dict[int, Hold] = {}
    runs = np.maximum(counters.warp_instructions, 1)
    wavefronts = counters.shared_wavefronts / runs
    l2_clocks = _port_clocks(counters, chip) / runs
    for number, instruction in enumerate(program.instructions):
        if wavefronts[number] > 1:
            found[number] = Hold("shared", float(wavefronts[number]))
        elif l2_clocks[number] > 1 and instruction.opcode != "cp":
            found[number] = Hold("global", float(l2_clocks[number]))
        elif counters.pipes[number] == "tensor" and not instruction.has("load", "store"):
            if instruction.opcode in ("mma", "wmma", "wgmma"):
                found[number] = Hold("tensor", _product_clocks(instruction, chip))
        elif instruction.opcode in SPECIAL:
            found[number] = Hold("sfu", _of_special(instruction.text) * 32 * SCHEDULERS / chip.sfu_per_clock)
    return found


def _product_clocks(instruction: Instruction, chip: Profile) -> float:
    """Return the clocks of one product on a quarter of the tensor pipe.

    A product of a warpgroup takes N / 2 clocks at full rate. If both operands come from shared memory and N is below
    64, their transfer takes longer (16 + N / 4). Luo et al. (arXiv 2402.13499) measured both: 128 clocks for
    m64n256k16, 32 for m64n64k16.
    """
    clocks = operations_of(instruction) * SCHEDULERS / matrix_rate(matrix_name(instruction.modifiers), chip)
    if instruction.opcode == "wgmma":
        m, n, k = shape_of(instruction)
        elements = n * k + (0 if isinstance(instruction.operands[1], Vector) else m * k)
        clocks = max(clocks, 2 * elements / _OPERAND_BYTES_PER_CLOCK)
    return clocks


def _issued(counters: Counters) -> dict[str, Array]:
    """Return, for each pipe of the machine, the number of times that each instruction was issued to it."""
    names = ("tensor", "fp32", "fp16", "fp64", "sfu", "integer", "multiply", "either", "load_store", "control")
    totals = {name: np.zeros(len(counters.instructions)) for name in names}
    for number, (text, pipe) in enumerate(zip(counters.instructions, counters.pipes, strict=True)):
        name = _name(text)
        opcode = name.split(".", 1)[0]
        if opcode not in FREE:
            totals[_machine_pipe(name, opcode, pipe)][number] = counters.warp_instructions[number]
    return totals


def _name(text: str) -> str:
    """Return the name of an instruction with its modifiers, from its text."""
    return text.split(" ", 2)[1 if text.startswith("@") else 0].rstrip(";")


def _machine_pipe(name: str, opcode: str, pipe: str) -> str:
    """Return the pipe of the machine instruction if it differs from that of the PTX instruction."""
    if name == WIDENING:
        return "fp16"
    if pipe == "fp32" and opcode in COMPARES:
        return "integer"
    if pipe == "integer":
        return "multiply" if opcode in MULTIPLIES else "either" if opcode in EITHER_PIPE else pipe
    return pipe


def l2_sectors(counters: Counters) -> Array:
    """Return the sectors that L2 transfers for all executions of each instruction, as a number of whole sectors.

    A store that fills half of each sector has twice the minimum number of sectors.
    """
    partial = np.minimum(counters.store_sectors, 2 * (counters.store_sectors - counters.ideal_store_sectors))
    found: Array = counters.load_sectors + counters.store_sectors + PARTIAL_WRITE * partial
    return found


def _port_clocks(counters: Counters, chip: Profile) -> Array:
    """Return the clocks for which all executions of each instruction occupy an SM's port to L2.

    Every block that gets a multicast receives its bytes at its own port.
    """
    sectors = l2_sectors(counters) + counters.multicast_sectors
    clocks: Array = sectors * SECTOR / chip.l2_bytes_per_clock_per_sm
    return clocks


def _tensor_clocks(counters: Counters, chip: Profile) -> Array:
    """Return the clocks for which all executions of each instruction occupy the tensor pipe."""
    clocks = {name: flops / count / matrix_rate(name, chip) for name, (count, flops) in counters.mma.items() if count}
    of_one = [
        clocks.get(matrix_name(_name(text).split(".")[1:]), 0.0) if pipe == "tensor" else 0.0
        for text, pipe in zip(counters.instructions, counters.pipes, strict=True)
    ]
    result: Array = counters.warp_instructions * np.array(of_one)
    return result


def _special_operations(counters: Counters, issued: Array) -> Array:
    """Return the number of warp operations on the special-function pipe."""
    result: Array = issued * np.array([_of_special(text) for text in counters.instructions])
    return result


def _of_special(text: str) -> int:
    """Return the number of operations of an instruction on the special-function pipe; a pair of halves needs two."""
    return 2 if "f16x2" in text else 1
