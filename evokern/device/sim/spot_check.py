"""Spot check of a candidate's results: some blocks, on inputs with large rounding errors.

Candidates that fail on a GPU mostly fail by rounding, with large magnitudes or rows of equal values. So some blocks of
the full-size problem, whose program is already compiled, run on such inputs. The gate's own tolerance and tail risk
decide.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from evokern import simt
from evokern.compile.build import tensors_of
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem, Tolerance
from evokern.device.sim.failure import require_no_fault
from evokern.device.sim.predict import Predictor
from evokern.device.sim.stage import ProblemBuffers, judges_blocks
from evokern.device.sim.tail_risk import tail_risks
from evokern.gate.data import exact_kinds
from evokern.gate.verdict import margin_evidence
from evokern.study.settings import InputSet, SimulationSettings

BLOCKS = 8
"""Number of blocks to check. They hold a few thousand elements; the gate checks all elements."""
MOST_BYTES = 1 << 28
"""Bytes of buffers to cache, so that several problems are not generated again for each candidate."""


class SpotCheck:
    """Checker that runs some blocks of candidates of one kernel."""

    def __init__(
        self,
        kernel: Kernel,
        simulation: SimulationSettings,
        tolerance: Mapping[str, Tolerance],
        kinds: tuple[InputSet, ...],
    ) -> None:
        self._kernel, self._simulation, self._tolerance = kernel, simulation, tolerance
        # The predictor already checks blocks on normal inputs. Errors on the kind `edges` are not caused by rounding,
        # and the gate tests it later.
        self._kinds = tuple(kind for kind in kinds if kind not in ("normal", "edges"))
        self._stages: dict[tuple[Any, ...], dict[InputSet, ProblemBuffers]] = {}

    def judges(self, config: Config, built: Built, problem: Problem, predictor: Predictor) -> bool:
        """Return whether blocks of a candidate can be checked separately."""
        tensors, program = tensors_of(self._kernel, config, problem), predictor.program(config, built, problem)
        return judges_blocks(self._kernel, problem, tensors, program, built.build(problem).launches)

    def fault(self, config: Config, built: Built, problem: Problem, predictor: Predictor) -> Mapping[str, Any] | None:
        """Return the evidence of wrong results in the checked blocks, or None.

        Raises:
            RunFailed: a block crashed or hung.
        """
        launch = built.build(problem).launches[0]
        stages = self._staged(config, problem)
        if not stages:
            return None
        memory = next(iter(stages.values())).memory
        for stage in stages.values():
            stage.poison()
        limit = self._simulation.long_limit
        program = predictor.program(config, built, problem)
        chosen = sorted(program.cluster(launch).drawn(launch.grid, BLOCKS, random.Random(0)))
        results = program.launch_many(
            launch, [stage.buffers for stage in stages.values()], memory,
            instruction_limit=limit, blocks=chosen, sanitize=False,
        )  # fmt: skip
        for result in results:
            if result.fatal is not None:
                require_no_fault(result, launch, limit, problem, blocks=len(chosen))
        for kind, stage in stages.items():
            for name, (found, of) in tail_risks(self._kernel, stage, kind, self._tolerance).items():
                if found is not None and found.excessive:
                    return margin_evidence(found, name, kind, of) | {"problem": problem.key}
                if found is None and (message := stage.fault(self._kernel, self._tolerance)):  # too few errors
                    wrong = f"{message} ({kind} inputs)"
                    return {"check": "tolerance", "input_set": kind, "message": wrong, "problem": problem.key}
        return None

    def _staged(self, config: Config, problem: Problem) -> dict[InputSet, ProblemBuffers]:
        """Return the buffers of a problem for each kind of inputs, all in one memory."""
        tensors = tensors_of(self._kernel, config, problem)
        key = (problem, tuple(tensors.items()))
        if key not in self._stages:
            if sum(stage.bytes for stages in self._stages.values() for stage in stages.values()) > MOST_BYTES:
                self._stages.clear()
            memory = simt.Memory()
            kinds = exact_kinds(self._kinds, tensors)
            self._stages[key] = {kind: ProblemBuffers(problem, tensors, kind, memory=memory) for kind in kinds}
        for stage in self._stages[key].values():
            stage.tensors = dict(tensors)  # the candidate's bounds
        return self._stages[key]
