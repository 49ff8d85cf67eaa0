"""Predicted time of a candidate from counters and latencies of sampled blocks of the full-size problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evokern.compile.build import tensors_of
from evokern.compile.launch_attributes import grid_excess
from evokern.compile.occupancy import blocks_per_sm
from evokern.compile.records import Built, EntryUse
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Launch, Problem, Tensor, Tolerance
from evokern.device.sim.failure import is_too_large, require_no_fault
from evokern.device.sim.program import BuiltPrograms, SimulatedProgram
from evokern.device.sim.stage import ProblemBuffers, judges_blocks
from evokern.errors import GridTooLargeError, InternalError
from evokern.gate import RunFailed
from evokern.hardware.profiles import Profile
from evokern.simt import Array, Counters, WriteRecord, members_of, recording
from evokern.simt import time_model as timemodel
from evokern.simt.time_model import PipeUse, Timeline, demands, holds, latencies_of
from evokern.study.settings import SimulationSettings, TimingSettings
from evokern.study.trial import Outcome

MODEL_MARGIN = 2.0
"""Amount added to the racing factor, because predicted times contain the error of the model."""


@dataclass(frozen=True)
class PredictedLaunch:
    """Prediction and counters of one launch."""

    prediction: timemodel.Prediction
    """Predicted time."""
    counters: Counters
    """Counters of the sampled blocks."""
    waits: Mapping[str, float]
    """Mean clocks that a warp waited, by cause."""
    instructions: Array
    """Predicted warp instructions of each block of the grid."""
    stalls: Mapping[int, float]
    """Instruction number → mean clocks that a warp waits there; only with `stalls`."""

    def expected(self, blocks: Sequence[int] | None) -> float:
        """Return the predicted warp instructions of blocks; None stands for all blocks."""
        return float(self.instructions.sum() if blocks is None else self.instructions[list(blocks)].sum())


@dataclass(frozen=True)
class Predicted:
    """Prediction of a candidate on one problem."""

    total: timemodel.Prediction
    """Predicted time of the whole call."""
    launches: tuple[PredictedLaunch, ...]
    """Predictions of the launches, in order."""
    sampled: str | None = None
    """Error in the results of the sampled blocks; None if they are correct or cannot be checked."""
    fills: tuple[timemodel.Prediction, ...] = ()
    """Predictions of the memsets and copies before the launches."""


class Predictor:
    """Predictor for candidates of one kernel on one chip; it keeps the buffers of the last problem."""

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
        """Create a predictor.

        Args:
            kernel: the kernel.
            chip: the chip.
            timing: timing settings; the cache mode determines the working set.
            simulation: sample sizes and limits.
            tolerance: tolerance of each output.
            stalls: record at which instructions warps wait.
        """
        self._stalls = stalls
        self._kernel, self._chip, self._tolerance = kernel, chip, tolerance
        self._timing, self._simulation = timing, simulation
        self._programs = BuiltPrograms(kernel, chip)
        self._stage: ProblemBuffers | None = None

    def program(self, config: Config, built: Built, problem: Problem) -> SimulatedProgram:
        """Return the program of a candidate for a problem; the most recent program is cached."""
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
        wanted: int | None = None,
    ) -> Predicted:
        """Predict the time of a candidate on a problem.

        Args:
            config: configuration of the candidate.
            built: programs of the candidate.
            problem: one of the problems that it was built for.
            limit_us: time above which the prediction stops.
            stage: buffers to use instead of the predictor's own.
            blocks: blocks to count for each launch, which may be idle; by default an evenly spread sample.
            wanted: number of blocks to count instead of the study's, with the instruction limit for long launches.

        Raises:
            RunFailed: the candidate crashed, hung, or is slower than the limit.
        """
        launches, uses = built.build(problem).launches, built.program(problem).uses
        stage = stage or self._stage_of(problem, tensors_of(self._kernel, config, problem))
        program = self.program(config, built, problem)
        judged = judges_blocks(self._kernel, problem, stage.tensors, program, launches)
        stage.reset()  # removes results of the previous candidate
        program.restore(stage.memory, every=True)
        counted = (
            [program.whole(one, of) for one, of in zip(launches, blocks, strict=True)]
            if blocks
            else [program.sample_blocks(one, wanted or self._simulation.blocks) for one in launches]
        )
        most = self._simulation.long_limit if wanted else self._simulation.instruction_limit
        parts = tuple(
            self._launch(stage, program, uses[launch.entry], launch, chosen, limit_us, most)
            for launch, chosen in zip(launches, counted, strict=True)
        )
        fault = stage.fault(self._kernel, self._tolerance, idle=bool(blocks)) if judged else None
        if fault:  # run the independent blocks again to find out which of them is wrong
            with recording(stage.memory, WriteRecord(stage.memory, by_block=True)) as record:
                program.launch(launches[0], stage.buffers, stage.memory, instruction_limit=most, blocks=counted[0],
                               sanitize=False)  # fmt: skip
            fault = stage.fault_by_block(self._kernel, self._tolerance, record, launches[0]) or fault
        fills = tuple(
            timemodel.predict_memset(bytes_, self._chip) for bytes_ in filled_bytes(built, problem, stage.tensors)
        )
        return Predicted(timemodel.total((*(part.prediction for part in parts), *fills)), parts, fault, fills)

    def predict_long(
        self,
        config: Config,
        built: Built,
        problem: Problem,
        limit_us: float | None = None,
        settled: Callable[[RunFailed], RunFailed] = lambda failed: failed,
    ) -> Predicted:
        """Predict the time of a candidate whose sample of blocks may exceed the instruction limit.

        If it does, one block is counted, or all blocks if it waits for others (`SimulatedProgram.launch`).

        Args:
            config: configuration of the candidate.
            built: programs of the candidate.
            problem: one of the problems that it was built for.
            limit_us: time above which the prediction stops.
            settled: function that decides whether a candidate that exceeds the limit hung.

        Raises:
            RunFailed: the candidate crashed, hung, is slower than the limit, or is too large even for one block.
        """
        try:
            return self.predict(config, built, problem, limit_us)
        except RunFailed as failed:
            first = settled(failed)
            if not is_too_large(first):
                raise first from None
        try:
            return self.predict(config, built, problem, limit_us, wanted=1)
        except RunFailed as failed:
            raise settled(failed) from None

    def _stage_of(self, problem: Problem, tensors: Mapping[str, Tensor]) -> ProblemBuffers:
        if self._stage is None or self._stage.key != (problem, tuple(tensors.items())):
            self._stage = None  # free the old buffers before allocating new ones
            self._stage = ProblemBuffers(problem, tensors)
        self._stage.tensors = dict(tensors)  # the candidate's bounds
        return self._stage

    def _launch(
        self, stage: ProblemBuffers, program: SimulatedProgram, use: EntryUse, launch: Launch, blocks: tuple[int, ...],
        limit_us: float | None, most: int,
    ) -> PredictedLaunch:  # fmt: skip
        chip = self._chip
        limit = self._instruction_limit(launch, len(blocks), limit_us, most)
        timed = limit < most
        if len(blocks) > self._simulation.blocks and most == self._simulation.instruction_limit:
            limit *= -(-len(blocks) // self._simulation.blocks)  # the limit applies to the study's number of blocks
        working_set = math.inf if self._timing.cache == "flush" else stage.bytes * self._timing.rotate_sets

        workspaces = sum(one.bytes for one in stage.tensors.values() if one.role == "workspace")  # written, then in L2
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
                unique_bytes=self._kernel.workload.bytes(stage.problem) + workspaces,
                spill_bytes=use.spill_bytes,
                clusters=members_of(launch.grid, cluster.extent) if cluster.blocks > 1 else None,
            )

        def too_slow(counters: Counters) -> bool:
            """Return whether the counters so far imply a time above the limit; no time component can decrease."""
            return limit_us is not None and timemodel.predict(facts(counters, (0.0,)), chip).time_us > limit_us

        def run(chosen: tuple[int, ...], limit: int, enough: Callable[[Counters], bool] | None) -> Counters:
            try:
                result = program.launch(
                    launch, stage.buffers, stage.memory,
                    instruction_limit=limit, blocks=chosen, sanitize=False, count=True, sample=True, enough=enough,
                )  # fmt: skip
            except GridTooLargeError as error:  # the exact limit of this chip
                excess = grid_excess(launch, resident, chip)
                raise RunFailed(Outcome.INFEASIBLE, excess.evidence if excess else error.evidence) from None
            if result.ended and limit_us is not None:
                raise _slow(f"part of a block's work alone takes longer than {limit_us:.3g} µs")
            if result.fatal is not None:
                if result.over_limit and timed:
                    raise _slow(f"the instructions of a block alone take longer than {limit_us:.3g} µs")
                require_no_fault(result, launch, limit, stage.problem, blocks=len(chosen))
            if result.counters is None:
                raise InternalError("the PTX machine returned no counters")
            return result.counters

        counters = run(blocks, limit, None if limit_us is None else too_slow)
        excess = grid_excess(launch, resident, chip) if program.needs_whole_grid(launch) else None
        if excess is not None:
            raise RunFailed(Outcome.INFEASIBLE, excess.evidence)
        latencies = latencies_of(chip)
        in_l2 = working_set <= timemodel.DRAM_REACH * chip.l2_bytes
        entry = program.entry(launch)
        factor = timemodel.contention_factor(launch.blocks, resident, chip, cluster.blocks)
        shared = demands(entry, counters, chip, factor)
        timeline = Timeline(
            entry, latencies, counters.conflicts() | counters.sleeps(chip.clock_mhz),
            latencies.l2 if in_l2 else latencies.dram, PipeUse(holds(entry, counters, chip), shared, use.products_wait),
        )  # fmt: skip
        warps, ranks = counters.warps_per_block, counters.ranks
        walks = [timeline.walk(record, warps, ranks=ranks, stalls=self._stalls) for record in counters.record]
        stalls = {
            number: sum(walk.stalls.get(number, 0.0) for walk in walks) / len(walks)
            for number in sorted({number for walk in walks for number in walk.stalls})
        }
        waits = {cause: sum(walk.waits[cause] for walk in walks) / len(walks) for cause in walks[0].waits}
        found = facts(counters, [end for walk in walks for end in walk.blocks], waits["pipes"])
        runs = timemodel.block_runs(entry, counters)
        instructions: Array = np.full(launch.blocks, runs.sum(1).mean())
        # Which blocks merge parts depends on the order in which they end, not on their places.
        merges = any(item.opcode == "atom" and item.has("inc") for item in entry.instructions)
        if not timemodel.are_equal(runs) and not merges:
            # The blocks ended within the limit. A batch that runs them again with others needs a proportionally larger
            # one.
            lines = timemodel.line_blocks(launch.grid)
            chosen, more = program.whole(launch, lines), counters
            if not set(chosen) <= set(counters.blocks):
                with stage.undisturbed():
                    more = run(chosen, limit * len(chosen), None)
            every = timemodel.block_runs(entry, more)
            at = [more.blocks.index(block) for block in lines]
            if timemodel.predicts_samples(launch.grid, every[at], counters.blocks, runs):
                ends = [end for part in more.record for end in timeline.walk(part, warps, ranks=ranks).blocks]
                instructions = timemodel.extrapolated(launch.grid, every[at].sum(1))
                found = replace(found, work=timemodel.work_of(launch.grid, more, every, ends, chip, at))
        return PredictedLaunch(timemodel.predict(found, chip), counters, waits, instructions, stalls)

    def _instruction_limit(self, launch: Launch, blocks: int, limit_us: float | None, most: int) -> int:
        """Return the instruction limit at which issuing alone takes as long as the time limit; at most `most`."""
        if limit_us is None:
            return most
        warps = -(-launch.threads // 32)
        share = -(-launch.blocks // self._chip.sms)
        of_warp = limit_us * self._chip.clock_mhz * timemodel.ISSUE_PER_CLOCK / (share * warps)
        # The limit is doubled because it also counts PTX instructions that are free in the time model.
        return min(most, int(2 * of_warp * max(warps * blocks, 32)) + 100_000)


def filled_bytes(built: Built, problem: Problem, tensors: Mapping[str, Tensor]) -> Iterator[int]:
    """Yield the sizes of fills before the launches of a call; each fill is a node of the timed graph.

    Fills are zeroed workspaces, `__constant__` arrays that hold a tensor, and variables with declared state.
    """
    for tensor in tensors.values():
        if tensor.role == "constant" or (tensor.role == "workspace" and tensor.initial == "zero"):
            yield tensor.bytes
    if built.variables:
        yield from (one.size for one in built.variables[built.build(problem).program] if one.restored is not None)


def _slow(message: str) -> RunFailed:
    return RunFailed(Outcome.SLOW, {"message": message})
