"""Runs of a candidate at one of the study's own problems, or near one, and what they show: some of its blocks, or all.

What runs, and how much of it, `evokern.device.sim.own_problem` decides.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evokern.compile.build import tensors_of
from evokern.compile.module_state import state_evidence
from evokern.compile.records import CompileFailure
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Launch, Problem, Tensor, Tolerance
from evokern.declaration.render import Rendered, render
from evokern.device.sim import coverage
from evokern.device.sim.coverage import Coverage
from evokern.device.sim.failure import failure
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.device.sim.recount import Ran
from evokern.device.sim.stage import ProblemBuffers, has_reference
from evokern.gate import RunFailed
from evokern.hardware.profiles import Profile
from evokern.simt.clusters.layout import Cluster, cluster_numbers
from evokern.simt.memory.access_record import WriteRecord, recording
from evokern.study.settings import SimulationSettings
from evokern.study.trial import Outcome

WHOLE_INSTRUCTIONS = 15_000_000
"""Warp instructions of a new best at the study's own problem: about ten seconds of one core (1.0 to 4.2 million a
second, by the lanes that run side by side)."""
LIMIT_ROOM = 2
"""Times `WHOLE_INSTRUCTIONS` that a batch of blocks may issue beyond the study's limit, which is meant for a few."""
COUNTED = 2
"""Blocks whose instructions are counted at a problem that no prediction was made for."""


@dataclass(frozen=True)
class OwnProblem:
    """What is known of a candidate at one of the study's own problems."""

    against: Mapping[str, Any] | None
    """The evidence against it; None where there is none."""
    blocks: int = 0
    """Distinct blocks that ran there, over all launches."""
    of: int = 0
    """Blocks of all launches."""
    judged: bool = False
    """Whether what they wrote was compared with the reference."""
    coverage: Mapping[str, Coverage] = field(default_factory=dict)
    """Output → how much of it is written."""
    scaled: Problem | None = None
    """The scaled-down problem at which it ran whole; None where none was needed."""
    ran: tuple[Ran, ...] = ()
    """What ran there."""

    @property
    def covered(self) -> bool:
        """Whether every output is written, as far as that is certain."""
        return bool(self.coverage) and all(one.complete for one in self.coverage.values())

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "blocks": self.blocks, "of": self.of, "judged": self.judged, "covered": self.covered,
            "coverage": coverage.as_json(self.coverage), **({"scaled": self.scaled.key} if self.scaled else {}),
        }  # fmt: skip


@dataclass(frozen=True)
class CandidateCall:
    """A candidate at a problem: its program, launches and buffers' declarations."""

    problem: Problem
    """The problem."""
    program: SimulatedProgram
    """Its program there."""
    launches: tuple[Launch, ...]
    """Its launches."""
    tensors: Mapping[str, Tensor]
    """Its buffers' declarations."""

    @property
    def blocks(self) -> int:
        """Blocks of all launches."""
        return sum(launch.blocks for launch in self.launches)

    def sampled(self, rng: random.Random) -> tuple[int, ...]:
        """Return blocks that stand for the grid of the first launch, as `coverage.sample` does; whole clusters."""
        launch = self.launches[0]
        cluster = self.program.cluster(launch)
        return cluster.members(launch.grid, coverage.sample(cluster.grid_of(launch.grid), rng))

    def drawn(self, most: int, rng: random.Random, known: Sequence[int] = ()) -> tuple[int, ...]:
        """Return blocks of the first launch at drawn places, whole clusters, with those that are known, in order."""
        launch = self.launches[0]
        return drawn_blocks(launch.grid, self.program.cluster(launch), most, rng, known)


