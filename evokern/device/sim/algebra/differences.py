"""Confirmation of differences on other inputs, and search for the input that an element counts wrongly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch

from evokern import simt
from evokern.compile.build import tensors_of
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.device.sim.algebra.comparison import (
    DIFFERENT,
    EQUAL,
    NOT_COMPARABLE,
    NOT_FINISHED,
    OutputComparison,
    differing,
    obstructed,
)
from evokern.device.sim.algebra.influence import InfluenceSearch
from evokern.device.sim.algebra.programs import ProofPrograms
from evokern.device.sim.algebra.runs import INPUTS, LIMIT, ExactRun, Slices, exact_run
from evokern.device.sim.arguments import draw_buffers
from evokern.device.sim.runner import SimRunner, checked
from evokern.device.sim.stage import independent
from evokern.gate import Gate, RunFailed
from evokern.simt import Array, WriteRecord, recording
from evokern.study.settings import GateSettings, SimulationSettings

CONFIRMATIONS, ROOT_CONFIRMATIONS = INPUTS - 1, 10
"""Runs that must show a difference. With a square root, half of the correct rows differ in each run. One more run is
thus needed each time the number of elements doubles."""
MOST_CONSTANTS = 4
"""Number of constants to name."""
UNSTABLE = "other elements differ on other inputs, so a rounded value decides, or the sign of a square root"
OTHER_ARGUMENTS = "a function has other arguments in one program, and laws such as addition theorems are not known"
Parts = tuple[Sequence[int], Sequence[int]]
"""Blocks of a candidate and of the default candidate."""


@dataclass(frozen=True, slots=True)
class ComparedRuns:
    """Runs of a candidate and of the default candidate at one problem, on the same inputs."""

    config: Config
    problem: Problem
    run: ExactRun
    default: ExactRun
    end: float
    """Time on the prover's clock at which further runs stop."""


