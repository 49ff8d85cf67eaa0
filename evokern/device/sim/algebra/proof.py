"""Exact proof: a candidate against the default candidate and the reference, in exact arithmetic on the PTX machine.

The default candidate and the reference are computed once for each problem. A difference counts only if it is there for
other inputs, too, because a rounded value may decide about a branch or a maximum. The square root of a number that has
none in the field also has the wrong sign.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from evokern import simt
from evokern.compile.build import tensors_of
from evokern.compile.records import CompileFailure
from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.render import Rendered, render
from evokern.device.sim.algebra.comparison import (
    DIFFERENT,
    EQUAL,
    FAULT,
    NOT_COMPARABLE,
    NOT_FINISHED,
    SAME,
    OutputComparison,
    compared,
    compared_output,
    differing,
    obstructed,
    verdict_on,
)
from evokern.device.sim.algebra.influence import InfluenceSearch
from evokern.device.sim.algebra.named_functions import HEADER, with_named_functions
from evokern.device.sim.algebra.reference import FieldReference, field_reference
from evokern.device.sim.algebra.runs import INPUTS, LIMIT, ExactRun, Slices, exact_run, input_shadows
from evokern.device.sim.arguments import draw_buffers, other_inputs
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.device.sim.runner import SimRunner, checked
from evokern.device.sim.stage import independent
from evokern.errors import EvokernError, SourceError
from evokern.gate import Gate, RunFailed
from evokern.hardware.profiles import Profile
from evokern.ptx.lines import SourceLocation
from evokern.ptx.syntax import Immediate
from evokern.simt import NO_PATHS, ROUNDS, Array, LoopRounds, Paths, WriteRecord, recording
from evokern.study.settings import GateSettings, SimulationSettings
from evokern.wording import count_noun

CONFIRMATIONS, ROOT_CONFIRMATIONS = INPUTS - 1, 10
"""Runs that must show a difference. With a square root, half of the honest rows differ in each run, so that one more
is needed for every doubling of the elements."""
PARTS = 3
"""Parts of a comparison that take about the same time: the candidate, the default candidate and the reference."""
LEAST_S = 0.05
"""Seconds that a comparison takes at least, however small the problem is."""
MOST_HALVINGS = 64
"""Number of problems from which the largest one is chosen."""
MOST_CONSTANTS = 4
"""Number of constants to name."""
EXACT_BITS, ROUNDED = 12, 2.0**-22
"""A constant with at most this many significant bits is exact; relative error of a product of rounded constants."""
MOST_PROGRAMS = 6
"""Number of programs to keep: those of the default candidate and of the last candidate at some problems."""
UNSTABLE = "other elements differ on other inputs, so a rounded value decides, or the sign of a square root"
UNNAMED = "the functions have no exact values, because the proof build does not compile"
OTHER_ARGUMENTS = "a function has other arguments in one program, and laws such as addition theorems are not known"
Parts = tuple[Sequence[int], Sequence[int]]
"""Blocks of a candidate and of the default candidate."""
_ORDER = (DIFFERENT, FAULT, NOT_COMPARABLE, NOT_FINISHED, SAME, EQUAL)
"""Verdicts, worst first."""


@dataclass(frozen=True, slots=True)
class ExactProof:
    """Comparison of a candidate with the default candidate at one problem."""

    problem: Problem
    verdicts: tuple[OutputComparison, ...]
    paths: Paths = NO_PATHS
    """Paths of the candidate."""

    def as_dict(self) -> dict[str, Any]:
        """Return the proof as data for JSON."""
        return {
            "problem": self.problem.key,
            "verdicts": [
                {
                    "output": one.output, "verdict": one.verdict, "element": one.element, "count": one.count,
                    "block": one.block, "line": one.line, "reference": one.reference, "detail": one.detail,
                    "obstacle": None if one.obstacle is None else {
                        "reason": one.obstacle.reason, "file": one.obstacle.location.file,
                        "line": one.obstacle.location.line, "instruction": one.obstacle.instruction,
                    },
                }
                for one in self.verdicts
            ],
        }  # fmt: skip


def algebra_facts(proofs: Sequence[ExactProof]) -> dict[str, Any]:
    """Return proofs as facts to store: for each output the worst verdict, with its problem, and the reference.

    Problems at which a comparison was not finished are listed apart, unless there are no others.
    """
    late = [one for one in proofs if any(verdict.verdict == NOT_FINISHED for verdict in one.verdicts)]
    ended = [one for one in proofs if one not in late]
    outputs: dict[str, Any] = {}
    for name in dict.fromkeys(one.output for proof in proofs for one in proof.verdicts):
        found = [(one, proof) for proof in ended or proofs for one in proof.verdicts if one.output == name]
        worst, at = min(found, key=lambda item: _ORDER.index(item[0].verdict))
        reference = next((one.reference for one, _ in found if one.reference != EQUAL), EQUAL)
        outputs[name] = {"verdict": worst.verdict, "reference": reference}
        if worst.reason:
            outputs[name] |= {"problem": at.problem.key, "detail": worst.reason.strip(" :")}
    facts: dict[str, Any] = {"outputs": outputs, "problems": [proof.problem.key for proof in ended or proofs]}
    if late and ended:
        facts["unfinished"] = {proof.problem.key: proof.verdicts[0].detail for proof in late}
    return facts


def algebra_fault(proofs: Sequence[ExactProof]) -> dict[str, Any] | None:
    """Return the evidence of a candidate that computes another expression, or None."""
    for proof in proofs:
        for one in proof.verdicts:
            if one.verdict == DIFFERENT:
                message = f"in exact arithmetic, {one.output} differs from the default candidate's{one.reason}"
                return {
                    "check": "algebra", "message": f"{message}, at {proof.problem}", "problem": proof.problem.key,
                    "output": one.output, "element": one.element, "bad": one.count, "block": one.block,
                    "line": one.line,
                }  # fmt: skip
    return None


class Prover:
    """Prover for candidates of one kernel on one chip; it keeps the results of the default candidate."""

    def __init__(
        self,
        kernel: Kernel,
        chip: Profile,
        note: Callable[[str], None] = lambda text: None,
        *,
        reference: bool = True,
    ) -> None:
        """Create a prover.

        Args:
            kernel: the kernel.
            chip: chip with the resource limits.
            note: receives progress.
            reference: evaluate the reference for every candidate, not only for those that differ.
        """
        self._kernel, self._chip, self._note, self._every = kernel, chip, note, reference
        self._programs: list[tuple[Rendered, SimulatedProgram]] = []
        self._basis = kernel.space.default()
        self._defaults: dict[Problem, ExactRun | str] = {}
        self._references: dict[Problem, FieldReference | str] = {}
        self._right: dict[Problem, bool] = {}
        self._spent: dict[Problem, float] = {}
        self._unnamed: list[tuple[Rendered, str]] = []

    def prove(self, config: Config, problems: Sequence[Problem], seconds: float) -> list[ExactProof]:
        """Compare a candidate with the default candidate at some problems.

        Args:
            config: the candidate.
            problems: problems that the candidate can run; those that only the default candidate cannot are left out.
            seconds: time limit; comparisons that exceed it are not finished.
        """
        end = time.monotonic() + seconds
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
        """Compare a candidate with the default candidate at one problem, until `end` (monotonic clock)."""
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
                run = exact_run(self._kernel, config, problem, self.program(config, problem), end=end)
            if run.stopped:
                text = f"it {run.stopped}; the default candidate needs {default.issued:,}"
                return self._open(config, problem, NOT_FINISHED, text)
            verdicts = [self._with_reference(one, run, default, problem, end) for one in compared(run, default)]
            if any(one.verdict == DIFFERENT for one in verdicts):
                verdicts = self._confirmed(config, problem, run, verdicts, end)
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
        program = self.program(config, problem)
        changes = [(number, small) for number, one in enumerate(launches) for small in program.fewer_blocks(one)]
        for number, small in changes:
            fewer = (*launches[:number], small, *launches[number + 1 :])
            run = exact_run(self._kernel, config, problem, program, launches=fewer, end=end)
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

    def program(self, config: Config, problem: Problem) -> SimulatedProgram:
        """Return the program of a candidate.

        Raises:
            SourceError: it does not compile.
        """
        rendered = render(self._kernel, config, problem)
        for known, program in self._programs:
            if known == rendered:
                return program
        named = with_named_functions(rendered)
        made = compile_simulated(named or rendered, self._chip)
        if named is not None and isinstance(made, CompileFailure):  # a source may declare such a function itself
            self._unnamed.append((rendered, f"{UNNAMED}: {made.message}"))
            made = compile_simulated(rendered, self._chip)
        if isinstance(made, CompileFailure):
            raise SourceError(f"a candidate does not compile at {problem}: {made.message}")
        self._keep(rendered, made)
        return made

    def remember(self, rendered: Rendered, program: SimulatedProgram) -> None:
        """Keep a program, so that it is not compiled again; a source that names functions needs its proof build."""
        if with_named_functions(rendered) is None:
            self._keep(rendered, program)

    def _without_names(self, config: Config, problem: Problem) -> str:
        """Return why a candidate that names functions has no proof build; empty if it has one."""
        rendered = render(self._kernel, config, problem)
        return next((why for known, why in self._unnamed if known == rendered), "")

    def _keep(self, rendered: Rendered, program: SimulatedProgram) -> None:
        self._programs = [*self._programs[-MOST_PROGRAMS + 1 :], (rendered, program)]

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
            run = exact_run(kernel, basis, problem, self.program(basis, problem), end=end)
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

    def _differs_again(self, name: str, left: Array, problem: Problem, end: float) -> bool:
        """Return whether the default candidate differs from the reference on other inputs, too."""
        program, default = self.program(self._basis, problem), self._known(problem)
        for seed in range(1, 1 + _confirmations(default.roots, left)):
            reference = self._reference(problem, seed)
            if isinstance(reference, str) or time.monotonic() > end:
                break
            run = exact_run(self._kernel, self._basis, problem, program, seed=seed, end=end)
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
        if versus.verdict == DIFFERENT and (why := self._without_names(self._basis, problem)):
            text = f"not comparable: {why}"
        elif versus.verdict == DIFFERENT and reference.arguments != default.memory.arguments:
            text = f"not comparable: {OTHER_ARGUMENTS}"
        elif versus.verdict == DIFFERENT and reference.inexact:
            constants = ", ".join(f"{constant:.6g}" for constant in reference.inexact[:MOST_CONSTANTS])
            text = f"not comparable: the program may round the constants of the reference otherwise ({constants})"
        elif versus.verdict == DIFFERENT:
            left = differing(one.output, default, known)
            if not self._differs_again(one.output, left, problem, end):
                text = f"not comparable: {UNSTABLE}"
        one = replace(one, reference=text)
        if one.verdict == DIFFERENT and compared_output(one.output, run, known).verdict == SAME:
            return replace(one, verdict=EQUAL, element=-1, count=0)
        return one

    def _confirmed(
        self, config: Config, problem: Problem, run: ExactRun, verdicts: Sequence[OutputComparison], end: float
    ) -> list[OutputComparison]:
        """Return the verdicts; a difference must be there on other inputs, and the default candidate correct."""
        first = {
            one.output: differing(one.output, run, self._known(problem)) for one in verdicts if one.verdict == DIFFERENT
        }
        parts = self._parts(config, problem, run, first)
        left = self._repeated(config, problem, run, first, parts, end)
        if left is not None and parts is not None and not any(places.any() for places in left.values()):
            left = self._repeated(config, problem, run, first, None, end)
        if left is None:
            late = "it differs on the first inputs, but the time did not suffice for others"
            return [one if one.verdict != DIFFERENT else replace(one, verdict=NOT_FINISHED, detail=late)
                    for one in verdicts]  # fmt: skip
        ends = {name: places.nonzero()[0][:1] for name, places in left.items()}
        blocks, line = self._writers(config, problem, ends), self._store_line(config, problem)
        found = []
        for one in verdicts:
            if one.verdict != DIFFERENT:
                found.append(one)
                continue
            places = np.flatnonzero(left[one.output])
            if not places.size:
                found.append(replace(self._unconfirmed(one.output, run, problem), reference=one.reference))
            elif one.output in run.bits and self._tolerates(one.output):
                found.append(replace(one, verdict=NOT_COMPARABLE, detail="it has integers with a tolerance"))
            elif one.reference != EQUAL and not self._default_is_right(problem):
                found.append(replace(one, verdict=NOT_COMPARABLE, detail="the default candidate is not correct"))
            elif why := self._without_names(config, problem) or self._without_names(self._basis, problem):
                found.append(replace(one, verdict=NOT_COMPARABLE, detail=why))
            elif run.memory.arguments != self._known(problem).memory.arguments:
                found.append(replace(one, verdict=NOT_COMPARABLE, detail=OTHER_ARGUMENTS))
            elif rounded := self._rounded_constants(config, problem):
                listed = ", ".join(f"{constant:.9g}" for constant in rounded[:MOST_CONSTANTS])
                why = f"the candidate and the default candidate round constants differently ({listed})"
                found.append(replace(one, verdict=NOT_COMPARABLE, detail=why))
            else:
                block = next(iter(blocks.get(one.output, ())), -1)
                place, known = (one.output, int(places[0])), (run, self._known(problem))
                why = self._influence(config, problem, place, known, parts, end) if self._every else ""
                found.append(replace(one, element=place[1], block=block, line=line, detail=why))
        return found

    def _repeated(
        self,
        config: Config,
        problem: Problem,
        run: ExactRun,
        left: Mapping[str, Array],
        parts: Parts | None,
        end: float,
    ) -> dict[str, Array] | None:
        """Return where outputs also differ on other inputs; None if the time does not suffice."""
        found = dict(left)
        for seed in range(1, 1 + _confirmations(run.roots or self._known(problem).roots, *left.values())):
            self._note(f"{self._kernel.name} at {problem}: repeating the comparison with other inputs ({seed})")
            runs = [
                exact_run(self._kernel, one, problem, self.program(one, problem), seed=seed, blocks=some, end=end)
                for one, some in zip((config, self._basis), parts or (None, None), strict=True)
            ]
            if any(one.stopped or one.fault for one in runs):
                return None
            found = {name: places & differing(name, *runs) for name, places in found.items()}
            if not any(places.any() for places in found.values()):
                break
        return found

    def _parts(self, config: Config, problem: Problem, run: ExactRun, left: Mapping[str, Array]) -> Parts | None:
        """Return the blocks of both candidates that wrote the first and the last differing element of each output.

        None if blocks depend on each other, or if the sign of a root may decide about any of the elements.
        """
        found = []
        ends = {name: places.nonzero()[0][[0, -1]] for name, places in left.items()}
        if run.roots or self._known(problem).roots:
            return None
        for one in (config, self._basis):
            launches, program = launches_of(self._kernel, one, problem), self.program(one, problem)
            if not independent(tensors_of(self._kernel, one, problem), program, launches):
                return None
            blocks = self._writers(one, problem, ends)
            if not all(blocks.get(name) for name in ends):
                return None
            found.append(program.whole(launches[0], sorted({*chain.from_iterable(blocks.values())})))
        return found[0], found[1]

    def _influence(
        self, config: Config, problem: Problem, place: tuple[str, int], known: tuple[ExactRun, ExactRun],
        parts: Parts | None, end: float,
    ) -> str:  # fmt: skip
        """Return a clause about the input that an element counts wrongly; empty if it was not found in time."""
        name, element = place
        if name not in known[0].values:
            return ""

        self._note(f"{self._kernel.name} at {problem}: looking for the input that element {element} counts wrongly")

        def changes(candidate: bool, slices: Mapping[str, Slices]) -> bool:
            one, blocks = (config, self._basis)[not candidate], (parts or (None, None))[not candidate]
            program = self.program(one, problem)
            run = exact_run(self._kernel, one, problem, program, blocks=blocks, slices=slices, end=end)
            if run.stopped or run.fault:
                raise LookupError
            return bool(differing(name, run, known[not candidate])[element])

        try:
            return InfluenceSearch(self._kernel, config, problem, place, changes).text()
        except LookupError:
            return ""

    def _tolerates(self, name: str) -> bool:
        """Return whether an output may differ from the reference."""
        known = self._kernel.workload.tolerance.get(name)
        return known is not None and (known.atol > 0 or known.rtol > 0)

    def _known(self, problem: Problem) -> ExactRun:
        default = self._defaults[problem]
        assert not isinstance(default, str)
        return default

    def _unconfirmed(self, name: str, run: ExactRun, problem: Problem) -> OutputComparison:
        """Return the comparison of an output whose elements differ only on some inputs."""
        wrong = differing(name, run, self._known(problem))
        if (open_ := obstructed(name, run, self._known(problem))) is not None:
            return open_
        return replace(verdict_on(name, wrong), verdict=NOT_COMPARABLE, detail=UNSTABLE)

    def _writers(self, config: Config, problem: Problem, places: Mapping[str, Array]) -> dict[str, list[int]]:
        """Return the blocks that wrote some elements of each output."""
        program, tensors = self.program(config, problem), tensors_of(self._kernel, config, problem)
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

    def _store_line(self, config: Config, problem: Problem) -> str:
        """Return the line of all stores to global memory; empty if there are several."""
        program = self.program(config, problem)
        entries = [program.entry(launch) for launch in launches_of(self._kernel, config, problem)]
        lines = {
            entry.lines.source_location(one.location)
            for entry in entries
            for one in entry.instructions
            if one.opcode in ("st", "red", "atom") and not one.has("shared", "local", "param")
        }
        where = lines.pop() if len(lines) == 1 else None
        return f"{where.file or self._kernel.source}:{where.line}" if where else ""

    def _rounded_constants(self, config: Config, problem: Problem) -> list[float]:
        """Return the inexact constants of only one of the two programs that follow from constants of the other.

        For example, one program multiplies by 1/768 in float32 where the other divides by 768.
        """
        (own, all_own), (basis, all_basis) = (self._constants(one, problem) for one in (config, self._basis))
        sizes = {float(value) for value in problem.values() if isinstance(value, int) and value} | {1.0}
        return sorted({*_derived(own - basis, all_basis | sizes), *_derived(basis - own, all_own | sizes)})

    def _constants(self, config: Config, problem: Problem) -> tuple[frozenset[float], frozenset[float]]:
        """Return the absolute values of the constants in float32 and float64 of a candidate's program.

        The first set lacks constants of the functions that the proof build replaces.
        """
        program = self.program(config, problem)
        entries = [program.entry(launch) for launch in launches_of(self._kernel, config, problem)]
        found = [
            (abs(value), entry.lines.source_location(item.location).file == HEADER)
            for entry in entries
            for item in entry.instructions
            for one in item.operands
            if isinstance(one, Immediate) and one.kind in ("f32", "f64")
            if math.isfinite(value := _float_of(one)) and value
        ]
        return frozenset(value for value, hidden in found if not hidden), frozenset(value for value, _ in found)

    def _default_is_right(self, problem: Problem) -> bool:
        """Return whether the default candidate passes the gate; an unfinished draft may compute nothing."""
        if problem not in self._right:
            kernel, basis = self._kernel, self._basis
            gate = Gate(kernel, problem, GateSettings(runs=1), torch.device("cpu"))
            runner = SimRunner(self.program(basis, problem), problem, SimulationSettings().instruction_limit)
            try:
                verdict = checked(gate, runner, launches_of(kernel, basis, problem), tensors_of(kernel, basis, problem))
                self._right[problem] = verdict.passed
            except RunFailed:
                self._right[problem] = False
        return self._right[problem]


def _confirmations(roots: bool, *places: Array) -> int:
    """Return the number of further runs that must show a difference at some of the places."""
    if not roots:
        return CONFIRMATIONS
    return ROOT_CONFIRMATIONS + sum(int(one.sum()) for one in places).bit_length()


def _float_of(literal: Immediate) -> float:
    """Return the value of a literal that is stored as bits."""
    size = 4 if literal.kind == "f32" else 8
    return float(struct.unpack(f"<{'f' if size == 4 else 'd'}", int(literal.value).to_bytes(size, "little"))[0])


def _derived(constants: Iterable[float], known: Iterable[float]) -> Iterator[float]:
    """Yield the inexact constants that follow from known ones, within rounding to float32.

    They are a product or a quotient of two, or a logarithm or an exponential of one.
    """
    factors = np.array(sorted(known))
    of_two = np.outer(factors, factors), np.divide.outer(factors, factors)
    bases = factors[factors != 2]  # log(2) has exact residues
    with np.errstate(over="ignore"):
        of_one = [np.log(bases), np.log2(bases), np.exp(factors)]
    derived = np.abs(np.concatenate([one.ravel() for one in (*of_two, *of_one)]))
    for one in constants:
        inexact = math.frexp(one)[0] * 2**EXACT_BITS % 1 != 0
        if inexact and (np.abs(derived / one - 1) <= ROUNDED).any():
            yield one
