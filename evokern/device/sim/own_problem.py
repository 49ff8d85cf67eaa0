"""A candidate at the study's own problem: are its outputs covered, and are the blocks that can be afforded right?

The gate judges all of a small problem. What a launch does at the study's own problem, with its own grid, arguments and
number of tiles, only that problem shows. So some of its blocks run there: one of each class, corners and edges among
them, and places that no source can know, drawn from the study's secret and the candidate's machine code. Whether the
launch covers its outputs follows from what they write (`evokern.device.sim.coverage`).

What would be a new best runs whole, if the problem fits a fixed number of simulated instructions, else as many further
blocks as that number allows: a count, so that a run repeats on any machine. Blocks that share something (workspaces,
inputs that are written, variables of the module) say nothing alone: such a candidate always runs whole, at its own
problem where that is cheap, else at one that is scaled down.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evokern.compile.build import tensors_of
from evokern.compile.module_state import state_evidence
from evokern.compile.records import Built, CompileFailure
from evokern.declaration.feasibility import launches_of
from evokern.declaration.kernel import Kernel, Launch, Problem, Tensor, Tolerance
from evokern.declaration.render import Rendered, render
from evokern.declaration.small_problems import runnable
from evokern.declaration.space import Config
from evokern.device.sim import coverage
from evokern.device.sim.coverage import Coverage
from evokern.device.sim.failure import failure
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.device.sim.recount import Ran
from evokern.device.sim.stage import ProblemBuffers, has_reference, independent
from evokern.gate import RunFailed
from evokern.hardware.profiles import Profile
from evokern.simt.memory.access_record import WriteRecord, recording
from evokern.simt.time_model.prediction import sample_blocks
from evokern.study.settings import SimulationSettings
from evokern.study.trial import Outcome

WHOLE_INSTRUCTIONS = 15_000_000
"""Warp instructions of a new best at the study's own problem: about ten seconds of one core (1.0 to 4.2 million a
second, by the lanes that run side by side)."""
CANDIDATE_INSTRUCTIONS = 1_500_000
"""The same for a candidate whose blocks cannot be judged one by one and that would not be the best."""
LIMIT_ROOM = 2
"""Times `WHOLE_INSTRUCTIONS` that a batch of blocks may issue beyond the study's limit, which is meant for a few."""
COUNTED = 2
"""Blocks whose instructions are counted at a problem that no prediction was made for."""
DRAWN_AT_ONCE = 32
"""Blocks of a further sample; a launch that leaves a quarter of its output out is told from one whose blocks differ
with a chance to err below 0.75^32 = 1e-4."""
MISSING_SHARE = 0.25
"""Least share of an output that is missing by a sample, for a launch that is too large to run whole."""


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
    scaled: str = ""
    """The scaled-down problem at which it ran whole; empty where none was needed."""
    ran: tuple[Ran, ...] = ()
    """What ran there."""

    @property
    def covered(self) -> bool:
        """Whether every output is written, as far as that is certain."""
        return bool(self.coverage) and all(one.complete for one in self.coverage.values())

    @property
    def share(self) -> float:
        """Blocks that ran ÷ all."""
        return self.blocks / self.of if self.of else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "blocks": self.blocks, "of": self.of, "judged": self.judged, "covered": self.covered,
            "coverage": coverage.as_json(self.coverage), **({"scaled": self.scaled} if self.scaled else {}),
        }  # fmt: skip


@dataclass(frozen=True)
class _Call:
    """A candidate at a problem: its program, launches and buffers' declarations."""

    problem: Problem
    program: SimulatedProgram
    launches: tuple[Launch, ...]
    tensors: Mapping[str, Tensor]

    @property
    def blocks(self) -> int:
        return sum(launch.blocks for launch in self.launches)


