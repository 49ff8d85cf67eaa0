"""Counters → predicted time: an analytic model, one term per resource, that never sees a measured time of its kernel.

For the busiest SM, which gets ``ceil(blocks / SMs)`` blocks, each pipe's work is divided by its rate
(`profiles.Profile`); the latency of one block alone (`timeline`) is multiplied by the waves that residency forces.
Throughput and latency are combined as a p-norm: resident warps hide one behind the other, but never completely. Launch
and drain are added, and the first wave's share of the bytes from DRAM, behind which there is no other work yet.

Two constants are fitted, the same for every kernel and chip: `HIDE_NORM` over 182 attention candidates at 2,8,512,64 on
an H200 (96 random, 86 on mma_sync) and checked at three other shapes (README.md), `SPILL_COST` over 160 at that shape.

Counters come from a sample of blocks (`sample_blocks`); a block's mean stands for the whole grid where blocks do the
same work. Where they differ, the work of each is known from further blocks, and the SM that is done last is found by
placing all of them (`spread`): its own blocks make up its terms, and no other SM's idle time shortens them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evokern.profiles import Profile
from evokern.simt.arrays import Array
from evokern.simt.counters import Counters
from evokern.simt.latencies import FREE, latencies_of
from evokern.simt.pipes import SCHEDULERS, matrix_rate
from evokern.simt.spread import Work, extended, place

PIPE_NORM = 4.0
"""Exponent that joins the pipes: near the maximum, since pipes work side by side, above it where two are full."""
HIDE_NORM = 1.5
"""Exponent that joins throughput and latency: near their sum, for the few warps of a tuned kernel hide little."""
SPILL_COST = 1e-3
"""Share by which a byte that a thread spills lengthens the kernel: local loads and stores that PTX does not show."""
DRAM_REACH = 0.8
"""Share of L2 that a working set may fill and still be found there by the next launch."""
ISSUE_PER_CLOCK = float(SCHEDULERS)
"""Warp instructions an SM issues a clock, one by each scheduler."""
FP64_PER_CLOCK: Mapping[int, float] = {80: 32.0, 89: 2.0, 90: 64.0}
"""fp64 results a clock and SM (CUDA Programming Guide, "Arithmetic Instructions")."""
WIDENING = "cvt.f32.f16"
"""The conversion that becomes an addition of halves (HADD2.F32) and has its rate."""
EITHER_PIPE = frozenset({"add", "sub", "shl"})
"""Integer operations that the assembler gives to whichever pipe has room: the integer one, or the multiply-add one as
IMAD.IADD and IMAD.SHL. Machine code for sm_90 has about as many of one as of the other."""
MULTIPLIES = frozenset({"mul", "mad"})
"""Integer operations of the multiply-add pipe alone (IMAD), beside the integer pipe and as fast."""

CAUSES: Mapping[str, str] = {
    "tensor": "tensor-bound", "fp32": "arithmetic-bound", "fp16": "arithmetic-bound", "fp64": "arithmetic-bound",
    "integer": "arithmetic-bound", "sfu": "arithmetic-bound", "issue": "arithmetic-bound",
    "shared": "shared-memory-bound", "l1": "memory-bound", "l2": "memory-bound", "dram": "memory-bound",
    "latency": "latency-bound", "launch": "launch-bound",
}  # fmt: skip
"""Term → what a kernel is called that it bounds."""


@dataclass(frozen=True)
class LaunchFacts:
    """What the model needs to know of one launch."""

    blocks: int
    """Blocks of the grid."""
    resident: int
    """Blocks that an SM holds at once."""
    counters: Counters
    """Counters of the sampled blocks."""
    latency_clocks: float
    """Mean time of a sampled block alone, SM clocks."""
    longest_clocks: float
    """Longest of them, SM clocks."""
    working_set_bytes: float
    """Bytes that the launch and those between its repetitions touch; beyond L2 they come from DRAM."""
    unique_bytes: float
    """Distinct bytes that the launch moves through DRAM when they are not in L2."""
    spill_bytes: int = 0
    """Bytes that a thread spills, as the assembler reports."""
    work: Work | None = None
    """What each block of the grid does, where blocks differ; the counters of sampled ones stand for it else."""


@dataclass(frozen=True)
class Prediction:
    """A predicted time and its terms."""

    time_us: float
    """Predicted time of the launch, µs."""
    terms_us: Mapping[str, float]
    """Resource → the time it alone would take, µs."""

    @property
    def bound(self) -> str:
        """The largest term."""
        return max(self.terms_us, key=self.terms_us.__getitem__)

    @property
    def cause(self) -> str:
        """What a kernel with this bound is called."""
        return CAUSES[self.bound]


def sample_blocks(total: int, wanted: int) -> tuple[int, ...]:
    """Return block numbers spread evenly over the grid, the first and the last among them."""
    if total <= wanted:
        return tuple(range(total))
    if wanted == 1:
        return (total // 2,)
    return tuple(sorted({round(i * (total - 1) / (wanted - 1)) for i in range(wanted)}))


def predict(facts: LaunchFacts, chip: Profile) -> Prediction:
    """Predict the time of one launch on a chip."""
    waves = math.ceil(math.ceil(facts.blocks / chip.sms) / max(facts.resident, 1))
    shared_by_all = {"l2": _l2_us(facts, chip), "dram": _dram_us(facts, chip)}
    if facts.work is None:
        terms = _any_sm(facts, waves, chip) | shared_by_all
    else:
        terms = _last_sm(facts.work, max(facts.resident, 1), shared_by_all, chip) | shared_by_all
    launch = latencies_of(chip).launch_us
    hidden = _hidden(terms) * (1 + SPILL_COST * facts.spill_bytes)
    time = launch + terms["dram"] / waves + hidden
    return Prediction(time, {**terms, "launch": launch})


def _any_sm(facts: LaunchFacts, waves: int, chip: Profile) -> dict[str, float]:
    """Return the terms of an SM with the most blocks, all blocks being equal; µs."""
    share = math.ceil(facts.blocks / chip.sms)
    clocks = {name: work * share for name, work in block_clocks(facts.counters, chip).items()}
    clocks["latency"] = facts.longest_clocks if waves == 1 else waves * facts.latency_clocks
    return {name: value / chip.clock_mhz for name, value in clocks.items()}


def _last_sm(work: Work, resident: int, shared_by_all: Mapping[str, float], chip: Profile) -> dict[str, float]:
    """Return the terms of the SM that is done last, each block having its own work; µs."""
    beside_others = _norm([_norm([*work.pipes.values()], PIPE_NORM) * resident, work.latency], HIDE_NORM)
    placed = place(work.latency, beside_others, chip.sms, resident)
    clocks = {name: np.bincount(placed.sm, of_blocks, chip.sms) for name, of_blocks in work.pipes.items()}
    clocks["latency"] = placed.latency
    terms = {name: of_sms / chip.clock_mhz for name, of_sms in clocks.items()}
    last = int(np.argmax(_hidden(terms | dict(shared_by_all))))
    return {name: float(of_sms[last]) for name, of_sms in terms.items()}


def _hidden(terms: Mapping[str, Any]) -> Any:
    """Join throughput and latency, of one SM or of an array of them."""
    throughput = _norm([value for name, value in terms.items() if name != "latency"], PIPE_NORM)
    return _norm([throughput, terms["latency"]], HIDE_NORM)


def total(predictions: Sequence[Prediction]) -> Prediction:
    """Return the prediction of launches that follow one another."""
    names = {name for prediction in predictions for name in prediction.terms_us}
    terms = {name: sum(prediction.terms_us.get(name, 0.0) for prediction in predictions) for name in sorted(names)}
    return Prediction(sum(prediction.time_us for prediction in predictions), terms)


def _norm(values: Sequence[Any], exponent: float) -> Any:
    return sum(value**exponent for value in values) ** (1 / exponent)


def block_clocks(counters: Counters, chip: Profile) -> dict[str, float]:
    """Return, per pipe, the clocks that one block's work holds it on an SM."""
    sampled = max(len(counters.blocks) * counters.launches, 1)
    mean = np.full((1, len(counters.instructions)), 1 / sampled)
    return {name: float(clocks[0]) for name, clocks in _clocks(counters, mean, chip).items()}