class Differences:
    """Check of the differences between candidates of one kernel and its default candidate."""

    def __init__(
        self,
        kernel: Kernel,
        programs: ProofPrograms,
        note: Callable[[str], None],
        *,
        search: bool,
        clock: Callable[[], float],
    ) -> None:
        """Create a check.

        Args:
            kernel: the kernel.
            programs: the programs of the candidates.
            note: receives progress.
            search: search for the input that an element counts wrongly.
            clock: clock of the time limits, in seconds.
        """
        self._kernel, self._programs, self._note, self._search = kernel, programs, note, search
        self._clock = clock
        self._basis = kernel.space.default()
        self._right: dict[Problem, bool] = {}

    def confirmed(self, runs: ComparedRuns, verdicts: Sequence[OutputComparison]) -> list[OutputComparison]:
        """Return the verdicts; a difference must be there on other inputs, and the default candidate correct."""
        first = {
            one.output: differing(one.output, runs.run, runs.default) for one in verdicts if one.verdict == DIFFERENT
        }
        parts = self._parts(runs, first)
        left = self._repeated(runs, first, parts)
        if left is not None and parts is not None and not any(places.any() for places in left.values()):
            left = self._repeated(runs, first, None)
        if left is None:
            late = "it differs on the first inputs, but the time did not suffice for others"
            return [one if one.verdict != DIFFERENT else replace(one, verdict=NOT_FINISHED, detail=late)
                    for one in verdicts]  # fmt: skip
        ends = {name: places.nonzero()[0][:1] for name, places in left.items()}
        blocks = self._writers(runs.config, runs.problem, ends)
        line = self._programs.store_line(runs.config, runs.problem)
        found = []
        for one in verdicts:
            if one.verdict != DIFFERENT:
                found.append(one)
            elif not ends[one.output].size:
                open_ = obstructed(one.output, runs.run, runs.default)
                open_ = open_ or replace(one, verdict=NOT_COMPARABLE, detail=UNSTABLE)
                found.append(replace(open_, reference=one.reference))
            elif why := self._doubt(one, runs):
                found.append(replace(one, verdict=NOT_COMPARABLE, detail=why))
            else:
                block, element = next(iter(blocks.get(one.output, ())), -1), int(ends[one.output][0])
                why = self._influence(runs, (one.output, element), parts) if self._search else ""
                found.append(replace(one, element=element, block=block, line=line, detail=why))
        return found

    def _doubt(self, one: OutputComparison, runs: ComparedRuns) -> str:
        """Return why a confirmed difference does not prove a candidate wrong; empty if it does."""
        tolerance = self._kernel.workload.tolerance.get(one.output)
        if one.output in runs.run.bits and tolerance is not None and (tolerance.atol > 0 or tolerance.rtol > 0):
            return "it has integers with a tolerance"
        if one.reference != EQUAL and not self._default_is_right(runs.problem):
            return "the default candidate is not correct"
        for config in (runs.config, self._basis):
            if why := self._programs.unnamed(config, runs.problem):
                return why
        if runs.run.memory.arguments != runs.default.memory.arguments:
            return OTHER_ARGUMENTS
        if rounded := self._programs.rounded_constants(runs.config, self._basis, runs.problem):
            listed = ", ".join(f"{constant:.9g}" for constant in rounded[:MOST_CONSTANTS])
            return f"the candidate and the default candidate round constants differently ({listed})"
        return ""

    def _repeated(self, runs: ComparedRuns, left: Mapping[str, Array], parts: Parts | None) -> dict[str, Array] | None:
        """Return where outputs also differ on other inputs; None if the time does not suffice."""
        found, problem = dict(left), runs.problem
        for seed in range(1, 1 + confirmations(runs.run.roots or runs.default.roots, *left.values())):
            self._note(f"{self._kernel.name} at {problem}: repeating the comparison with other inputs ({seed})")
            again = [
                exact_run(self._kernel, one, problem, self._programs.program(one, problem), seed=seed, blocks=some,
                          end=runs.end, clock=self._clock)
                for one, some in zip((runs.config, self._basis), parts or (None, None), strict=True)
            ]  # fmt: skip
            if any(one.stopped or one.fault for one in again):
                return None
            found = {name: places & differing(name, *again) for name, places in found.items()}
            if not any(places.any() for places in found.values()):
                break
        return found

    def _parts(self, runs: ComparedRuns, left: Mapping[str, Array]) -> Parts | None:
        """Return the blocks of both candidates that wrote the first and the last differing element of each output.

        None if blocks depend on each other, or if the sign of a root may decide about any of the elements.
        """
        found = []
        ends = {name: places.nonzero()[0][[0, -1]] for name, places in left.items()}
        if runs.run.roots or runs.default.roots:
            return None
        for one in (runs.config, self._basis):
            launches = launches_of(self._kernel, one, runs.problem)
            program = self._programs.program(one, runs.problem)
            if not independent(tensors_of(self._kernel, one, runs.problem), program, launches):
                return None
            blocks = self._writers(one, runs.problem, ends)
            if not all(blocks.get(name) for name in ends):
                return None
            found.append(program.whole(launches[0], sorted({*chain.from_iterable(blocks.values())})))
        return found[0], found[1]

    def _influence(self, runs: ComparedRuns, place: tuple[str, int], parts: Parts | None) -> str:
        """Return a clause about the input that an element counts wrongly; empty if it was not found in time."""
        name, element = place
        if name not in runs.run.values:
            return ""
        problem = runs.problem
        self._note(f"{self._kernel.name} at {problem}: looking for the input that element {element} counts wrongly")

        def changes(candidate: bool, slices: Mapping[str, Slices]) -> bool:
            one, blocks = (runs.config, self._basis)[not candidate], (parts or (None, None))[not candidate]
            program = self._programs.program(one, problem)
            run = exact_run(
                self._kernel, one, problem, program, blocks=blocks, slices=slices, end=runs.end, clock=self._clock
            )
            if run.stopped or run.fault:
                raise LookupError
            return bool(differing(name, run, (runs.run, runs.default)[not candidate])[element])

        try:
            return InfluenceSearch(self._kernel, runs.config, problem, place, changes).text()
        except LookupError:
            return ""

    def _writers(self, config: Config, problem: Problem, places: Mapping[str, Array]) -> dict[str, list[int]]:
        """Return the blocks that wrote some elements of each output."""
        program, tensors = self._programs.program(config, problem), tensors_of(self._kernel, config, problem)
        memory, blocks = simt.Memory(), dict[str, list[int]]()
        buffers = draw_buffers(memory, tensors)
        with recording(memory, WriteRecord(memory, by_block=True)) as record:
            for launch in launches_of(self._kernel, config, problem):
                program.launch(launch, buffers, memory, instruction_limit=LIMIT, sanitize=False)
        for name, wanted in places.items():
            by, elements = record.elements(buffers[name], tensors[name].bytes // tensors[name].elements)
            here = (by[elements == one] for one in wanted)
            blocks[name] = [int(one[-1]) for one in here if one.size]
        return blocks

    def _default_is_right(self, problem: Problem) -> bool:
        """Return whether the default candidate passes the gate; an unfinished draft may compute nothing."""
        if problem not in self._right:
            kernel, basis = self._kernel, self._basis
            gate = Gate(kernel, problem, GateSettings(runs=1), torch.device("cpu"))
            program = self._programs.program(basis, problem)
            runner = SimRunner(program, problem, SimulationSettings().instruction_limit)
            try:
                verdict = checked(gate, runner, launches_of(kernel, basis, problem), tensors_of(kernel, basis, problem))
                self._right[problem] = verdict.passed
            except RunFailed:
                self._right[problem] = False
        return self._right[problem]


def confirmations(roots: bool, *places: Array) -> int:
    """Return the number of further runs that must show a difference at some of the places."""
    if not roots:
        return CONFIRMATIONS
    return ROOT_CONFIRMATIONS + sum(int(one.sum()) for one in places).bit_length()
