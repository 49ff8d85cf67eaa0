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
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from evokern.compile.build import tensors_of
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.declaration.render import render
from evokern.declaration.small_problems import runnable
from evokern.device.sim import coverage
from evokern.device.sim.own_problem_runs import (
    WHOLE_INSTRUCTIONS,
    CandidateCall,
    OwnProblem,
    OwnProblemRuns,
    drawn_blocks,
)
from evokern.device.sim.program import SimulatedProgram
from evokern.device.sim.stage import ProblemBuffers, has_reference, independent
from evokern.simt.clusters.layout import Cluster

CANDIDATE_INSTRUCTIONS = 1_500_000
"""Warp instructions of a candidate whose blocks cannot be judged one by one and that would not be the best."""
DRAWN_AT_ONCE = 32
"""Blocks of a further sample; a launch that leaves a quarter of its output out is told from one whose blocks differ
with a chance to err below 0.75^32 = 1e-4."""
MISSING_SHARE = 0.25
"""Least share of an output that is missing by a sample, for a launch that is too large to run whole."""


class OwnProblemCheck:
    """Checks candidates of one kernel on one chip; keeps the buffers of the last problems."""

    def __init__(self, runs: OwnProblemRuns) -> None:
        """Decide what candidates run.

        Args:
            runs: runs them; a scaled-down problem keeps the limits of its chip, and places are drawn from its secret.
        """
        self._runs, self._kernel, self._secret = runs, runs.kernel, runs.secret

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
        call = CandidateCall(problem, program, built.build(problem).launches, tensors_of(self._kernel, config, problem))
        return self._decided(config, call, instructions, self._rng(built, problem), most)

    def at(self, config: Config, problem: Problem, *, most: float) -> OwnProblem:
        """Check a candidate at any problem that it can run: whole where that is cheap enough, else by samples.

        Args:
            config: its configuration.
            problem: a problem that it can run.
            most: warp instructions that may run.

        Raises:
            RunFailed: it does not compile there, a block crashed, or one did not end.
        """
        call = self._runs.call(config, problem, None)
        rng = random.Random(hashlib.sha256(f"{self._secret} {config.key} {problem.key}".encode()).digest())
        return self._decided(config, call, self._runs.counted(call), rng, most)

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
        rng, launches = self._rng(built, problem), built.build(problem).launches
        clusters = [Cluster(launch.cluster or (1, 1, 1), explicit=launch.cluster is not None) for launch in launches]
        blocks = [drawn_blocks(one.grid, of, most, rng) for one, of in zip(launches, clusters, strict=True)]
        return self._runs.buffers(problem, tensors_of(self._kernel, config, problem)), blocks

    def _decided(
        self, config: Config, call: CandidateCall, instructions: Sequence[float], rng: random.Random, most: float
    ) -> OwnProblem:
        cost = sum(each * launch.blocks for each, launch in zip(instructions, call.launches, strict=True))
        if not independent(call.tensors, call.program, call.launches):
            if cost <= max(most, CANDIDATE_INSTRUCTIONS):
                return self._runs.whole(call)
            return self._scaled(config, call, cost, max(most, CANDIDATE_INSTRUCTIONS))
        if cost <= most:
            return self._runs.whole(call)
        blocks = call.sampled(rng)
        found = self._runs.sampled(call, blocks)
        if found.against is not None:
            return found
        if not found.covered:
            return self._settled(config, call, found, cost, max(most, CANDIDATE_INSTRUCTIONS), rng)
        if most:
            room = int(most / max(instructions[0], 1.0))
            more = call.drawn(room, rng, known=blocks)
            found = self._runs.sampled(call, more, known=blocks, covered=found.coverage)
        if found.against is None and most and not found.judged:
            return self._and_scaled(config, call, cost, most, found)
        return found

    def _settled(
        self, config: Config, call: CandidateCall, found: OwnProblem, cost: float, most: float, rng: random.Random
    ) -> OwnProblem:
        """Decide on a candidate whose sampled blocks do not add up to its outputs."""
        if cost <= WHOLE_INSTRUCTIONS:
            return self._runs.whole(call)
        ran = call.sampled(rng)
        more = self._runs.sampled(call, call.drawn(DRAWN_AT_ONCE, rng, known=ran))
        if more.against is not None:
            return more
        for name, one in more.coverage.items():
            if one.certain and one.elements - one.written >= MISSING_SHARE * one.elements:
                where = f", as its {more.blocks} blocks that ran show"
                return replace(more, against=coverage.evidence(name, one, call.problem, where))
        return self._and_scaled(config, call, cost, most, more)

    def _and_scaled(
        self, config: Config, call: CandidateCall, cost: float, most: float, found: OwnProblem
    ) -> OwnProblem:
        """Return what was found, with what a scaled-down problem says besides."""
        scaled = self._scaled(config, call, cost, most)
        return replace(found, against=found.against or scaled.against, scaled=scaled.scaled)

    def _rng(self, built: Built, problem: Problem) -> random.Random:
        """Return random numbers of a candidate at a problem, which its source cannot know."""
        text = f"{self._secret} {built.fingerprint} {problem.key}"
        return random.Random(hashlib.sha256(text.encode()).digest())

    def _scaled(self, config: Config, call: CandidateCall, cost: float, most: float) -> OwnProblem:
        """Run a candidate whole at a problem that is scaled down until it can be afforded."""
        flops = self._kernel.workload.flops
        work = max(flops(call.problem), 1.0)
        rendered = render(self._kernel, config, call.problem)
        for problem in self.smaller(config, call.problem):
            if cost * flops(problem) / work > most or not has_reference(
                self._kernel, problem, tensors_of(self._kernel, config, problem)
            ):
                continue
            whole = self._runs.whole(self._runs.call(config, problem, (rendered, call.program)), problem)
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
        return runnable(self._kernel, config, problem, {name: value}, self._runs.chip) if value >= 1 else None
