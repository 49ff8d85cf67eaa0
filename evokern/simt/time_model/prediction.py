"""Prediction of the time from counters, with an analytic model that uses no measured time of the kernel.

The warp schedule simulation returns the time of a block on an SM, whose pipes its warps share (`timeline`). This time
is multiplied by the number of waves. An SM takes at least as long as its busiest pipe, at the rates in the chip's
profile. A p-norm combines the time of the SM with the time for the L2 and DRAM traffic of the whole chip. Loads overlap
with work, but never completely, because every SM loads first. Finally, launch and drain are added, and the first wave's
share of the DRAM traffic, which no work can hide. If bulk copies load most data, work hides traffic completely, because
the schedule already contains the waits for them. If the launch then draws more than the power limit, a lower clock
stretches this time.

Three constants, the same for every kernel and chip, are fitted to attention candidates measured on an H200:
`OVERLAP_EXPONENT` and `CO_RESIDENT_SHARE` to 390 candidates at 2,8,512,64 (plain and causal), 2,8,128,64 and
8,8,512,64, and `SPILL_COST` to 160 at the first shape. README.md reports the accuracy.

Counters come from a sample of blocks (`sample_blocks`). If blocks do the same work, their mean represents the whole
grid. Otherwise additional blocks determine the work of each block. All blocks are then placed on SMs (`placement`),
and the blocks on the last SM to finish determine the components of the time.
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
from evokern.simt.time_model.pipes import SCHEDULERS, l2_sectors, pipe_clocks, sustained_us
from evokern.simt.time_model.placement import GridWork, extrapolated, place

OVERLAP_EXPONENT = 1.5
"""Exponent that combines the SM's time with that of the chip's traffic; nearly a sum, because every SM loads first."""
CO_RESIDENT_SHARE = 0.25
"""Share of the other blocks' pipe demand that delays a block; less than 1, because blocks are out of step."""
SPILL_COST = 1e-3
"""Relative slowdown of the kernel per byte that a thread spills; PTX does not show these local loads and stores."""
REPEATED = 36
"""Launches of a run that the power limit may slow down, as in the public benchmark of matrix products (`profiles`)."""
POWER_BOUND = 1.05
"""Minimum slowdown by the power limit at which it is a component of the time."""
DRAM_REACH = 0.8
"""Maximum share of L2 for a working set that is still in L2 at the next launch."""
ISSUE_PER_CLOCK = float(SCHEDULERS)
"""Warp instructions that an SM issues per clock, one per scheduler."""
CAUSES: Mapping[str, str] = {
    "tensor": "tensor-bound", "fp32": "arithmetic-bound", "fp16": "arithmetic-bound", "fp64": "arithmetic-bound",
    "integer": "arithmetic-bound", "sfu": "arithmetic-bound", "issue": "arithmetic-bound",
    "shared": "shared-memory-bound", "l1": "memory-bound", "l2": "memory-bound", "dram": "memory-bound",
    "latency": "latency-bound", "launch": "launch-bound", "power": "power-bound",
}  # fmt: skip
"""Component of the time → name of a kernel that it bounds."""


@dataclass(frozen=True, kw_only=True)
class LaunchFacts:
    """Input of the time model for one launch."""

    blocks: int
    """Blocks of the grid."""
    resident: int
    """Blocks that an SM holds at once."""
    counters: Counters
    """Counters of the sampled blocks."""
    block_clocks: float
    """Mean time of a sampled block, SM clocks."""
    longest_clocks: float
    """Longest time of a sampled block, SM clocks."""
    pipe_wait_clocks: float
    """Mean clocks per block in which a warp waits for pipes; all other clocks are latency."""
    working_set_bytes: float
    """Bytes that the launch, and launches between its repetitions, access; bytes beyond L2's size come from DRAM."""
    unique_bytes: float
    """Distinct bytes that the launch transfers from or to DRAM if they are not in L2."""
    spill_bytes: int = 0
    """Bytes that each thread spills, as reported by the assembler."""
    work: GridWork | None = None
    """Work of each block of the grid if blocks differ; otherwise the counters of the sampled blocks represent all
    blocks."""
    clusters: Sequence[tuple[int, ...]] | None = None
    """Blocks of each cluster, which are resident together; None without clusters."""

    @property
    def ranks(self) -> int:
        """Number of blocks in a cluster."""
        return len(self.clusters[0]) if self.clusters else 1


@dataclass(frozen=True)
class Prediction:
    """Predicted time and its components."""

    time_us: float
    """Predicted time of the launch, µs."""
    terms_us: Mapping[str, float]
    """Resource → time in µs that its work alone would take."""

    @property
    def bound(self) -> str:
        """Name of the largest component."""
        return max(self.terms_us, key=self.terms_us.__getitem__)

    @property
    def cause(self) -> str:
        """Label of a kernel with this bottleneck, such as `memory-bound`."""
        return CAUSES[self.bound]


