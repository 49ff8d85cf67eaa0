"""Check of a candidate on the study's full-size problem: coverage of the outputs and correctness of some blocks.

The gate checks small problems completely. The effect of the full grid, the arguments and the number of tiles shows only
on the study's own problem. So some blocks run there: one of each class, including corners and edges, and blocks at
random places. The places depend on the study's secret and the machine code, so no source can know them. These blocks
run under the sanitizer: a race may need more rounds of a loop than any small problem takes.
`evokern.device.sim.coverage` derives from the written elements whether the launch covers its outputs.

A possible new best runs all blocks if the problem fits a fixed instruction budget. Otherwise it runs as many further
blocks as the budget allows; because the budget counts instructions, runs are repeatable on any machine. Blocks that
share something (workspaces, written inputs, module variables) cannot be checked separately. Such a candidate always
runs all blocks, on the study's problem if that is cheap, otherwise on a scaled-down problem.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from evokern.compile.build import tensors_of
from evokern.compile.records import Built
from evokern.declaration.as_data.golden import KernelReference
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.declaration.render import render
from evokern.declaration.small_problems import runnable
from evokern.device.sim import coverage
from evokern.device.sim.full_size_runs import (
    SANITIZED_INSTRUCTIONS,
    WHOLE_INSTRUCTIONS,
    CandidateCall,
    FullSizeResult,
    OwnProblemRuns,
    drawn_blocks,
)
from evokern.device.sim.program import SimulatedProgram
from evokern.device.sim.stage import ProblemBuffers, elements_of_results, has_reference, independent
from evokern.errors import KernelError
from evokern.simt import Cluster

CANDIDATE_INSTRUCTIONS = 1_500_000
"""Budget in warp instructions for a candidate that has dependent blocks and would not be the best."""
SAMPLED_INSTRUCTIONS = 4 * WHOLE_INSTRUCTIONS
"""Maximum number of warp instructions of one sample of blocks. If it needs more, only a scaled-down problem runs."""
DRAWN_AT_ONCE = 32
"""Number of blocks in a further sample. If a quarter of all blocks behave differently, the sample misses them with a
probability below 0.75^32 = 1e-4."""
SOME_INSTRUCTIONS = 2 * WHOLE_INSTRUCTIONS
"""Maximum number of warp instructions of the blocks whose outputs are compared, for the candidate and the reference."""
MISSING_SHARE = 0.25
"""Smallest unwritten share of an output at which a launch fails if it is too large to run completely."""


class OwnProblemCheck:
    """Checker for candidates of one kernel on one chip; it keeps the buffers of recent problems."""

    def __init__(self, runs: OwnProblemRuns) -> None:
        """Create a checker.

        Args:
            runs: runs the candidates; it provides the chip's limits and the secret for random places.
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
    ) -> FullSizeResult:
        """Check a candidate on one of the study's problems.

        Args:
            config: configuration of the candidate.
            built: programs of the candidate.
            problem: the problem.
            program: its program for the problem.
            instructions: warp instructions of an average block of each launch.
            most: instruction budget beyond one sample of its blocks; 0 for none.

        Raises:
            RunFailed: a block crashed or hung.
        """
        call = CandidateCall(problem, program, built.build(problem).launches, tensors_of(self._kernel, config, problem))
        return self._decided(config, call, instructions, self._rng(built, problem), most)

    def at(self, config: Config, problem: Problem, *, most: float) -> FullSizeResult:
        """Check a candidate on any problem: all blocks if the budget allows it, otherwise samples.

        Args:
            config: configuration of the candidate.
            problem: a problem that the candidate can run.
            most: instruction budget in warp instructions.

        Raises:
            RunFailed: the candidate does not compile there, or a block crashed or hung.
        """
        call = self._runs.call(config, problem, None)
        rng = random.Random(hashlib.sha256(f"{self._secret} {config.key} {problem.key}".encode()).digest())
        return self._decided(config, call, self._runs.counted(call), rng, most)

    def drawn(
        self, config: Config, built: Built, problem: Problem, most: int
    ) -> tuple[ProblemBuffers, list[tuple[int, ...]]]:
        """Return initialised buffers and, for each launch, some blocks chosen by means of the study's secret.

        Args:
            config: configuration of the candidate.
            built: programs of the candidate.
            problem: one of the study's problems.
            most: number of blocks per launch.
        """
        rng, launches = self._rng(built, problem), built.build(problem).launches
        clusters = [Cluster(launch.cluster or (1, 1, 1), explicit=launch.cluster is not None) for launch in launches]
        blocks = [drawn_blocks(one.grid, of, most, rng) for one, of in zip(launches, clusters, strict=True)]
        return self._runs.buffers(problem, tensors_of(self._kernel, config, problem)), blocks

    def compare_some(self, config: Config, problem: Problem) -> tuple[dict[str, Any] | None, int, int]:
        """Compare some outputs with a reference that is too expensive as a whole, but can compute some blocks.

        The candidate's blocks are those at the same relative places of its grid; both kinds cover the corners.

        Returns:
            Evidence of wrong elements or None, the number of compared elements, and the number of all output elements.

        Raises:
            RunFailed: the candidate does not compile there, or a block crashed or hung.
        """
        kernel, call = self._kernel, self._runs.call(config, problem, None)
        total = elements_of_results(call.tensors)
        reference = kernel.workload.reference
        bounded = any(tolerance.bound is not None for tolerance in self._runs.tolerance.values())
        if not isinstance(reference, KernelReference) or bounded:
            return None, 0, total
        if not independent(call.tensors, call.program, call.launches):
            return None, 0, total
        rng = random.Random(hashlib.sha256(f"{self._secret} some outputs {problem.key}".encode()).digest())
        inputs = self._runs.buffers(problem, call.tensors).inputs
        try:
            known = reference.some(problem, inputs, rng, SOME_INSTRUCTIONS)
        except KernelError:  # the blocks need more instructions than estimated, or fail at this problem
            return None, 0, total
        if known is None:
            return None, 0, total
        room = int(SOME_INSTRUCTIONS / max(1.0, self._runs.counted(call)[0]))
        blocks = call.placed([_place(number, known.grid) for number in known.blocks])
        if room < len(blocks):
            cluster = call.program.cluster(call.launches[0]).blocks
            blocks = blocks[: room // cluster * cluster]
        return (*self._runs.compared(call, blocks, known), total) if blocks else (None, 0, total)

    def _decided(
        self, config: Config, call: CandidateCall, instructions: Sequence[float], rng: random.Random, most: float
    ) -> FullSizeResult:
        cost = sum(each * launch.blocks for each, launch in zip(instructions, call.launches, strict=True))
        if not independent(call.tensors, call.program, call.launches):
            if cost <= max(most, CANDIDATE_INSTRUCTIONS):
                return self._runs.whole(call, sanitize=cost <= SANITIZED_INSTRUCTIONS)
            return self._scaled(config, call, cost, max(most, CANDIDATE_INSTRUCTIONS))
        if cost <= min(most, SANITIZED_INSTRUCTIONS):
            return self._runs.whole(call, sanitize=True)
        blocks = call.sampled(rng)
        if instructions[0] * len(blocks) > SAMPLED_INSTRUCTIONS:
            return self._scaled(config, call, cost, max(most, CANDIDATE_INSTRUCTIONS))
        sanitize = len(blocks) * instructions[0] <= SANITIZED_INSTRUCTIONS
        found = self._runs.sampled(call, blocks, sanitize=sanitize)
        if found.fault_evidence is None and cost <= most:
            return self._runs.whole(call)
        if found.fault_evidence is not None:
            return found
        if not found.covered:
            return self._settled(config, call, found, cost, max(most, CANDIDATE_INSTRUCTIONS), rng)
        if most:
            room = int(most / max(instructions[0], 1.0))
            more = call.drawn(room, rng, known=blocks)
            found = self._runs.sampled(call, more, known=blocks, covered=found.coverage)
        if found.fault_evidence is None and most and not found.judged:
            return self._and_scaled(config, call, cost, most, found)
        return found

    def _settled(
        self, config: Config, call: CandidateCall, found: FullSizeResult, cost: float, most: float, rng: random.Random
    ) -> FullSizeResult:
        """Check a candidate whose sampled blocks do not cover its outputs."""
        if cost <= WHOLE_INSTRUCTIONS:
            return self._runs.whole(call)
        ran = call.sampled(rng)
        if cost / call.blocks * (DRAWN_AT_ONCE + len(ran)) > SAMPLED_INSTRUCTIONS:
            return self._and_scaled(config, call, cost, most, found)
        more = self._runs.sampled(call, call.drawn(DRAWN_AT_ONCE, rng, known=ran))
        if more.fault_evidence is not None:
            return more
        for name, one in more.coverage.items():
            if one.certain and one.elements - one.written >= MISSING_SHARE * one.elements:
                where = f" (estimated from {more.blocks} blocks)"
                return replace(more, fault_evidence=coverage.evidence(name, one, call.problem, where))
        return self._and_scaled(config, call, cost, most, more)

    def _and_scaled(
        self, config: Config, call: CandidateCall, cost: float, most: float, found: FullSizeResult
    ) -> FullSizeResult:
        """Return the result together with the result of a scaled-down problem."""
        scaled = self._scaled(config, call, cost, most)
        return replace(found, fault_evidence=found.fault_evidence or scaled.fault_evidence, scaled=scaled.scaled)

    def _rng(self, built: Built, problem: Problem) -> random.Random:
        """Return a random generator for a candidate and a problem, which its source cannot predict."""
        text = f"{self._secret} {built.fingerprint} {problem.key}"
        return random.Random(hashlib.sha256(text.encode()).digest())

    def _scaled(self, config: Config, call: CandidateCall, cost: float, most: float) -> FullSizeResult:
        """Run all blocks of a candidate on a problem that is scaled down to fit the budget."""
        flops = self._kernel.workload.flops
        work = max(flops(call.problem), 1.0)
        rendered = render(self._kernel, config, call.problem)
        for problem in self.smaller(config, call.problem):
            estimate = cost * flops(problem) / work
            if estimate > most or not has_reference(self._kernel, problem, tensors_of(self._kernel, config, problem)):
                continue
            smaller = self._runs.call(config, problem, (rendered, call.program))
            whole = self._runs.whole(smaller, problem, sanitize=estimate <= SANITIZED_INSTRUCTIONS)
            return replace(whole, blocks=0, of=call.blocks, coverage={}, judged=False, ran=())
        return FullSizeResult(None, 0, call.blocks)

    def smaller(self, config: Config, problem: Problem) -> Iterator[Problem]:
        """Yield smaller and smaller problems for a candidate; each step halves one field.

        The work of a block should stay, so that loops take as many rounds as before: fields that only make the grid
        smaller come first, the largest before others. Fields that are compiled into the program come last.
        """

        def worth(halved: tuple[str, Problem]) -> tuple[float, float, int]:
            name, small = halved
            work = self._kernel.workload.flops(small)
            blocks = sum(one.blocks for one in launches_of(self._kernel, config, small))
            return work / blocks, work / elements_of_results(tensors_of(self._kernel, config, small)), int(small[name])

        rendered = render(self._kernel, config, problem)
        names = [entry.name for entry in self._kernel.free_fields]
        while True:
            halved = [(name, self._halved(config, problem, name)) for name in names]
            possible = [(name, small) for name, small in halved if small is not None]
            if not possible:
                return
            same = [one for one in possible if render(self._kernel, config, one[1]) == rendered]
            _, problem = max(same or possible, key=worth)
            yield problem

    def _halved(self, config: Config, problem: Problem, name: str) -> Problem | None:
        value = int(problem[name]) // 2
        return runnable(self._kernel, config, problem, {name: value}, self._runs.chip) if value >= 1 else None


def _place(block: int, grid: tuple[int, int, int]) -> tuple[float, float, float]:
    """Return the centre of a block, relative to its grid."""
    x, y, z = block % grid[0], block // grid[0] % grid[1], block // (grid[0] * grid[1])
    return (x + 0.5) / grid[0], (y + 0.5) / grid[1], (z + 0.5) / grid[2]