def work_of(grid: tuple[int, int, int], counters: Counters, runs: Array, ends: Sequence[float], chip: Profile) -> Work:
    """Return the work of every block of a grid.

    Args:
        grid: blocks along x, y, z.
        counters: of its `spread.line_blocks`.
        runs: their `spread.block_runs`; what an instruction did is shared by how often a block ran it.
        ends: clocks that each of them takes alone.
        chip: the chip.
    """
    shares = runs / np.maximum(runs.sum(0), 1)
    pipes = {name: extended(grid, clocks) for name, clocks in _clocks(counters, shares, chip).items()}
    sectors = shares @ (counters.load_sectors + counters.store_sectors)
    return Work(pipes, extended(grid, ends), extended(grid, sectors))


def _clocks(counters: Counters, shares: Array, chip: Profile) -> dict[str, Array]:
    """Return block_clocks of several blocks, each with its share (a row) of what every instruction did."""
    issued = {name: shares @ counts for name, counts in _issued(counters).items()}
    generation = chip.compute_capability[0] * 10 + chip.compute_capability[1]
    fp32_lanes = chip.fp32_flops_per_clock / 2
    fp64_lanes = FP64_PER_CLOCK.get(generation, 2.0)
    sectors = shares @ (counters.load_sectors + counters.store_sectors + counters.local_bytes / 32)
    is_matrix = np.array([pipe == "tensor" for pipe in counters.pipes])
    is_copy = np.array(["cp.async" in text for text in counters.instructions])
    copied = counters.async_bytes * _part(shares, counters.load_sectors * is_copy)
    return {
        "issue": np.asarray(sum(issued.values())) / ISSUE_PER_CLOCK,
        "tensor": _tensor_clocks(counters, chip) * _part(shares, counters.warp_instructions * is_matrix),
        "fp32": issued["fp32"] * 32 / fp32_lanes,
        "fp16": issued["fp16"] * 32 / fp32_lanes,
        "fp64": issued["fp64"] * 32 / fp64_lanes,
        "integer": np.maximum(issued["integer"], issued["multiply"]) * 32 / chip.int32_per_clock,
        "sfu": issued["sfu"] * 32 / chip.sfu_per_clock,
        "shared": shares @ counters.shared_wavefronts + copied / 128,
        "l1": sectors / 4,
    }