def sample_blocks(total: int, wanted: int) -> tuple[int, ...]:
    """Return block ids spread evenly over the grid, including the first and the last block."""
    if total <= wanted:
        return tuple(range(total))
    if wanted == 1:
        return (total // 2,)
    return tuple(sorted({round(i * (total - 1) / (wanted - 1)) for i in range(wanted)}))


def contention_factor(blocks: int, resident: int, chip: Profile, ranks: int = 1) -> float:
    """Return the effective number of blocks that compete for an SM's pipes.

    Args:
        blocks: blocks of the grid.
        resident: blocks that an SM holds at once.
        chip: the chip.
        ranks: blocks of a cluster.
    """
    share, waves = _busiest(blocks, resident, chip, ranks)
    return 1 + CO_RESIDENT_SHARE * (share / waves - 1)


def _busiest(blocks: int, resident: int, chip: Profile, ranks: int) -> tuple[int, int]:
    """Return the number of blocks on the busiest SM, and the number of waves in which it runs them.

    A cluster starts when there is space for all of its blocks in one GPC.
    """
    share = math.ceil(blocks / chip.sms)
    at_once = chip.clusters_at_once(ranks, resident)
    return share, max(math.ceil(share / resident), math.ceil(blocks / ranks / at_once))


def predict(facts: LaunchFacts, chip: Profile) -> Prediction:
    """Predict the time of one launch on a chip."""
    resident = max(facts.resident, 1)
    share, waves = _busiest(facts.blocks, resident, chip, facts.ranks)
    loaded = {"l2": _l2_us(facts, chip), "dram": _dram_us(facts, chip)}
    if facts.work is None:
        terms, sm_us = _busiest_sm(facts, share, waves, chip)
    else:
        terms, sm_us = _last_sm(facts, facts.work, resident, chip)
    launch = latencies_of(chip).launch_us
    if facts.ranks > 1:  # the last block starts after all others
        starts = facts.blocks * latencies_of(chip).cluster_start
        sm_us = max(sm_us, (starts + facts.block_clocks) / chip.clock_mhz)
    first, hidden = loaded["dram"] / waves, _norm([max(loaded.values()), sm_us], OVERLAP_EXPONENT)
    if _loads_in_bulk(facts.counters):  # the schedule already includes the bytes and latencies of these copies
        first, hidden = 0.0, max(*loaded.values(), sm_us)
    time_us = launch + first + hidden * (1 + SPILL_COST * facts.spill_bytes)
    return _powered(time_us, {**terms, **loaded, "launch": launch}, facts, chip)


def _loads_in_bulk(counters: Counters) -> bool:
    """Return whether bulk copies load most sectors."""
    is_bulk = np.array(["cp.async.bulk" in text for text in counters.instructions])
    return bool(2 * counters.load_sectors[is_bulk].sum() > counters.load_sectors.sum())


def _powered(time_us: float, terms: dict[str, float], facts: LaunchFacts, chip: Profile) -> Prediction:
    """Return the prediction for a run of `REPEATED` launches, whose mean power determines the clock.

    Launches that wait stay below the limit, and short launches end before it takes effect. Otherwise, the clock falls
    until the power equals the limit. The exponent is the share of the run that is slowed down.
    """
    power = sustained_us(facts.counters, chip) / max(len(facts.counters.blocks) * facts.counters.launches, 1)
    if not power:
        return Prediction(time_us, terms)
    if facts.work is None:
        power *= facts.blocks
    else:
        power *= float(facts.work.pipes["issue"].sum()) / block_clocks(facts.counters, chip)["issue"]
    slowed = max(0.0, 1 - chip.power_delay_us / REPEATED / time_us)
    slowdown = max(1.0, power / time_us) ** slowed
    time_us *= slowdown
    return Prediction(time_us, {**terms, "power": time_us} if slowdown >= POWER_BOUND else terms)


def _busiest_sm(facts: LaunchFacts, share: int, waves: int, chip: Profile) -> tuple[dict[str, float], float]:
    """Return the time components of an SM with the most blocks, and when it ends, in µs, for equal blocks."""
    clocks = {name: work * share for name, work in block_clocks(facts.counters, chip).items()}
    walked = facts.longest_clocks if waves == 1 else waves * facts.block_clocks
    done = max(walked, *clocks.values())
    clocks["latency"] = max(walked - waves * facts.pipe_wait_clocks, 0.0)
    return {name: value / chip.clock_mhz for name, value in clocks.items()}, done / chip.clock_mhz


def _last_sm(facts: LaunchFacts, work: GridWork, resident: int, chip: Profile) -> tuple[dict[str, float], float]:
    """Return the time components of the last SM to finish, and when it ends, in µs, for blocks with different work."""
    busiest = np.max([*work.pipes.values()], axis=0)
    durations, at_once = np.maximum(work.clocks, busiest * resident), chip.clusters_at_once(facts.ranks, resident)
    placed = place(work.clocks, durations, chip.sms, resident, facts.clusters, at_once)
    clocks = {name: np.bincount(placed.sm, of_blocks, chip.sms) for name, of_blocks in work.pipes.items()}
    done = np.maximum(placed.longest, np.max([*clocks.values()], axis=0))
    last = int(np.argmax(done))
    terms = {name: float(of_sms[last]) / chip.clock_mhz for name, of_sms in clocks.items()}
    waiting = min(facts.pipe_wait_clocks / max(facts.block_clocks, 1.0), 1.0)
    terms["latency"] = float(placed.longest[last]) * (1 - waiting) / chip.clock_mhz
    return terms, float(done[last]) / chip.clock_mhz


def predict_memset(bytes_: int, chip: Profile) -> Prediction:
    """Predict the time of a memset, or of a copy within the chip, that precedes a launch in a timed graph.

    It takes as long as an empty launch plus the transfer of its bytes at the rate of L2. Bytes beyond the size of L2
    move at the rate of DRAM.
    """
    launch = latencies_of(chip).launch_us
    l2 = bytes_ / (chip.l2_bytes_per_clock_per_sm * chip.sms * chip.clock_mhz)
    dram = 0.0 if bytes_ <= DRAM_REACH * chip.l2_bytes else bytes_ / chip.dram_bytes_per_s * 1e6
    return Prediction(launch + max(l2, dram), {"l2": l2, "dram": dram, "launch": launch})


def total(predictions: Sequence[Prediction]) -> Prediction:
    """Return the joint prediction for consecutive launches."""
    names = {name for prediction in predictions for name in prediction.terms_us}
    terms = {name: sum(prediction.terms_us.get(name, 0.0) for prediction in predictions) for name in sorted(names)}
    return Prediction(sum(prediction.time_us for prediction in predictions), terms)


def _norm(values: Sequence[float], exponent: float) -> float:
    joined: float = sum(value**exponent for value in values) ** (1 / exponent)
    return joined


def block_clocks(counters: Counters, chip: Profile) -> dict[str, float]:
    """Return, for each pipe of an SM, the clocks for which the work of one block occupies the pipe."""
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
    """Return the work of every block in a grid.

    Args:
        grid: blocks along x, y, z.
        counters: counters of its `placement.line_blocks`, with the other blocks of their clusters.
        runs: `placement.block_runs` of these blocks; each instruction's counts are divided in proportion to them.
        ends: clocks of each of these blocks.
        chip: the chip.
        lines: indices of the `placement.line_blocks` among these; None if there are no others.
    """
    shares = runs / np.maximum(runs.sum(0), 1)
    if lines is not None:
        shares, ends = shares[list(lines)], [ends[at] for at in lines]
    pipes = {name: extrapolated(grid, clocks) for name, clocks in _clocks(counters, shares, chip).items()}
    sectors = shares @ l2_sectors(counters)
    return GridWork(pipes, extrapolated(grid, ends), extrapolated(grid, sectors))


def _clocks(counters: Counters, shares: Array, chip: Profile) -> dict[str, Array]:
    """Return the `block_clocks` of several blocks, given each block's share (a row) of every instruction's counts."""
    clocks = {name: shares @ of_instructions for name, of_instructions in pipe_clocks(counters, chip).items()}
    # The two pipes are separate and equally wide.
    clocks["integer"] = np.maximum(clocks["integer"], clocks.pop("multiply"))
    return clocks


def _l2_us(facts: LaunchFacts, chip: Profile) -> float:
    if facts.work is None:
        counters = facts.counters
        sampled = max(len(counters.blocks) * counters.launches, 1)
        sectors = float(l2_sectors(counters).sum()) / sampled * facts.blocks
    else:
        sectors = float(facts.work.sectors.sum())
    busy_sms = min(facts.blocks, chip.sms)
    return sectors * 32 / (chip.l2_bytes_per_clock_per_sm * busy_sms * chip.clock_mhz)


def _dram_us(facts: LaunchFacts, chip: Profile) -> float:
    if facts.working_set_bytes <= DRAM_REACH * chip.l2_bytes:
        return 0.0
    return facts.unique_bytes / chip.dram_bytes_per_s * 1e6
