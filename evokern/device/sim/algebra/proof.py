"""Exact proof: a candidate against the default candidate and the reference, in exact arithmetic on the PTX machine.

The default candidate and the reference are computed once for each problem. A difference counts only if it is there for
other inputs, too, because a rounded value may decide about a branch or a maximum. The square root of a number that has
none in the field also has the wrong sign.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from evokern.compile.build import tensors_of
from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.device.sim.algebra.comparison import (
    DIFFERENT,
    EQUAL,
    NOT_COMPARABLE,
    NOT_FINISHED,
    SAME,
    ExactProof,
    OutputComparison,
    compared,
    compared_output,
    differing,
)
from evokern.device.sim.algebra.differences import (
    MOST_CONSTANTS,
    OTHER_ARGUMENTS,
    UNSTABLE,
    ComparedRuns,
    Differences,
    confirmations,
)
from evokern.device.sim.algebra.named_functions import HEADER
from evokern.device.sim.algebra.programs import ProofPrograms
from evokern.device.sim.algebra.reference import FieldReference, field_reference
from evokern.device.sim.algebra.runs import INPUTS, ExactRun, exact_run, input_shadows
from evokern.device.sim.arguments import other_inputs
from evokern.errors import EvokernError
from evokern.hardware.profiles import Profile
from evokern.ptx.lines import SourceLocation
from evokern.simt import NO_PATHS, ROUNDS, Array, LoopRounds, Paths
from evokern.wording import count_noun

PARTS = 3
"""Parts of a comparison that take about the same time: the candidate, the default candidate and the reference."""
LEAST_S = 0.05
"""Seconds that a comparison takes at least, however small the problem is."""
MOST_HALVINGS = 64
"""Number of problems from which the largest one is chosen."""


class Prover:
    """Prover for candidates of one kernel on one chip; it keeps the results of the default candidate."""

    def __init__(
        self,
        kernel: Kernel,
        chip: Profile,
        note: Callable[[str], None] = lambda text: None,
        *,
        reference: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a prover.

        Args:
            kernel: the kernel.
            chip: chip with the resource limits.
            note: receives progress.
            reference: evaluate the reference for every candidate, not only for those that differ.
            clock: clock of all time limits, in seconds. With `time.process_time`, the load of the machine does not
                change what is finished.
        """
        self._kernel, self._chip, self._note, self._every = kernel, chip, note, reference
        self._clock = clock
        self.programs = ProofPrograms(kernel, chip)
        self._differences = Differences(kernel, self.programs, note, search=reference, clock=clock)
        self._basis = kernel.space.default()
        self._defaults: dict[Problem, ExactRun | str] = {}
        self._references: dict[Problem, FieldReference | str] = {}
        self._spent: dict[Problem, float] = {}

    def prove(self, config: Config, problems: Sequence[Problem], seconds: float) -> list[ExactProof]:
        """Compare a candidate with the default candidate at some problems.

        Args:
            config: the candidate.
            problems: problems that the candidate can run; those that only the default candidate cannot are left out.
            seconds: time limit; comparisons that exceed it are not finished.
        """
        end = self._clock() + seconds
        able = [one for one in problems if check(self._kernel, self._basis, [one], self._chip, essential=True) is None]
        return [self.at(config, problem, end) for problem in able or problems]

    def largest(self, problems: Iterable[Problem], like: Problem, seconds: float) -> Problem | None:
        """Return the first problem that a comparison is expected to finish; None if there is none.

        Args:
            problems: problems, largest first.
            like: small problem at which a candidate was compared.
            seconds: time for the comparison, whose work is proportional to the operations of the workload.
        """
        spent, flops = self._spent.get(like), self._kernel.workload.flops
        if spent is None:
            return None
        most = max(flops(like), 1.0) * seconds / max(spent, LEAST_S)
        able = (one for one in islice(problems, MOST_HALVINGS) if flops(one) <= most)
        return next((one for one in able if not check(self._kernel, self._basis, [one], self._chip, essential=True)),
                    None)  # fmt: skip

    def at(self, config: Config, problem: Problem, end: float) -> ExactProof:
        """Compare a candidate with the default candidate at one problem, until `end` on the prover's clock."""
        try:
            default = self._default(problem, end)
            if isinstance(default, str):
                return self._open(config, problem, NOT_COMPARABLE, default)
            if default.stopped:
                del self._defaults[problem]  # another call may have more time
                return self._open(config, problem, NOT_FINISHED, f"the default candidate {default.stopped}")
            if unlike := self._unlike(config, problem):
                return self._open(config, problem, NOT_COMPARABLE, unlike)
            if config == self._basis:
                run = default
            else:
                self._note(f"{self._kernel.name} at {problem}: running the changed candidate in exact arithmetic")
                run = exact_run(
                    self._kernel, config, problem, self.programs.program(config, problem), end=end, clock=self._clock
                )
            if run.stopped:
                text = f"it {run.stopped}; the default candidate needs {default.issued:,}"
                return self._open(config, problem, NOT_FINISHED, text)
            verdicts = [self._with_reference(one, run, default, problem, end) for one in compared(run, default)]
            if any(one.verdict == DIFFERENT for one in verdicts):
                verdicts = self._differences.confirmed(ComparedRuns(config, problem, run, default, end), verdicts)
            self._spent.setdefault(problem, PARTS * run.seconds)
            return ExactProof(problem, tuple(map(self._located, verdicts)), run.paths)
        except EvokernError as error:
            return self._open(config, problem, NOT_COMPARABLE, str(error).splitlines()[0])

    def with_fewer_blocks(self, config: Config, problem: Problem, loop: LoopRounds, end: float) -> tuple[str, Paths]:
        """Run a candidate with fewer blocks than it declares, so that a loop over blocks repeats.

        Returns:
            The run in words and its paths, if the loop repeats and the outputs are the same as the default candidate's.
        """
        launches, default = launches_of(self._kernel, config, problem), self._default(problem, end)
        if isinstance(default, str) or default.stopped:
            return "", NO_PATHS
        program = self.programs.program(config, problem)
        changes = [(number, small) for number, one in enumerate(launches) for small in program.fewer_blocks(one)]
        for number, small in changes:
            fewer = (*launches[:number], small, *launches[number + 1 :])
            run = exact_run(self._kernel, config, problem, program, launches=fewer, end=end, clock=self._clock)
            known = run.paths.loops.get(loop.place)
            if run.stopped or known is None or known.rounds < ROUNDS:
                continue
            if all(one.verdict == SAME for one in compared(run, default)):
                return f"{problem} with {count_noun(small.blocks, 'block')}", run.paths
        return "", NO_PATHS

    def _located(self, one: OutputComparison) -> OutputComparison:
        """Name the kernel's source as the file of an obstacle in it or in a function that it calls."""
        if one.obstacle is None:
            return one
        at = one.obstacle.location
        calls = [SourceLocation(line, file) for file, line in at.called_from if file != HEADER]
        location = calls[0] if at.file == HEADER and calls else at
        location = replace(location, file=location.file or self._kernel.source)
        return replace(one, obstacle=replace(one.obstacle, location=location))

    def _default(self, problem: Problem, end: float) -> ExactRun | str:
        """Return the outputs of the default candidate, or why there are none."""
        if problem not in self._defaults:
            self._defaults[problem] = self._first(problem, end)
        return self._defaults[problem]

    def _first(self, problem: Problem, end: float) -> ExactRun | str:
        kernel, basis = self._kernel, self._basis
        if violation := check(kernel, basis, [problem], self._chip, essential=True):
            return f"the default candidate cannot run at {problem}: {violation}"
        self._note(f"{kernel.name} at {problem}: running the default candidate in exact arithmetic")
        try:
            run = exact_run(kernel, basis, problem, self.programs.program(basis, problem), end=end, clock=self._clock)
        except EvokernError as error:
            return f"the default candidate does not run at {problem}: {str(error).splitlines()[0]}"
        return f"the default candidate does not run at {problem}: {run.fault}" if run.fault else run

    def _reference(self, problem: Problem, seed: int = 0) -> FieldReference | str:
        """Return the outputs of the reference, or why there are none."""
        if seed == 0 and problem in self._references:
            return self._references[problem]
        self._note(f"{self._kernel.name} at {problem}: evaluating the reference in exact arithmetic")
        tensors = tensors_of(self._kernel, self._basis, problem)
        inputs = {name: data for name, tensor, data in other_inputs(tensors, seed % INPUTS) if tensor.given}
        found = field_reference(self._kernel, problem, inputs, input_shadows(tensors, seed))
        return found if seed else self._references.setdefault(problem, found)

    def _differs_again(self, name: str, left: Array, default: ExactRun, problem: Problem, end: float) -> bool:
        """Return whether the default candidate differs from the reference on other inputs, too."""
        program = self.programs.program(self._basis, problem)
        for seed in range(1, 1 + confirmations(default.roots, left)):
            reference = self._reference(problem, seed)
            if isinstance(reference, str) or self._clock() > end:
                break
            run = exact_run(self._kernel, self._basis, problem, program, seed=seed, end=end, clock=self._clock)
            if run.stopped or run.fault:
                break
            left = left & differing(name, run, ExactRun(reference.values, {}, run.memory))
            if not left.any():
                return False
        return True

    def _unlike(self, config: Config, problem: Problem) -> str:
        """Return why the buffers of a candidate cannot be compared with those of the default candidate."""
        own, basis = (tensors_of(self._kernel, one, problem) for one in (config, self._basis))
        for name, tensor in basis.items():
            shared = tensor.given or tensor.role in ("output", "inout")
            other = own.get(name)
            if shared and (other is None or (other.dtype, other.shape) != (tensor.dtype, tensor.shape)):
                return f"the candidate declares {name!r} with another type or shape than the default candidate"
        return ""

    def _open(self, config: Config, problem: Problem, verdict: str, why: str) -> ExactProof:
        tensors = tensors_of(self._kernel, config, problem)
        names = [name for name, one in tensors.items() if one.role in ("output", "inout")]
        unknown = "it was not evaluated"
        return ExactProof(
            problem, tuple(OutputComparison(name, verdict, detail=why, reference=unknown) for name in names)
        )

    def _with_reference(
        self, one: OutputComparison, run: ExactRun, default: ExactRun, problem: Problem, end: float
    ) -> OutputComparison:
        """Return a comparison together with that of the default candidate with the reference."""
        if one.output not in default.values:
            return replace(one, reference="it is not a floating-point output")
        if one.verdict != DIFFERENT and not self._every:
            return replace(one, reference="not evaluated in a search")
        reference = self._reference(problem)
        if isinstance(reference, str) or one.output not in reference.values:
            why = reference if isinstance(reference, str) else "the reference does not return it as numbers"
            return replace(one, reference=f"no reference over the field ({why})")
        known = ExactRun(reference.values, {}, default.memory)
        versus = compared_output(one.output, default, known)
        text = EQUAL if versus.verdict == SAME else f"{versus.verdict}{versus.reason}"
        if versus.verdict == DIFFERENT and (why := self.programs.unnamed(self._basis, problem)):
            text = f"not comparable: {why}"
        elif versus.verdict == DIFFERENT and reference.arguments != default.memory.arguments:
            text = f"not comparable: {OTHER_ARGUMENTS}"
        elif versus.verdict == DIFFERENT and reference.inexact:
            constants = ", ".join(f"{constant:.6g}" for constant in reference.inexact[:MOST_CONSTANTS])
            text = f"not comparable: the program may round the constants of the reference otherwise ({constants})"
        elif versus.verdict == DIFFERENT:
            left = differing(one.output, default, known)
            if not self._differs_again(one.output, left, default, problem, end):
                text = f"not comparable: {UNSTABLE}"
        one = replace(one, reference=text)
        if one.verdict == DIFFERENT and compared_output(one.output, run, known).verdict == SAME:
            return replace(one, verdict=EQUAL, element=-1, count=0)
        return one
