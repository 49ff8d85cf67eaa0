"""Predicted time of a candidate: counters and latencies from sampled blocks of the study's own problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evokern.compile.build import tensors_of
from evokern.compile.occupancy import blocks_per_sm
from evokern.compile.records import Built, EntryUse
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Launch, Problem, Tensor, Tolerance
from evokern.device.sim.failure import failure
from evokern.device.sim.program import BuiltPrograms, SimulatedProgram
from evokern.device.sim.stage import ProblemBuffers, judges_blocks
from evokern.errors import InternalError
from evokern.gate import RunFailed
from evokern.hardware.profiles import Profile
from evokern.simt.arrays import Array
from evokern.simt.clusters.layout import members_of
from evokern.simt.counters import Counters
from evokern.simt.time_model import placement as spread
from evokern.simt.time_model import prediction as timemodel
from evokern.simt.time_model.latencies import latencies_of
from evokern.simt.time_model.pipes import demands, holds
from evokern.simt.time_model.timeline import Timeline
from evokern.study.settings import SimulationSettings, TimingSettings
from evokern.study.trial import Outcome

MODEL_MARGIN = 2.0
"""Added to the racing factor: a predicted time is a bound only within the model's error, so racing leaves more room."""


@dataclass(frozen=True)
class PredictedLaunch:
    """What is known of one of its launches."""

    prediction: timemodel.Prediction
    """Its predicted time."""
    counters: Counters
    """Counters of its sampled blocks."""
    waits: Mapping[str, float]
    """Mean clocks that a warp waited, by cause."""
    instructions: Array
    """Warp instructions of each block of its grid, as the prediction takes them to be."""
    stalls: Mapping[int, float]
    """Instruction number → mean clocks that a warp waits at it, where the predictor was asked."""

    def expected(self, blocks: Sequence[int] | None) -> float:
        """Return the warp instructions that blocks take by the prediction; None stands for all blocks."""
        return float(self.instructions.sum() if blocks is None else self.instructions[list(blocks)].sum())


@dataclass(frozen=True)
class Predicted:
    """What is known of a candidate at one problem."""

    total: timemodel.Prediction
    """Predicted time of the whole call."""
    launches: tuple[PredictedLaunch, ...]
    """Its launches, in order."""
    sampled: str | None = None
    """What is wrong with the results of the blocks that were run; None where they are right or cannot be judged."""
    fills: tuple[timemodel.Prediction, ...] = ()
    """Prediction of each memset and copy before the launches."""