def _part(shares: Array, events: Array) -> Array:
    """Return each block's part of the events of some instructions; an even one where there are none."""
    if not events.any():
        return np.full(len(shares), shares.mean())
    of_blocks: Array = shares @ (events / events.sum())
    return of_blocks


def _issued(counters: Counters) -> dict[str, Array]:
    """Return, per pipe of the machine, how often each instruction was issued to it."""
    names = ("tensor", "fp32", "fp16", "fp64", "sfu", "integer", "multiply", "either", "load_store", "control")
    totals = {name: np.zeros(len(counters.instructions)) for name in names}
    for number, (text, pipe) in enumerate(zip(counters.instructions, counters.pipes, strict=True)):
        name = text.split(" ", 2)[1 if text.startswith("@") else 0]
        opcode = name.split(".", 1)[0]
        if opcode not in FREE:
            totals[_machine_pipe(name, opcode, pipe)][number] = counters.warp_instructions[number]
    return totals


def _machine_pipe(name: str, opcode: str, pipe: str) -> str:
    """Return the pipe of what the assembler makes of an instruction, where it differs from the PTX instruction's."""
    if name == WIDENING:
        return "fp16"
    if pipe == "integer":
        return "multiply" if opcode in MULTIPLIES else "either" if opcode in EITHER_PIPE else pipe
    return pipe


def _tensor_clocks(counters: Counters, chip: Profile) -> float:
    return sum(flops / matrix_rate(name, chip) for name, (_, flops) in counters.mma.items())


def _l2_us(facts: LaunchFacts, chip: Profile) -> float:
    if facts.work is None:
        counters = facts.counters
        sampled = max(len(counters.blocks) * counters.launches, 1)
        sectors = float(counters.load_sectors.sum() + counters.store_sectors.sum()) / sampled * facts.blocks
    else:
        sectors = float(facts.work.sectors.sum())
    busy_sms = min(facts.blocks, chip.sms)
    return sectors * 32 / (chip.l2_bytes_per_clock_per_sm * busy_sms * chip.clock_mhz)


def _dram_us(facts: LaunchFacts, chip: Profile) -> float:
    if facts.working_set_bytes <= DRAM_REACH * chip.l2_bytes:
        return 0.0
    return facts.unique_bytes / chip.dram_bytes_per_s * 1e6