class OwnProblemCheck:
    """Checks candidates of one kernel on one chip; keeps the buffers of the last problem."""

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
            chip: limits that a scaled-down problem must keep.
            simulation: limits of a launch.
            tolerance: what is allowed of each output.
            secret: of the study: draws inputs and places.
        """
        self._kernel, self._chip, self._simulation = kernel, chip, simulation
        self._tolerance, self._secret = tolerance, secret
        self._stages: dict[Problem, ProblemBuffers] = {}

    def check(
        self,
        config: Config,
        built: Built,
        problem: Problem,
        program: SimulatedProgram,
        instructions: Sequence[float],
        *,
        most: float,
    ) -> OwnProblem:
        """Check a candidate at one of the study's own problems.

        Args:
            config: its configuration.
            built: its programs.
            problem: the problem.
            program: its program there.
            instructions: warp instructions of an average block of each launch.
            most: warp instructions that may run for it beyond one sample of its blocks; 0 for none.

        Raises:
            RunFailed: a block crashed or did not end.
        """
        call = _Call(problem, program, built.build(problem).launches, tensors_of(self._kernel, config, problem))
        return self._decided(config, call, instructions, self._rng(built, problem), most)

    def _decided(
        self, config: Config, call: _Call, instructions: Sequence[float], rng: random.Random, most: float
    ) -> OwnProblem:
        cost = sum(each * launch.blocks for each, launch in zip(instructions, call.launches, strict=True))
        if not independent(call.tensors, call.program, call.launches):
            if cost <= max(most, CANDIDATE_INSTRUCTIONS):
                return self._whole(call)
            return self._scaled(config, call, cost, max(most, CANDIDATE_INSTRUCTIONS))
        if cost <= most:
            return self._whole(call)
        blocks = coverage.sample(call.launches[0].grid, rng)
        found = self._sampled(call, blocks)
        if found.against is not None:
            return found
        if not found.covered:
            return self._settled(config, call, found, cost, max(most, CANDIDATE_INSTRUCTIONS), rng)
        if most:
            room = int(most / max(instructions[0], 1.0))
            more = self._further(call, room, blocks, rng)
            found = replace(self._sampled(call, more, known=blocks), coverage=found.coverage)
        if found.against is None and most and not found.judged:
            return self._and_scaled(config, call, cost, most, found)
        return found

    def at(self, config: Config, problem: Problem, *, most: float) -> OwnProblem:
        """Check a candidate at any problem that it can run: whole where that is cheap enough, else by samples.

        Args:
            config: its configuration.
            problem: a problem that it can run.
            most: warp instructions that may run.

        Raises:
            RunFailed: it does not compile there, a block crashed, or one did not end.
        """
        call = self._call(config, problem, None)
        stage, each = self._stage(call), []
        call.program.restore(stage.memory, every=True)
        for launch in call.launches:
            blocks = sample_blocks(launch.blocks, COUNTED)
            result = call.program.launch(
                launch, stage.buffers, stage.memory, instruction_limit=self._simulation.instruction_limit,
                blocks=blocks, sanitize=False, count=True,
            )  # fmt: skip
            if result.findings:
                raise failure(result.fatal or result.findings[0], self._simulation.instruction_limit, problem)
            assert result.counters is not None  # asked for
            each.append(float(result.counters.warp_instructions.sum()) / len(blocks))
        rng = random.Random(hashlib.sha256(f"{self._secret} {config.key} {problem}".encode()).digest())
        return self._decided(config, call, each, rng, most)

    def drawn(
        self, config: Config, built: Built, problem: Problem, most: int
    ) -> tuple[ProblemBuffers, list[tuple[int, ...]]]:
        """Return buffers as a call finds them, and for each launch blocks at places drawn from the study's secret.

        Args:
            config: a candidate.
            built: its programs.
            problem: one of the study's own problems.
            most: blocks that are drawn of a launch.
        """
        rng, sizes = self._rng(built, problem), [launch.blocks for launch in built.build(problem).launches]
        blocks = [tuple(sorted(rng.sample(range(size), min(size, most)))) for size in sizes]
        return self._buffers(problem, tensors_of(self._kernel, config, problem)), blocks

    def _call(self, config: Config, problem: Problem, like: tuple[Rendered, SimulatedProgram] | None) -> _Call:
        """Return a candidate at a problem, compiled there unless its program is at hand."""
        rendered = render(self._kernel, config, problem)
        if like is not None and like[0] == rendered:
            program = like[1]
        else:
            made = compile_simulated(rendered, self._chip)
            if isinstance(made, CompileFailure):
                evidence = {"log": made.log[:8000], "message": f"{made.message} (at {problem})"}
                raise RunFailed(Outcome.COMPILE_ERROR, evidence)
            program = made
        tensors = tensors_of(self._kernel, config, problem)
        return _Call(problem, program, launches_of(self._kernel, config, problem), tensors)

    def _settled(
        self, config: Config, call: _Call, found: OwnProblem, cost: float, most: float, rng: random.Random
    ) -> OwnProblem:
        """Decide on a candidate whose sampled blocks do not add up to its outputs."""
        if cost <= WHOLE_INSTRUCTIONS:
            return self._whole(call)
        ran = coverage.sample(call.launches[0].grid, rng)
        more = self._sampled(call, self._further(call, DRAWN_AT_ONCE, ran, rng))
        if more.against is not None:
            return more
        for name, one in more.coverage.items():
            if one.certain and one.elements - one.written >= MISSING_SHARE * one.elements:
                where = f", as its {more.blocks} blocks that ran show"
                return replace(more, against=coverage.evidence(name, one, call.problem, where))
        return self._and_scaled(config, call, cost, most, more)

    def _and_scaled(self, config: Config, call: _Call, cost: float, most: float, found: OwnProblem) -> OwnProblem:
        """Return what was found, with what a scaled-down problem says besides."""
        scaled = self._scaled(config, call, cost, most)
        return replace(found, against=found.against or scaled.against, scaled=scaled.scaled)

    def _further(self, call: _Call, room: int, known: Sequence[int], rng: random.Random) -> tuple[int, ...]:
        total = call.launches[0].blocks
        return tuple(sorted({*known, *rng.sample(range(total), min(total, room))}))

    def _rng(self, built: Built, problem: Problem) -> random.Random:
        """Return random numbers of a candidate at a problem, which its source cannot know."""
        text = f"{self._secret} {built.fingerprint} {problem}"
        return random.Random(hashlib.sha256(text.encode()).digest())

    def _stage(self, call: _Call) -> ProblemBuffers:
        return self._buffers(call.problem, call.tensors)

    def _buffers(self, problem: Problem, tensors: Mapping[str, Tensor]) -> ProblemBuffers:
        stage = self._stages.get(problem)
        if stage is None or stage.key != (problem, tuple(tensors.items())):
            if len(self._stages) > 2:
                self._stages.clear()  # the old buffers go before the new ones come
            seed = int.from_bytes(hashlib.sha256(f"{self._secret} inputs".encode()).digest()[:7], "big")
            stage = self._stages[problem] = ProblemBuffers(problem, tensors, seed=seed, read_only=True)
        stage.reset()
        return stage

    def _run(self, call: _Call, stage: ProblemBuffers, blocks: tuple[int, ...] | None) -> tuple[Ran, ...]:
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

    def _sampled(self, call: _Call, blocks: tuple[int, ...], known: Sequence[int] = ()) -> OwnProblem:
        """Run some blocks of a candidate whose blocks share nothing."""
        stage, (launch,) = self._stage(call), call.launches
        with recording(stage.memory, WriteRecord(stage.memory, by_block=True)) as record:
            ran = self._run(call, stage, blocks)
        found: dict[str, Coverage] = {}
        for name, tensor in call.tensors.items():
            if tensor.role == "output":
                wrote = record.elements(stage.buffers[name], tensor.bytes // tensor.elements)
                found[name] = coverage.extrapolated(launch.grid, blocks, *wrote, tensor.elements)
        judged = has_reference(self._kernel, call.problem, call.tensors)
        message = stage.fault(self._kernel, self._tolerance, stage.written(record)) if judged else None
        against = _wrong(message, call.problem) if message else None
        return OwnProblem(against, len({*blocks, *known}), call.blocks, judged, found, ran=ran)

    def _whole(self, call: _Call, scaled: str = "") -> OwnProblem:
        """Run all blocks of all launches."""
        stage = self._stage(call)
        with recording(stage.memory, WriteRecord(stage.memory, by_block=False)) as record:
            ran = self._run(call, stage, None)
        marks = stage.written(record)
        found = {
            name: Coverage(int(marks[name].sum()), tensor.elements, certain=True)
            for name, tensor in call.tensors.items()
            if tensor.role == "output"
        }
        judged = has_reference(self._kernel, call.problem, call.tensors)
        against = next(
            (coverage.evidence(name, one, call.problem, "") for name, one in found.items() if not one.complete), None
        )
        if against is None and (left := call.program.changed(stage.memory)):
            against = state_evidence(left, call.problem, self._kernel.state, call.program.variables)
        if against is None and judged:
            for name, tensor in call.tensors.items():
                if tensor.role == "inout":
                    marks[name][:] = True  # what is left as it was is an answer too, and compared
                    found[name] = Coverage(tensor.elements, tensor.elements, certain=True)
            message = stage.fault(self._kernel, self._tolerance, marks, "its blocks")
            against = _wrong(message, call.problem) if message else None
        return OwnProblem(against, call.blocks, call.blocks, judged, found, scaled, ran)

    def _scaled(self, config: Config, call: _Call, cost: float, most: float) -> OwnProblem:
        """Run a candidate whole at a problem that is scaled down until it can be afforded."""
        flops = self._kernel.workload.flops
        work = max(flops(call.problem), 1.0)
        rendered = render(self._kernel, config, call.problem)
        for problem in self.smaller(config, call.problem):
            if cost * flops(problem) / work > most or not has_reference(
                self._kernel, problem, tensors_of(self._kernel, config, problem)
            ):
                continue
            whole = self._whole(self._call(config, problem, (rendered, call.program)), str(problem))
            return replace(whole, blocks=0, of=call.blocks, coverage={}, judged=False, ran=())
        return OwnProblem(None, 0, call.blocks)

    def smaller(self, config: Config, problem: Problem) -> Iterator[Problem]:
        """Yield ever smaller problems that a candidate can run, the field with the largest value halved each time.

        Fields that are compiled in are left alone while another one can be halved.
        """
        rendered = render(self._kernel, config, problem)
        names = [entry.name for entry in self._kernel.fields if not entry.choices]
        while True:
            halved = [(name, self._halved(config, problem, name)) for name in names]
            possible = [(name, small) for name, small in halved if small is not None]
            if not possible:
                return
            same = [one for one in possible if render(self._kernel, config, one[1]) == rendered]
            _, problem = max(same or possible, key=lambda one: int(problem[one[0]]))
            yield problem

    def _halved(self, config: Config, problem: Problem, name: str) -> Problem | None:
        value = int(problem[name]) // 2
        return runnable(self._kernel, config, problem, {name: value}, self._chip) if value >= 1 else None


def _wrong(message: str, problem: Problem) -> dict[str, Any]:
    return {"check": "own_problem", "message": f"{message}, at {problem}", "problem": str(problem)}


def share(found: Sequence[OwnProblem]) -> float:
    """Return the blocks that ran of all problems ÷ all blocks."""
    return math.fsum(one.blocks for one in found) / max(sum(one.of for one in found), 1)
