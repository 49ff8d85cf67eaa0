"""Whether a candidate that is right on small problems would be so on the study's own, which has many more elements.

Errors that come near the tolerance on a few hundred rows may pass it on a few thousand: there a GPU, which checks the
whole problem, finds what a small one does not show. Some blocks of the problem itself are run on the kind of inputs in
question, and the gate's own rule (`evokern.gate.tail_risk`) says what they mean for all of it. More blocks follow until
the answer is sure, or has cost enough.
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
from evokern.device.sim.failure import failure
from evokern.device.sim.program import BuiltPrograms, SimulatedProgram
from evokern.device.sim.stage import ProblemBuffers, judges_blocks
from evokern.gate.comparison import error_over_tolerance, independent_errors
from evokern.gate.tail_risk import TailRisk, fault, tail_risk, undecided
from evokern.hardware.profiles import Profile
from evokern.study.settings import InputSet, SimulationSettings

BLOCKS_AT_ONCE = 8
"""Blocks run before the question is asked again."""
MOST_BLOCKS = 48
"""Blocks after which the estimate is taken as it is: some seconds, of packaged kernels."""


class TailRiskProbe:
    """Asks about candidates of one kernel on one chip."""

    def __init__(
        self, kernel: Kernel, chip: Profile, simulation: SimulationSettings, tolerance: Mapping[str, Tolerance]
    ) -> None:
        self._kernel, self._simulation, self._tolerance = kernel, simulation, tolerance
        self._programs = BuiltPrograms(kernel, chip)

    def fault(
        self, config: Config, built: Built, problem: Problem, seen: Mapping[tuple[InputSet, str], torch.Tensor]
    ) -> dict[str, Any] | None:
        """Return the evidence against a candidate, None where its errors keep clear or its blocks cannot be judged.

        Args:
            config: its configuration.
            built: its programs.
            problem: one of the problems it was built for.
            seen: its errors on small problems, by kind of inputs and output.

        Raises:
            RunFailed: a block crashed, or did not end.
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
        # Equal rows have the fewest units, so that a small problem says least about them: they decide most often.
        for kind in sorted(asked, key=lambda kind: kind != "equal_rows"):
            found = self._sampled(problem, tensors, kind, program, launches[0])
            for name, one in found.items():
                if one is not None and one.excessive:
                    return fault(one, name, kind, _units(tensors[name], kind)) | {"problem": problem.key}
        return None

    def _sampled(
        self, problem: Problem, tensors: Mapping[str, Tensor], kind: InputSet, program: SimulatedProgram, launch: Launch
    ) -> dict[str, TailRisk | None]:
        """Return what sampled blocks say of each output, after as many as it takes to be sure.

        A problem with few blocks has few units, which cannot tell errors that end at a point from errors that fall
        off: once all of its blocks have run they run again, on inputs drawn anew.
        """
        random_seed, ran = random.SystemRandom(), 0
        seen: dict[str, torch.Tensor] = {}
        found: dict[str, TailRisk | None] = {}
        while ran < MOST_BLOCKS:
            seed = random_seed.getrandbits(62)
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
        limit = self._simulation.instruction_limit
        result = program.launch(
            launch, stage.buffers, stage.memory, instruction_limit=limit, blocks=blocks, sanitize=False
        )
        if result.fatal is not None:
            raise failure(result.fatal, limit, stage.problem)


def tail_risks(
    kernel: Kernel, stage: ProblemBuffers, kind: InputSet, tolerance: Mapping[str, Tolerance]
) -> dict[str, tuple[TailRisk | None, int]]:
    """Return what the blocks that were run say of each output, and how many independent errors the output has."""
    return {
        name: (tail_risk(units[units >= 0], units.numel()), units.numel())
        for name, units in _errors(kernel, stage, kind, tolerance)
    }


def _errors(
    kernel: Kernel, stage: ProblemBuffers, kind: InputSet, tolerance: Mapping[str, Tolerance]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each output and error over tolerance of each of its units, -1 where no block that ran wrote it."""
    for name, got, reference, written in stage.results(kernel):
        allowed = tolerance[name].holding(stage.tensors[name])
        errors = error_over_tolerance(got, reference, allowed.atol + allowed.rtol * reference.abs())
        yield name, independent_errors(torch.where(written, errors, -1.0), kind)


def _units(tensor: Tensor, kind: InputSet) -> int:
    """Return how many independent errors an output has (`evokern.gate.comparison.independent_errors`)."""
    return tensor.elements // (tensor.shape[-1] if kind == "equal_rows" and len(tensor.shape) > 1 else 1)
