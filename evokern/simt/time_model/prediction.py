"""Counters → predicted time: an analytic model that never sees a measured time of its kernel.

A walk with a clock per warp tells how long a block takes on an SM, in which its warps share the pipes (`timeline`). It
is multiplied by the waves that residency forces, and no SM is done before its busiest pipe, at the rates of the chip's
profile. What the whole chip has to bring from L2 or DRAM is set against that as a p-norm: loads hide behind work, but
never completely, for every SM loads first. Launch and drain are added, and the first wave's share of the bytes from
DRAM, behind which there is no other work yet.

Three constants are fitted, the same for every kernel and chip, to attention candidates measured on an H200:
`OVERLAP_EXPONENT` and `CO_RESIDENT_SHARE` to 390 at 2,8,512,64 (plain and causal), 2,8,128,64 and 8,8,512,64,
`SPILL_COST` to 160 at the first. README.md says how well the result predicts.

Counters come from a sample of blocks (`sample_blocks`); a block's mean stands for the whole grid where blocks do the
same work. Where they differ, the work of each is known from further blocks, and the SM that is done last is found by
placing all of them (`placement`): its own blocks make up its terms, and no other SM's idle time shortens them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evokern.hardware.profiles import Profile
from evokern.simt.arrays import Array
from evokern.simt.counters import Counters
from evokern.simt.time_model.latencies import latencies_of
from evokern.simt.time_model.pipes import SCHEDULERS, pipe_clocks
from evokern.simt.time_model.placement import GridWork, extrapolated, place

OVERLAP_EXPONENT = 1.5
"""Exponent that joins what an SM does with what the chip has to load: near their sum, for every SM loads first."""
CO_RESIDENT_SHARE = 0.25
"""Share of what other blocks of an SM want of its pipes that gets in the way of a block: they are out of step."""
SPILL_COST = 1e-3
"""Share by which a byte that a thread spills lengthens the kernel: local loads and stores that PTX does not show."""
DRAM_REACH = 0.8
"""Share of L2 that a working set may fill and still be found there by the next launch."""
ISSUE_PER_CLOCK = float(SCHEDULERS)
"""Warp instructions an SM issues a clock, one by each scheduler."""
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
    block_clocks: float
    """Mean time of a sampled block, SM clocks."""
    longest_clocks: float
    """Longest of them, SM clocks."""
    pipe_wait_clocks: float
    """Mean clocks of it that a warp waits for pipes; what is left is latency."""
    working_set_bytes: float
    """Bytes that the launch and those between its repetitions touch; beyond L2 they come from DRAM."""
    unique_bytes: float
    """Distinct bytes that the launch moves through DRAM when they are not in L2."""
    spill_bytes: int = 0
    """Bytes that a thread spills, as the assembler reports."""
    work: GridWork | None = None
    """What each block of the grid does, where blocks differ; the counters of sampled ones stand for it else."""
    clusters: Sequence[tuple[int, ...]] | None = None
    """Blocks of each cluster, which are resident together; None without clusters."""

    @property
    def ranks(self) -> int:
        """Blocks of a cluster."""
        return len(self.clusters[0]) if self.clusters else 1


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


def contention_factor(blocks: int, resident: int, chip: Profile, ranks: int = 1) -> float:
    """Return how many blocks' demands on the pipes of an SM a block meets there.

    Args:
        blocks: blocks of the grid.
        resident: blocks that an SM holds at once.
        chip: the chip.
        ranks: blocks of a cluster.
    """
    share, waves = _busiest(blocks, resident, chip, ranks)
    return 1 + CO_RESIDENT_SHARE * (share / waves - 1)


def _busiest(blocks: int, resident: int, chip: Profile, ranks: int) -> tuple[int, int]:
    """Return how many blocks the busiest SM gets, and in how many waves it runs them.

    A cluster begins where there is room for all of its blocks at once.
    """
    share = math.ceil(blocks / chip.sms)
    at_once = max(chip.sms * resident // ranks, 1)
    return share, max(math.ceil(share / resident), math.ceil(blocks / ranks / at_once))


def predict(facts: LaunchFacts, chip: Profile) -> Prediction:
    """Predict the time of one launch on a chip."""
    resident = max(facts.resident, 1)
    share, waves = _busiest(facts.blocks, resident, chip, facts.ranks)
    loaded = {"l2": _l2_us(facts, chip), "dram": _dram_us(facts, chip)}
    if facts.work is None:
        terms, sm_us = _any_sm(facts, share, waves, chip)
    else:
        terms, sm_us = _last_sm(facts, facts.work, resident, chip)
    launch = latencies_of(chip).launch_us
    hidden = _norm([max(loaded.values()), sm_us], OVERLAP_EXPONENT) * (1 + SPILL_COST * facts.spill_bytes)
    return Prediction(launch + loaded["dram"] / waves + hidden, {**terms, **loaded, "launch": launch})


def _any_sm(facts: LaunchFacts, share: int, waves: int, chip: Profile) -> tuple[dict[str, float], float]:
    """Return the terms of an SM with the most blocks, all blocks being equal, and when it is done; µs."""
    clocks = {name: work * share for name, work in block_clocks(facts.counters, chip).items()}
    walked = facts.longest_clocks if waves == 1 else waves * facts.block_clocks
    done = max(walked, *clocks.values())
    clocks["latency"] = max(walked - waves * facts.pipe_wait_clocks, 0.0)
    return {name: value / chip.clock_mhz for name, value in clocks.items()}, done / chip.clock_mhz


def _last_sm(facts: LaunchFacts, work: GridWork, resident: int, chip: Profile) -> tuple[dict[str, float], float]:
    """Return the terms of the SM that is done last, each block having its own work, and when it is done; µs."""
    busiest = np.max([*work.pipes.values()], axis=0)
    placed = place(work.clocks, np.maximum(work.clocks, busiest * resident), chip.sms, resident, facts.clusters)
    clocks = {name: np.bincount(placed.sm, of_blocks, chip.sms) for name, of_blocks in work.pipes.items()}
    done = np.maximum(placed.longest, np.max([*clocks.values()], axis=0))
    last = int(np.argmax(done))
    terms = {name: float(of_sms[last]) / chip.clock_mhz for name, of_sms in clocks.items()}
    waiting = min(facts.pipe_wait_clocks / max(facts.block_clocks, 1.0), 1.0)
    terms["latency"] = float(placed.longest[last]) * (1 - waiting) / chip.clock_mhz
    return terms, float(done[last]) / chip.clock_mhz


def fill(bytes_: int, chip: Profile) -> Prediction:
    """Predict a memset, or a copy from elsewhere on the chip, that stands before a launch in the same graph.

    It costs what an empty launch does, and its bytes at the rate of L2, or beyond what L2 holds at that of DRAM.
    """
    launch = latencies_of(chip).launch_us
    l2 = bytes_ / (chip.l2_bytes_per_clock_per_sm * chip.sms * chip.clock_mhz)
    dram = 0.0 if bytes_ <= DRAM_REACH * chip.l2_bytes else bytes_ / chip.dram_bytes_per_s * 1e6
    return Prediction(launch + max(l2, dram), {"l2": l2, "dram": dram, "launch": launch})


def total(predictions: Sequence[Prediction]) -> Prediction:
    """Return the prediction of launches that follow one another."""
    names = {name for prediction in predictions for name in prediction.terms_us}
    terms = {name: sum(prediction.terms_us.get(name, 0.0) for prediction in predictions) for name in sorted(names)}
    return Prediction(sum(prediction.time_us for prediction in predictions), terms)


def _norm(values: Sequence[float], exponent: float) -> float:
    joined: float = sum(value**exponent for value in values) ** (1 / exponent)
    return joined


def block_clocks(counters: Counters, chip: Profile) -> dict[str, float]:
    """Return, per pipe, the clocks that one block's work holds it on an SM."""
    sampled = max(len(counters.blocks) * counters.launches, 1)
    mean = np.full((1, len(counters.instructions)), 1 / sampled)
    return {name: float(clocks[0]) for name, clocks in _clocks(counters, mean, chip).items()}


