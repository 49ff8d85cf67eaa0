"""Check whether a candidate that is correct on small problems would fail on the full-size problem.

Errors close to the tolerance on a few hundred rows may exceed it on a few thousand. A GPU checks the whole problem and
finds them; a small problem may not. So some blocks of the full-size problem run on the affected kind of inputs, and the
gate's own rule (`evokern.gate.verdict`) extrapolates to all of it. More blocks run until the decision is clear or the
budget is spent.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from evokern.compile.build import tensors_of
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Launch, Problem, Tensor, Tolerance
from evokern.device.sim.failure import require_no_fault
from evokern.device.sim.program import BuiltPrograms, SimulatedProgram
from evokern.device.sim.stage import ProblemBuffers, judges_blocks
from evokern.gate.check import candidate_seed
from evokern.gate.comparison import error_over_tolerance, independent_errors
from evokern.gate.verdict import TailRisk, margin_evidence, tail_risk, undecided
from evokern.hardware.profiles import Profile
from evokern.study.settings import InputSet, SimulationSettings

BLOCKS_AT_ONCE = 8
"""Number of blocks between two decisions."""
MOST_BLOCKS = 48
"""Maximum number of blocks, after which the current estimate counts; a few seconds of work for the packaged kernels."""


class TailRiskProbe:
    """Tail risk check for candidates of one kernel on one chip."""

    def __init__(
        self, kernel: Kernel, chip: Profile, simulation: SimulationSettings, tolerance: Mapping[str, Tolerance],
        secret: int,
    ) -> None:  # fmt: skip
        self._kernel, self._simulation, self._tolerance, self._secret = kernel, simulation, tolerance, secret
        self._programs = BuiltPrograms(kernel, chip)

    def fault(
        self, config: Config, built: Built, problem: Problem, seen: Mapping[tuple[InputSet, str], torch.Tensor]
    ) -> dict[str, Any] | None:
        """Return the evidence of an excessive tail risk, or None if there is none or blocks cannot be checked.

        Args:
            config: configuration of the candidate.
            built: programs of the candidate.
            problem: one of the problems that it was built for.
            seen: its errors on small problems, by kind of inputs and output.

        Raises:
            RunFailed: a block crashed or hung.
        """
        tensors = tensors_of(self._kernel, config, problem)
        asked = dict.fromkeys(
            kind for (kind, name), errors in seen.items() if undecided(errors, _units(tensors[name], kind))
        )
        if not asked:
            return None
        program, launches = self._programs.parsed(built.program(problem), config), built.build(problem).launches
        if not judges_blocks(self._kernel, problem, tensors, program, launches):
            return None
        # Equal rows come first: they have the fewest independent errors, so small problems reveal least about them.
        for kind in sorted(asked, key=lambda kind: kind != "equal_rows"):
            seeds = random.Random(candidate_seed(self._secret, config, problem))
            found = self._sampled(problem, tensors, kind, program, launches[0], seeds)
            for name, one in found.items():
                if one is not None and one.excessive:
                    return margin_evidence(one, name, kind, _units(tensors[name], kind)) | {"problem": problem.key}
        return None

    def _sampled(
        self,
        problem: Problem,
        tensors: Mapping[str, Tensor],
        kind: InputSet,
        program: SimulatedProgram,
        launch: Launch,
        seeds: random.Random,
    ) -> dict[str, TailRisk | None]:
        """Return the tail risk of each output, from as many sampled blocks as a clear decision needs.

        A problem with few blocks has few independent errors, too few to distinguish bounded from unbounded tails. After
        all its blocks ran, they run again on new inputs.
        """
        ran = 0
        seen: dict[str, torch.Tensor] = {}
        found: dict[str, TailRisk | None] = {}
        while ran < MOST_BLOCKS:
            seed = seeds.getrandbits(62)
            stage = ProblemBuffers(problem, tensors, kind, seed)
            stage.poison()
            order = program.cluster(launch).drawn(launch.grid, MOST_BLOCKS - ran, random.Random(seed))
            of_draw: dict[str, torch.Tensor] = {}
            for start in range(0, len(order), BLOCKS_AT_ONCE):
                self._run(stage, program, launch, sorted(order[start : start + BLOCKS_AT_ONCE]))
                found, of_draw = {}, {}
                for name, units in _errors(self._kernel, stage, kind, self._tolerance):
                    of_draw[name] = torch.cat([seen[name], units[units >= 0]]) if name in seen else units[units >= 0]
                    found[name] = tail_risk(of_draw[name], units.numel())
                if all(one is not None and one.decided for one in found.values()):
                    return found
            seen = of_draw
            ran += len(order)
        return found

    def _run(self, stage: ProblemBuffers, program: SimulatedProgram, launch: Launch, blocks: Sequence[int]) -> None:
        limit = self._simulation.long_limit
        result = program.launch(
            launch, stage.buffers, stage.memory, instruction_limit=limit, blocks=blocks, sanitize=False
        )
        if result.fatal is not None:
            require_no_fault(result, launch, limit, stage.problem, blocks=len(blocks))


def tail_risks(
    kernel: Kernel, stage: ProblemBuffers, kind: InputSet, tolerance: Mapping[str, Tolerance]
) -> dict[str, tuple[TailRisk | None, int]]:
    """Return the tail risk of each output from the blocks that ran, and its number of independent errors."""
    return {
        name: (None if tolerance[name].bound else tail_risk(units[units >= 0], units.numel()), units.numel())
        for name, units in _errors(kernel, stage, kind, tolerance)
    }


def _errors(
    kernel: Kernel, stage: ProblemBuffers, kind: InputSet, tolerance: Mapping[str, Tolerance]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each output with the ratio of error to tolerance for each unit; -1 for unwritten ones."""
    for name, got, reference, allowed, written in stage.results(kernel, tolerance):
        errors = error_over_tolerance(got, reference, allowed)
        yield name, independent_errors(torch.where(written, errors, -1.0), kind)


def _units(tensor: Tensor, kind: InputSet) -> int:
    """Return the number of independent errors of an output (`evokern.gate.comparison.independent_errors`)."""
    return tensor.elements // (tensor.shape[-1] if kind == "equal_rows" and len(tensor.shape) > 1 else 1)
