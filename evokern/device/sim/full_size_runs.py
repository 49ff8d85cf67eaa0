"""Runs of some or all blocks of a candidate, on one of the study's problems or on a smaller problem.

`evokern.device.sim.full_size_check` decides which blocks run.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from evokern.compile.build import tensors_of
from evokern.compile.module_state import state_evidence
from evokern.compile.records import CompileFailure
from evokern.declaration.as_data.golden import SomeOutputs
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Launch, Problem, Tensor, Tolerance
from evokern.declaration.render import Rendered, render
from evokern.device.sim import coverage
from evokern.device.sim.coverage import Coverage
from evokern.device.sim.failure import require_no_fault
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.device.sim.recount import Ran
from evokern.device.sim.stage import ProblemBuffers, has_reference
from evokern.errors import UsageError
from evokern.gate import RunFailed
from evokern.gate.comparison import allowed_error
from evokern.hardware.profiles import Profile
from evokern.simt import NO_PATHS, Cluster, Paths, WriteRecord, cluster_numbers, recording
from evokern.study.settings import SimulationSettings
from evokern.study.trial import Outcome
from evokern.wording import distinguishing_digits

WHOLE_INSTRUCTIONS = 15_000_000
"""Instruction budget of a new best on the study's problem, in warp instructions: about ten seconds on one core. A core
executes 1.0 to 4.2 million per second, depending on the number of lanes that run together."""
LEAST_LIMIT = 2 * WHOLE_INSTRUCTIONS
"""Smallest instruction limit of a batch of blocks, so that a run within the budget ends."""
SANITIZED_INSTRUCTIONS = 1_500_000
"""Maximum number of warp instructions of blocks that a candidate's check on a problem runs under the sanitizer."""
COUNTED = 2
"""Number of blocks to count on a problem without a prediction."""


@dataclass(frozen=True)
class FullSizeResult:
    """Results of a candidate on one of the study's problems."""

    fault_evidence: Mapping[str, Any] | None
    """Evidence of a failed check, or None."""
    blocks: int = 0
    """Number of distinct blocks that ran, over all launches."""
    of: int = 0
    """Number of blocks of all launches."""
    judged: bool = False
    """Whether the written elements were compared with the reference."""
    coverage: Mapping[str, Coverage] = field(default_factory=dict)
    """Coverage by output."""
    scaled: Problem | None = None
    """Scaled-down problem on which all blocks ran; None if none was needed."""
    ran: tuple[Ran, ...] = ()
    """Runs of blocks on the problem."""
    paths: Paths = NO_PATHS
    """Paths that the blocks took, if they were recorded."""

    @property
    def covered(self) -> bool:
        """Whether every output is known to be completely written."""
        return bool(self.coverage) and all(one.complete for one in self.coverage.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "blocks": self.blocks, "of": self.of, "judged": self.judged, "covered": self.covered,
            "coverage": coverage.as_json(self.coverage), **({"scaled": self.scaled.key} if self.scaled else {}),
        }  # fmt: skip


