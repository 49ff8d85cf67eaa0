"""How long the dependent instructions of a segment take at least, in cycles.

A nominal table of the sm_80 to sm_90 generation, from published micro-benchmarks: H. Abdelkhalik and others, "Demystifying the
Nvidia Ampere Architecture through Microbenchmarking and Instruction-level Analysis" (arXiv 2208.11174), W. Luo and others,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking" (arXiv 2402.13499). The instructions here
are PTX, not machine code, so the result is an estimate that compares candidates, not a measurement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evokern.simt.operations.table import Operation, pipe_of
from evokern.simt.syntax import Address, Instruction, Operand, Pair, Register, Vector

if TYPE_CHECKING:
    from evokern.simt.program import Program, Segment

CYCLES: dict[str, float] = {
    "integer": 4, "fp32": 4, "fp16": 5, "fp64": 16, "sfu": 18, "tensor": 32, "control": 8, "shared": 27, "ldmatrix": 30,
    "shfl": 23, "global": 250, "local": 35, "param": 4, "const": 8, "barrier": 20, "atomic": 300,
}  # fmt: skip
"""From issue to the first dependent instruction; global loads as L2 hits."""


def latency_of(instruction: Instruction, operation: Operation) -> float:
    """Return the cycles until an instruction's result can be used."""
    if operation.pipe == "load_store":
        if instruction.opcode in ("shfl", "ldmatrix"):
            return CYCLES[instruction.opcode]
        if instruction.opcode in ("atom",):
            return CYCLES["shared"] * 3 if instruction.has("shared") else CYCLES["atomic"]
        if instruction.opcode in ("ld", "ldu", "wmma"):
            for space in ("shared", "local", "param", "const"):
                if any(word.startswith(space) for word in instruction.modifiers):
                    return CYCLES[space]
            return CYCLES["global"]
        return 1
    if operation.kind == "control":
        return CYCLES["barrier"] if instruction.opcode in ("bar", "barrier") else CYCLES["control"]
    return CYCLES[pipe_of(instruction, operation)]


def _names(operand: Operand | None) -> list[str]:
    if isinstance(operand, Register):
        return [operand.name]
    if isinstance(operand, Address):
        return _names(operand.base) if isinstance(operand.base, Register) else []
    if isinstance(operand, Vector):
        return [name for item in operand.items for name in _names(item)]
    if isinstance(operand, Pair):
        return _names(operand.first) + _names(operand.second)
    return []


def segment_latency(program: Program, segment: Segment) -> float:
    """Return the length of the longest chain through a segment, one instruction issued a cycle."""
    ready: dict[str, float] = {}
    end = 0.0
    issue = 0.0
    for position in range(segment.start, segment.stop):
        number = segment.base + position - segment.start
        instruction, operation = program.instructions[number], program.operations[number]
        results = min(operation.results, len(instruction.operands))
        sources = [name for operand in instruction.operands[results:] for name in _names(operand)]
        if operation.pipe == "load_store" and results == 0:
            sources = []
        start = max([issue, *(ready.get(name, 0.0) for name in sources)])
        finish = start + latency_of(instruction, operation)
        for operand in instruction.operands[:results]:
            for name in _names(operand):
                ready[name] = finish
        end = max(end, finish if results or operation.kind == "control" else start + 1)
        issue += 1
    return end