class Predictor:
    """Predicts candidates of one kernel on one chip; keeps the buffers of the last problem."""

    def __init__(
        self,
        kernel: Kernel,
        chip: Profile,
        timing: TimingSettings,
        simulation: SimulationSettings,
        tolerance: Mapping[str, Tolerance],
        *,
        stalls: bool = False,
    ) -> None:
        """Make a predictor.

        Args:
            kernel: the kernel.
            chip: the chip.
            timing: how times are measured there, caches above all.
            simulation: how much is run.
            tolerance: tensor → what its answers may be off.
            stalls: note which instructions warps wait at.
        """
        self._stalls = stalls
        self._kernel, self._chip, self._tolerance = kernel, chip, tolerance
        self._timing, self._simulation = timing, simulation
        self._programs = BuiltPrograms(kernel, chip)
        self._stage: ProblemBuffers | None = None

    def program(self, config: Config, built: Built, problem: Problem) -> SimulatedProgram:
        """Return the program of a candidate at a problem; the last one is kept."""
        return self._programs.parsed(built.program(problem), config)

    def predict(
        self,
        config: Config,
        built: Built,
        problem: Problem,
        limit_us: float | None = None,
        *,
        stage: ProblemBuffers | None = None,
        blocks: Sequence[tuple[int, ...]] = (),
    ) -> Predicted:
        """Predict a candidate at a problem.

        Args:
            config: its configuration.
            built: its programs.
            problem: one of the problems it was built for.
            limit_us: time beyond which it does not matter how slow it is.
            stage: other buffers than the predictor's own.
            blocks: for each launch the blocks to count, which may have nothing to do; by default some that are spread
                evenly.

        Raises:
            RunFailed: it crashed, does not end, or is slower than the limit.
        """
        launches, uses = built.build(problem).launches, built.program(problem).uses
        stage = stage or self._stage_of(problem, tensors_of(self._kernel, config, problem))
        program = self.program(config, built, problem)
        judged = judges_blocks(self._kernel, problem, stage.tensors, program, launches)
        stage.reset()  # whatever the candidate before left
        program.restore(stage.memory, every=True)
        counted = (
            [program.cluster(one).whole(one.grid, of) for one, of in zip(launches, blocks, strict=True)]
            if blocks
            else [program.sample_blocks(one, self._simulation.blocks) for one in launches]
        )
        parts = tuple(
            self._launch(stage, program, uses[launch.entry], launch, chosen, limit_us)
            for launch, chosen in zip(launches, counted, strict=True)
        )
        fault = stage.fault(self._kernel, self._tolerance, idle=bool(blocks)) if judged else None
        fills = tuple(timemodel.fill(bytes_, self._chip) for bytes_ in filled_bytes(built, problem, stage.tensors))
        return Predicted(timemodel.total((*(part.prediction for part in parts), *fills)), parts, fault, fills)

    def _stage_of(self, problem: Problem, tensors: Mapping[str, Tensor]) -> ProblemBuffers:
        if self._stage is None or self._stage.key != (problem, tuple(tensors.items())):
            self._stage = None  # the old buffers go before the new ones come
            self._stage = ProblemBuffers(problem, tensors)
        return self._stage

    def _launch(
        self, stage: ProblemBuffers, program: SimulatedProgram, use: EntryUse, launch: Launch, blocks: tuple[int, ...],
        limit_us: float | None,
    ) -> PredictedLaunch:  # fmt: skip
        chip = self._chip
        limit = self._instruction_limit(launch, len(blocks), limit_us)
        if len(blocks) > self._simulation.blocks:  # the study's limit is meant for its own number of blocks
            limit *= -(-len(blocks) // self._simulation.blocks)
        working_set = math.inf if self._timing.cache == "flush" else stage.bytes * self._timing.rotate_sets

        resident, cluster = max(blocks_per_sm(use, launch, chip), 1), program.cluster(launch)

        def facts(counters: Counters, ends: Sequence[float], pipe_wait: float = 0.0) -> timemodel.LaunchFacts:
            return timemodel.LaunchFacts(
                blocks=launch.blocks,
                resident=resident,
                counters=counters,
                block_clocks=sum(ends) / len(ends),
                longest_clocks=max(ends),
                pipe_wait_clocks=pipe_wait,
                working_set_bytes=working_set,
                unique_bytes=self._kernel.workload.bytes(stage.problem),
                spill_bytes=use.spill_bytes,
                clusters=members_of(launch.grid, cluster.extent) if cluster.blocks > 1 else None,
            )

        def too_slow(counters: Counters) -> bool:
            """Tell whether what was counted so far takes too long by itself; every term grows with the counters."""
            return limit_us is not None and timemodel.predict(facts(counters, (0.0,)), chip).time_us > limit_us

        def run(chosen: tuple[int, ...], most: int, enough: Callable[[Counters], bool] | None) -> Counters:
            result = program.launch(
                launch, stage.buffers, stage.memory,
                instruction_limit=most, blocks=chosen, sanitize=False, count=True, enough=enough,
            )  # fmt: skip
            if result.ended and limit_us is not None:
                raise _slow(f"part of what a block does takes longer than {limit_us:.3g} µs")
            if result.fatal is not None:
                if result.hung and limit_us is not None and most < self._simulation.instruction_limit:
                    raise _slow(f"the instructions of a block alone take longer than {limit_us:.3g} µs")
                raise failure(result.fatal, most, stage.problem)
            if result.counters is None:
                raise InternalError("the PTX machine returned no counters")
            return result.counters

        counters = run(blocks, limit, None if limit_us is None else too_slow)
        latencies = latencies_of(chip)
        in_l2 = working_set <= timemodel.DRAM_REACH * chip.l2_bytes
        entry = program.entry(launch)
        timeline = Timeline(
            entry, latencies, counters.conflicts(), latencies.l2 if in_l2 else latencies.dram,
            holds(entry, counters, chip),
            demands(entry, counters, chip, timemodel.contention_factor(launch.blocks, resident, chip, cluster.blocks)),
            products_wait=use.products_wait,
        )  # fmt: skip
        warps, ranks = counters.warps_per_block, counters.ranks
        walks = [timeline.walk(record, warps, ranks=ranks, stalls=self._stalls) for record in counters.record]
        stalls = {
            number: sum(walk.stalls.get(number, 0.0) for walk in walks) / len(walks)
            for number in sorted({number for walk in walks for number in walk.stalls})
        }
        waits = {cause: sum(walk.waits[cause] for walk in walks) / len(walks) for cause in walks[0].waits}
        found = facts(counters, [end for walk in walks for end in walk.blocks], waits["pipes"])
        runs = spread.block_runs(entry, counters)
        instructions: Array = np.full(launch.blocks, runs.sum(1).mean())
        if not spread.are_equal(runs):
            # Blocks ended within the limit, and are run again beside others: a batch of them has as much more to do.
            lines = spread.line_blocks(launch.grid)
            chosen = cluster.whole(launch.grid, lines)
            with stage.undisturbed():
                more = run(chosen, limit * len(chosen), None)
            every = spread.block_runs(entry, more)
            at = [more.blocks.index(block) for block in lines]
            if spread.explains(launch.grid, every[at], blocks, runs):
                ends = [end for part in more.record for end in timeline.walk(part, warps, ranks=ranks).blocks]
                instructions = spread.extrapolated(launch.grid, every[at].sum(1))
                found = replace(found, work=timemodel.work_of(launch.grid, more, every, ends, chip, at))
        return PredictedLaunch(timemodel.predict(found, chip), counters, waits, instructions, stalls)

    def _instruction_limit(self, launch: Launch, blocks: int, limit_us: float | None) -> int:
        """Return how many warp instructions may run: issuing alone must not take longer than the limit."""
        if limit_us is None:
            return self._simulation.instruction_limit
        warps = -(-launch.threads // 32)
        share = -(-launch.blocks // self._chip.sms)
        of_warp = limit_us * self._chip.clock_mhz * timemodel.ISSUE_PER_CLOCK / (share * warps)
        # Free instructions of PTX count here though not in the model: twice the room keeps the bound safe.
        return min(self._simulation.instruction_limit, int(2 * of_warp * max(warps * blocks, 32)) + 100_000)


def filled_bytes(built: Built, problem: Problem, tensors: Mapping[str, Tensor]) -> Iterator[int]:
    """Yield the sizes of what is filled before the launches of a call, each by a node of its own in the timed graph.

    Zeroed workspaces, `__constant__` arrays that hold a tensor, and variables whose state is declared.
    """
    for tensor in tensors.values():
        if tensor.role == "constant" or (tensor.role == "workspace" and tensor.initial == "zero"):
            yield tensor.bytes
    if built.variables:
        yield from (one.size for one in built.variables[built.build(problem).program] if one.restored is not None)


def _slow(message: str) -> RunFailed:
    return RunFailed(Outcome.SLOW, {"message": message})