@dataclass(frozen=True)
class CandidateCall:
    """Candidate on a problem, with its program, launches and tensors."""

    problem: Problem
    """Problem of the call."""
    program: SimulatedProgram
    """Program for the problem."""
    launches: tuple[Launch, ...]
    """Launches of the call."""
    tensors: Mapping[str, Tensor]
    """Declarations of the buffers."""

    @property
    def blocks(self) -> int:
        """Number of blocks of all launches."""
        return sum(launch.blocks for launch in self.launches)

    def sampled(self, rng: random.Random) -> tuple[int, ...]:
        """Return representative blocks of the first launch (see `coverage.sample`), completed to whole clusters."""
        launch = self.launches[0]
        cluster = self.program.cluster(launch)
        return cluster.members(launch.grid, coverage.sample(cluster.grid_of(launch.grid), rng))

    def placed(self, places: Sequence[tuple[float, float, float]]) -> tuple[int, ...]:
        """Return the blocks of the first launch at relative places of its grid, completed to whole clusters."""
        launch = self.launches[0]
        cluster = self.program.cluster(launch)
        grid = cluster.grid_of(launch.grid)
        at = [[int(share * extent) for share, extent in zip(place, grid, strict=True)] for place in places]
        return cluster.members(launch.grid, sorted({x + grid[0] * (y + grid[1] * z) for x, y, z in at}))

    def drawn(self, most: int, rng: random.Random, known: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the given blocks plus some at random places of the first launch, in order and as whole clusters."""
        launch = self.launches[0]
        return drawn_blocks(launch.grid, self.program.cluster(launch), most, rng, known)


class OwnProblemRuns:
    """Runner for candidates of one kernel on one chip; it keeps the buffers of recent problems."""

    def __init__(
        self,
        kernel: Kernel,
        chip: Profile,
        simulation: SimulationSettings,
        tolerance: Mapping[str, Tolerance],
        secret: int,
        *,
        thorough: bool = False,
    ) -> None:
        """Create a runner.

        Args:
            kernel: the kernel.
            chip: the simulated chip.
            simulation: limits of a launch.
            tolerance: tolerance of each output.
            secret: seed of the study for inputs.
            thorough: whether references may take several seconds.
        """
        self.kernel = kernel
        """Kernel of the candidates."""
        self.chip = chip
        """Simulated chip."""
        self.secret = secret
        """Seed of the study."""
        self.tolerance = tolerance
        """Tolerance of each output."""
        self._simulation, self._thorough = simulation, thorough
        self._stages: dict[Problem, ProblemBuffers] = {}

    def call(self, config: Config, problem: Problem, like: tuple[Rendered, SimulatedProgram] | None) -> CandidateCall:
        """Return a candidate's call on a problem; compile the candidate unless its program is known.

        Args:
            config: configuration of the candidate.
            problem: the problem.
            like: a rendered source and its program, reused if the candidate's rendered source is the same.

        Raises:
            RunFailed: the candidate does not compile there.
        """
        rendered = render(self.kernel, config, problem)
        if like is not None and like[0] == rendered:
            program = like[1]
        else:
            made = compile_simulated(rendered, self.chip)
            if isinstance(made, CompileFailure):
                evidence = {"log": made.log[:8000], "message": f"{made.message} (at {problem})"}
                raise RunFailed(Outcome.COMPILE_ERROR, evidence)
            program = made
        tensors = tensors_of(self.kernel, config, problem)
        return CandidateCall(problem, program, launches_of(self.kernel, config, problem), tensors)

    def counted(self, call: CandidateCall) -> list[float]:
        """Return the warp instructions of an average block of each launch, estimated from a few blocks.

        Raises:
            RunFailed: a block crashed or hung.
        """
        stage, each, limit = self._stage(call), [], self._simulation.long_limit
        call.program.restore(stage.memory, every=True)
        for launch in call.launches:
            blocks = call.program.sample_blocks(launch, COUNTED)
            result = call.program.launch(
                launch, stage.buffers, stage.memory, instruction_limit=limit, blocks=blocks, sanitize=False, count=True
            )
            require_no_fault(result, launch, limit, call.problem, blocks=len(blocks))
            assert result.counters is not None  # count=True was passed
            each.append(float(result.counters.warp_instructions.sum()) / len(blocks))
        return each

    def instructions(self, config: Config, problem: Problem) -> float | None:
        """Return the warp instructions of a candidate on a problem, estimated from a few blocks; None if unknown."""
        try:
            call = self.call(config, problem, None)
            return sum(each * one.blocks for each, one in zip(self.counted(call), call.launches, strict=True))
        except (RunFailed, UsageError):
            return None

    def sampled(
        self,
        call: CandidateCall,
        blocks: tuple[int, ...],
        known: Sequence[int] = (),
        covered: Mapping[str, Coverage] | None = None,
        *,
        sanitize: bool = False,
    ) -> FullSizeResult:
        """Run some blocks of a candidate with one launch and independent blocks.

        Args:
            call: the candidate.
            blocks: linear ids of the blocks; whole clusters.
            known: blocks that ran before and count as run.
            covered: known coverage of each output; None derives it from these blocks.
            sanitize: also look for races and uninitialised data.

        Raises:
            RunFailed: a block crashed or hung, or the sanitizer found an error.
        """
        stage, (launch,) = self._stage(call), call.launches
        with recording(stage.memory, WriteRecord(stage.memory, by_block=True)) as record:
            ran, _ = self._run(call, stage, blocks, sanitize=sanitize)
        found = dict(covered or {})
        cluster = call.program.cluster(launch)
        of_block, grid = cluster_numbers(launch.grid, cluster.extent), cluster.grid_of(launch.grid)
        for name, tensor in call.tensors.items():
            if tensor.role == "output" and covered is None:
                by, elements = record.elements(stage.buffers[name], tensor.bytes // tensor.elements)
                clusters = np.unique(of_block[list(blocks)]).tolist()
                found[name] = coverage.extrapolated(grid, clusters, of_block[by], elements, tensor.elements)
        judged = has_reference(self.kernel, call.problem, call.tensors, thorough=self._thorough)
        message = stage.fault_by_block(self.kernel, self.tolerance, record, launch) if judged else None
        against = _wrong(message, call.problem) if message else None
        return FullSizeResult(against, len({*blocks, *known}), call.blocks, judged, found, ran=ran)

    def whole(
        self, call: CandidateCall, scaled: Problem | None = None, *, sanitize: bool = False, record_paths: bool = False
    ) -> FullSizeResult:
        """Run all blocks of all launches.

        Args:
            call: the candidate.
            scaled: the scaled-down problem of the call; None for one of the study's problems.
            sanitize: also look for races and uninitialised data.
            record_paths: record the rounds of loops and the sides of branches.

        Raises:
            RunFailed: a block crashed or hung, or the sanitizer found an error.
        """
        stage = self._stage(call)
        with recording(stage.memory, WriteRecord(stage.memory, by_block=False)) as record:
            ran, paths = self._run(call, stage, None, sanitize=sanitize, record_paths=record_paths)
        marks = stage.written(record)
        found = {
            name: Coverage(int(marks[name].sum()), tensor.elements, certain=True)
            for name, tensor in call.tensors.items()
            if tensor.role == "output"
        }
        judged = has_reference(self.kernel, call.problem, call.tensors, thorough=self._thorough)
        against = next(
            (coverage.evidence(name, one, call.problem, "") for name, one in found.items() if not one.complete), None
        )
        if against is None and (left := call.program.changed(stage.memory)):
            against = state_evidence(left, call.problem, self.kernel.state, call.program.variables)
        if against is None and judged:
            for name, tensor in call.tensors.items():
                if tensor.role == "inout":
                    marks[name][:] = True  # unchanged elements are results too and are compared
                    found[name] = Coverage(tensor.elements, tensor.elements, certain=True)
            message = stage.fault(self.kernel, self.tolerance, marks, "its blocks")
            if message and len(call.launches) == 1 and ran[0].warp_instructions <= SANITIZED_INSTRUCTIONS:
                stage = self._stage(call)  # run a cheap launch again to find out which block is wrong
                with recording(stage.memory, WriteRecord(stage.memory, by_block=True)) as stores:
                    self._run(call, stage, None, sanitize=False)
                launch = call.launches[0]
                message = stage.fault_by_block(self.kernel, self.tolerance, stores, launch, "its blocks") or message
            against = _wrong(message, call.problem) if message else None
        return FullSizeResult(against, call.blocks, call.blocks, judged, found, scaled, ran, paths)

    def compared(
        self, call: CandidateCall, blocks: tuple[int, ...], known: SomeOutputs
    ) -> tuple[dict[str, Any] | None, int]:
        """Run some blocks, and compare their outputs with known ones; return evidence, and the number compared.

        Raises:
            RunFailed: a block crashed or hung.
        """
        stage, compared = self._stage(call), 0
        with recording(stage.memory, WriteRecord(stage.memory, by_block=False)) as record:
            self._run(call, stage, blocks, sanitize=False)
        for name, marks in stage.written(record).items():
            both = marks[known.elements[name]]
            elements, expected = known.elements[name][both], known.values[name][torch.from_numpy(both)]
            got = stage.values(name)[torch.from_numpy(elements)].to(torch.float64)
            allowed = allowed_error(self.tolerance[name].for_tensor(call.tensors[name]), expected, None)
            wrong = ~((got - expected).abs() <= allowed) & ~((got != got) & (expected != expected))
            compared += len(elements)
            if wrong.any():
                first = int(wrong.nonzero()[0, 0])
                shown = distinguishing_digits(float(got[first]), float(expected[first]))
                place = [int(at) for at in np.unravel_index(elements[first], call.tensors[name].shape)]
                message = (
                    f"{int(wrong.sum())} of {len(got)} elements of {name!r} in sampled blocks are wrong; the first, "
                )
                message += f"{name}{place}, is {shown[0]} instead of {shown[1]} within {float(allowed[first]):.3g}"
                return _wrong(message, call.problem), compared
        return None, compared

    def buffers(self, problem: Problem, tensors: Mapping[str, Tensor]) -> ProblemBuffers:
        """Return the buffers of a problem in their initial state."""
        stage = self._stages.get(problem)
        if stage is None or stage.key != (problem, tuple(tensors.items())):
            if len(self._stages) > 2:
                self._stages.clear()  # free the old buffers before allocating new ones
            seed = int.from_bytes(hashlib.sha256(f"{self.secret} inputs".encode()).digest()[:7], "big")
            stage = self._stages[problem] = ProblemBuffers(problem, tensors, seed=seed)
        stage.tensors = dict(tensors)  # the candidate's bounds
        stage.reset()
        return stage

    def _stage(self, call: CandidateCall) -> ProblemBuffers:
        return self.buffers(call.problem, call.tensors)

    def _run(
        self, call: CandidateCall, stage: ProblemBuffers, blocks: tuple[int, ...] | None, *, sanitize: bool,
        record_paths: bool = False,
    ) -> tuple[tuple[Ran, ...], Paths]:  # fmt: skip
        ran, paths = [], NO_PATHS
        call.program.restore(stage.memory, every=True)
        for number, launch in enumerate(call.launches):
            # The limit applies to a batch of blocks. Blocks of the expected average size end well before it.
            limit = max(self._simulation.long_limit, LEAST_LIMIT)
            result = call.program.launch(
                launch, stage.buffers, stage.memory, instruction_limit=limit, blocks=blocks, sanitize=sanitize,
                until_error=True, record_paths=record_paths,
            )  # fmt: skip
            require_no_fault(result, launch, limit, call.problem, blocks=None if blocks is None else len(blocks))
            paths = paths.merged(result.paths or NO_PATHS)
            ran.append(Ran(number, blocks, result.warp_instructions))
        return tuple(ran), paths


def drawn_blocks(
    grid: tuple[int, int, int], cluster: Cluster, most: int, rng: random.Random, known: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the given blocks plus some at random places of a grid, in order and as whole clusters."""
    return tuple(sorted({*known, *cluster.drawn(grid, most, rng)}))


def _wrong(message: str, problem: Problem) -> dict[str, Any]:
    return {"check": "own_problem", "message": f"{message}, at {problem}", "problem": problem.key}