class OwnProblemRuns:
    """Runs candidates of one kernel on one chip; keeps the buffers of the last problems."""

    def __init__(
        self,
        kernel: Kernel,
        chip: Profile,
        simulation: SimulationSettings,
        tolerance: Mapping[str, Tolerance],
        secret: int,
    ) -> None:
        """Prepare.

        Args:
            kernel: the kernel.
            chip: what runs them.
            simulation: limits of a launch.
            tolerance: what is allowed of each output.
            secret: of the study: draws inputs.
        """
        self.kernel = kernel
        """The kernel."""
        self.chip = chip
        """What runs them."""
        self.secret = secret
        """Of the study."""
        self._simulation, self._tolerance = simulation, tolerance
        self._stages: dict[Problem, ProblemBuffers] = {}

    def call(self, config: Config, problem: Problem, like: tuple[Rendered, SimulatedProgram] | None) -> CandidateCall:
        """Return a candidate at a problem, compiled there unless its program is at hand.

        Args:
            config: its configuration.
            problem: the problem.
            like: a rendered source with its program, which is taken where the candidate's is the same.

        Raises:
            RunFailed: it does not compile there.
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
        """Return the warp instructions of an average block of each launch, by a few blocks.

        Raises:
            RunFailed: a block crashed or did not end.
        """
        stage, each, limit = self._stage(call), [], self._simulation.instruction_limit
        call.program.restore(stage.memory, every=True)
        for launch in call.launches:
            blocks = call.program.sample_blocks(launch, COUNTED)
            result = call.program.launch(
                launch, stage.buffers, stage.memory, instruction_limit=limit, blocks=blocks, sanitize=False, count=True
            )
            if result.findings:
                raise failure(result.fatal or result.findings[0], limit, call.problem)
            assert result.counters is not None  # asked for
            each.append(float(result.counters.warp_instructions.sum()) / len(blocks))
        return each

    def sampled(
        self,
        call: CandidateCall,
        blocks: tuple[int, ...],
        known: Sequence[int] = (),
        covered: Mapping[str, Coverage] | None = None,
    ) -> OwnProblem:
        """Run some blocks of a candidate of one launch whose blocks share nothing.

        Args:
            call: the candidate.
            blocks: linear ids of the blocks, of whole clusters.
            known: further ones that ran before and count as run.
            covered: how much of each output is written, where that is known; None works it out from these blocks.

        Raises:
            RunFailed: a block crashed or did not end.
        """
        stage, (launch,) = self._stage(call), call.launches
        with recording(stage.memory, WriteRecord(stage.memory, by_block=True)) as record:
            ran = self._run(call, stage, blocks)
        found = dict(covered or {})
        cluster = call.program.cluster(launch)
        of_block, grid = cluster_numbers(launch.grid, cluster.extent), cluster.grid_of(launch.grid)
        for name, tensor in call.tensors.items():
            if tensor.role == "output" and covered is None:
                by, elements = record.elements(stage.buffers[name], tensor.bytes // tensor.elements)
                clusters = np.unique(of_block[list(blocks)]).tolist()
                found[name] = coverage.extrapolated(grid, clusters, of_block[by], elements, tensor.elements)
        judged = has_reference(self.kernel, call.problem, call.tensors)
        message = stage.fault(self.kernel, self._tolerance, stage.written(record)) if judged else None
        against = _wrong(message, call.problem) if message else None
        return OwnProblem(against, len({*blocks, *known}), call.blocks, judged, found, ran=ran)

    def whole(self, call: CandidateCall, scaled: Problem | None = None) -> OwnProblem:
        """Run all blocks of all launches.

        Args:
            call: the candidate.
            scaled: the scaled-down problem that this is; None at one of the study's own.

        Raises:
            RunFailed: a block crashed or did not end.
        """
        stage = self._stage(call)
        with recording(stage.memory, WriteRecord(stage.memory, by_block=False)) as record:
            ran = self._run(call, stage, None)
        marks = stage.written(record)
        found = {
            name: Coverage(int(marks[name].sum()), tensor.elements, certain=True)
            for name, tensor in call.tensors.items()
            if tensor.role == "output"
        }
        judged = has_reference(self.kernel, call.problem, call.tensors)
        against = next(
            (coverage.evidence(name, one, call.problem, "") for name, one in found.items() if not one.complete), None
        )
        if against is None and (left := call.program.changed(stage.memory)):
            against = state_evidence(left, call.problem, self.kernel.state, call.program.variables)
        if against is None and judged:
            for name, tensor in call.tensors.items():
                if tensor.role == "inout":
                    marks[name][:] = True  # what is left as it was is an answer too, and compared
                    found[name] = Coverage(tensor.elements, tensor.elements, certain=True)
            message = stage.fault(self.kernel, self._tolerance, marks, "its blocks")
            against = _wrong(message, call.problem) if message else None
        return OwnProblem(against, call.blocks, call.blocks, judged, found, scaled, ran)

    def buffers(self, problem: Problem, tensors: Mapping[str, Tensor]) -> ProblemBuffers:
        """Return the buffers of a problem as a call finds them."""
        stage = self._stages.get(problem)
        if stage is None or stage.key != (problem, tuple(tensors.items())):
            if len(self._stages) > 2:
                self._stages.clear()  # the old buffers go before the new ones come
            seed = int.from_bytes(hashlib.sha256(f"{self.secret} inputs".encode()).digest()[:7], "big")
            stage = self._stages[problem] = ProblemBuffers(problem, tensors, seed=seed)
        stage.reset()
        return stage

    def _stage(self, call: CandidateCall) -> ProblemBuffers:
        return self.buffers(call.problem, call.tensors)

    def _run(self, call: CandidateCall, stage: ProblemBuffers, blocks: tuple[int, ...] | None) -> tuple[Ran, ...]:
        ran = []
        call.program.restore(stage.memory, every=True)
        for number, launch in enumerate(call.launches):
            # The limit holds for a batch of blocks; what is known of these is that as many on average end well before.
            limit = self._simulation.instruction_limit + LIMIT_ROOM * WHOLE_INSTRUCTIONS
            result = call.program.launch(
                launch, stage.buffers, stage.memory, instruction_limit=limit, blocks=blocks, sanitize=False
            )
            if result.findings:
                raise failure(result.fatal or result.findings[0], limit, call.problem)
            ran.append(Ran(number, blocks, result.warp_instructions))
        return tuple(ran)


def drawn_blocks(
    grid: tuple[int, int, int], cluster: Cluster, most: int, rng: random.Random, known: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return blocks of a grid at drawn places, whole clusters, with those that are known, in order."""
    return tuple(sorted({*known, *cluster.drawn(grid, most, rng)}))


def _wrong(message: str, problem: Problem) -> dict[str, Any]:
    return {"check": "own_problem", "message": f"{message}, at {problem}", "problem": problem.key}