def work_of(
    grid: tuple[int, int, int],
    counters: Counters,
    runs: Array,
    ends: Sequence[float],
    chip: Profile,
    lines: Sequence[int] | None = None,
) -> GridWork:
    """Return the work of every block of a grid.

    Args:
        grid: blocks along x, y, z.
        counters: of its `placement.line_blocks`, with the other blocks of their clusters.
        runs: their `placement.block_runs`; what an instruction did is shared by how often a block ran it.
        ends: clocks that each of them takes.
        chip: the chip.
        lines: the places of the `placement.line_blocks` among these; None where there are no others.
    """
    shares = runs / np.maximum(runs.sum(0), 1)
    if lines is not None:
        shares, ends = shares[list(lines)], [ends[at] for at in lines]
    pipes = {name: extrapolated(grid, clocks) for name, clocks in _clocks(counters, shares, chip).items()}
    sectors = shares @ (counters.load_sectors + counters.store_sectors)
    return GridWork(pipes, extrapolated(grid, ends), extrapolated(grid, sectors))


def _clocks(counters: Counters, shares: Array, chip: Profile) -> dict[str, Array]:
    """Return block_clocks of several blocks, each with its share (a row) of what every instruction did."""
    clocks = {name: shares @ of_instructions for name, of_instructions in pipe_clocks(counters, chip).items()}
    # Two pipes side by side, as wide as one another.
    clocks["integer"] = np.maximum(clocks["integer"], clocks.pop("multiply"))
    return clocks


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
