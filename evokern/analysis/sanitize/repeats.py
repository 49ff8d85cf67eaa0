"""Problems on which the sanitizer runs a candidate, and problems at which every loop of it repeats.

A loop over blocks or tiles counts as checked after three rounds. The small problems of a kernel often take fewer. So
the sanitizer also watches blocks of the study's own problem. If a loop still takes fewer rounds, one field of a problem
is doubled until the loop repeats. If that problem is too large, for example because the grid grows up to a cap, the
same program runs with fewer blocks: a loop that takes its step from `gridDim` then repeats. This counts only if all
results are right, because a kernel may need the grid that it declares.

Only loops that the launch ends are considered, by its arguments or its grid. A loop over constants takes the same
rounds everywhere, and what ends a loop over data no problem can decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

from evokern.analysis.check.folder import known_problems
from evokern.analysis.sanitize.race_check import RaceCheck, RaceSample
from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.render import render
from evokern.declaration.small_problems import elements, gate_problems, runnable, small_problem
from evokern.device.sim.full_size_check import OwnProblemCheck
from evokern.device.sim.full_size_runs import OwnProblemRuns
from evokern.device.sim.host_memory import workers_that_fit
from evokern.errors import DeviceError, KernelError
from evokern.gate import RunFailed
from evokern.hardware.profiles import Profile
from evokern.simt import ANY_PARAMETER, NO_PATHS, ROUNDS, LoopRounds, Paths, few_rounds
from evokern.study.trial import Outcome
from evokern.wording import count_noun

MOST_SAMPLED = 1 << 27
"""Maximum number of buffer elements of a problem whose blocks are watched; larger ones take too much memory."""
MOST_GROWN = 1 << 25
"""Maximum number of buffer elements of a problem that is made so that a loop repeats."""
MOST_NEAR = 8
"""Maximum number of problems on which branches are tried that go one way at the small problems."""
MOST_FEWER = 4
"""Maximum number of the given problems that run with fewer blocks."""
TIMES_LARGER = 16
"""Factor of a field of a further problem that runs with fewer blocks."""
MOST_STEPS = 48
"""Maximum number of times that a field is doubled."""
GROWN_BLOCKS = 3
"""Number of blocks that run at each problem on the way."""
INSTRUCTIONS = 1_500_000
"""Maximum number of warp instructions of a complete run at the problem at which a loop repeats."""
GRID_GROWS, MOST_GROWING = 1.5, 4
"""Growth of the grid for a doubled field from which blocks, and not rounds, take the additional work; number of times
that blocks are watched nevertheless, because both may grow, for example with the length of a sequence."""

Growth = Literal["repeated", "unrelated", "exhausted", "too large"]
"""Result of doubling a field: the loop repeats; the field does not decide about the loop; the kernel accepts no larger
value, and the grid grows with the field up to there; the problem would be too large for the simulator, or no block
that was watched entered the loop."""


@dataclass
class RepeatedLoops:
    """Loops, and the problems at which the sanitizer watched them."""

    paths: Paths = NO_PATHS
    """Paths of all launches under the sanitizer."""
    races: dict[Problem, RaceSample] = field(default_factory=dict)
    """Blocks that were watched at each of the study's problems."""
    grown: list[Problem] = field(default_factory=list)
    """Problems that were made so that a loop repeats."""
    fewer: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """Loops that repeat if fewer blocks run than declared: their places, and the problem with the number of blocks."""
    single: list[LoopRounds] = field(default_factory=list)
    """Loops that cannot repeat at any problem: the grid grows with the work."""
    open: list[LoopRounds] = field(default_factory=list)
    """Loops that may repeat, but not in the runs that look for races."""

    def as_dict(self) -> dict[str, Any]:
        """Return the loops and problems as JSON values."""
        return {
            "races": {problem.key: [one.blocks, one.of] for problem, one in self.races.items()},
            "grown": [problem.key for problem in self.grown],
            "fewer_blocks": list(self.fewer.values()),
            "open_loops": [{"file": one.file, "line": one.line, "rounds": one.rounds} for one in self.open],
        }


def races_text(samples: Iterable[RaceSample]) -> str:
    """Return in how many blocks of the study's problems races were looked for."""
    counted = list(samples)
    blocks, of = sum(one.blocks for one in counted), sum(one.of for one in counted)
    where = "the study's problem" if len(counted) == 1 else "the study's problems"
    reasons = " and ".join(dict.fromkeys(one.reason for one in counted if one.reason))
    return f"races looked for in {blocks} of {of} blocks at {where}" + (f", because {reasons}" if reasons else "")


def open_text(loops: Sequence[LoopRounds], source: str) -> str:
    """Return why loops that did not repeat leave a candidate unverified."""
    texts = "; ".join(loop.text(source) for loop in loops)
    remedy = "declare a small problem at which it takes three"
    remedy += ", or take the loop's step from gridDim, so that it can be checked with fewer blocks"
    return f"in the runs that look for races, {texts}, which hides faults between rounds; {remedy}"


class RepeatSearch:
    """Search for problems at which the loops of one candidate repeat."""

    def __init__(self, kernel: Kernel, config: Config, runs: OwnProblemRuns, *, compare: bool = True) -> None:
        """Create a search.

        Args:
            kernel: the kernel.
            config: the candidate.
            runs: runs the candidate's blocks.
            compare: compare the results with the reference at problems that are made so that a loop repeats.
        """
        self._compare = compare
        self._kernel, self._config, self._chip, self._runs = kernel, config, runs.chip, runs
        self._races, self._values = RaceCheck(runs), OwnProblemCheck(runs)
        self._found = RepeatedLoops()
        self._samples: dict[Problem, RaceSample] = {}
        """Blocks that were watched at problems on the way, which serve all loops."""

    def run(self, small: Sequence[Problem], own: Iterable[Problem], paths: Paths) -> RepeatedLoops:
        """Watch blocks at the study's problems, and find problems for loops that do not repeat there either.

        Args:
            small: small problems that the candidate can run, from which others are made.
            own: problems of the study.
            paths: paths of the small problems under the sanitizer.

        Raises:
            RunFailed: the sanitizer found an error, or results are wrong.
        """
        found = self._found = RepeatedLoops(paths)
        for problem in own:
            if not self._fits(problem):
                why = "its buffers take too much memory"
                found.races[problem] = RaceSample(0, sum(one.blocks for one in self._launches(problem)), reason=why)
            else:
                self._watch(problem)
        bases = sorted(dict.fromkeys((*small, *found.races)), key=lambda one: elements(self._kernel, self._config, one))
        for loop in few_rounds(found.paths):
            if found.paths.loops[loop.place].rounds < ROUNDS:
                self._repeat(found.paths.loops[loop.place], bases)
        return found

    def _fits(self, problem: Problem) -> bool:
        """Return whether the memory suffices for a problem of the study."""
        try:
            workers_that_fit(self._kernel, self._config, [problem])
        except DeviceError:
            return False
        return elements(self._kernel, self._config, problem) <= MOST_SAMPLED

    def _watch(self, problem: Problem) -> None:
        sample = self._races.at(self._config, problem)
        self._found.races[problem] = sample
        self._found.paths = self._found.paths.merged(sample.paths)

    def _repeat(self, loop: LoopRounds, bases: Sequence[Problem]) -> None:
        """Find a problem at which a loop repeats, or store why there is none.

        A problem that is too large to be doubled says nothing if the grid grows with the field from a smaller problem.
        """
        results: dict[str, set[Growth]] = {entry.name: set() for entry in self._kernel.free_fields}
        for base in bases:
            for name, found in results.items():
                found.add(self._grow(loop, base, name))
                if "repeated" in found:
                    return
        kept = self._found.paths.loops[loop.place]
        if any("too large" in found and "exhausted" not in found for found in results.values()):
            several = of_several_blocks(self._kernel, self._config, bases, self._chip)
            if not any(self._repeats_with_fewer(loop, problem) for problem in several):
                self._found.open.append(kept)
        elif any("exhausted" in found for found in results.values()):
            self._found.single.append(kept)

    def _repeats_with_fewer(self, loop: LoopRounds, problem: Problem) -> bool:
        """Run a candidate with fewer blocks than it declares; return whether the loop repeats and all is right."""
        call = self._runs.call(self._config, problem, None)
        if len(call.launches) > 1:
            return False
        for launch in call.program.fewer_blocks(call.launches[0]):
            fewer = replace(call, launches=(launch,))
            try:
                if sum(self._runs.counted(fewer)) * fewer.blocks > INSTRUCTIONS:
                    continue
                result = self._runs.whole(fewer, sanitize=True, record_paths=True)
            except RunFailed:
                continue  # says nothing: the kernel may need its own grid
            paths = result.paths.loops
            right = result.fault_evidence is None and result.judged and result.covered
            if right and loop.place in paths and paths[loop.place].rounds >= ROUNDS:
                self._found.fewer[loop.place] = f"{problem} with {count_noun(fewer.blocks, 'block')}"
                self._found.paths = self._found.paths.merged(result.paths)
                return True
        return False

    def _grow(self, loop: LoopRounds, base: Problem, name: str) -> Growth:
        """Double one field of a problem until a loop repeats."""
        problem, related, ran = base, False, False
        for step in range(MOST_STEPS):
            larger = self._doubled(problem, name)
            if larger is None:
                break
            if not self._decides(loop, problem, larger):
                break
            related = True
            grows = self._blocks(larger) >= GRID_GROWS * self._blocks(problem)
            problem = larger
            if grows and step >= MOST_GROWING:
                continue  # further blocks take the additional work
            if elements(self._kernel, self._config, problem) > MOST_GROWN:
                return "too large"
            try:
                if problem not in self._samples:
                    self._samples[problem] = self._races.at(self._config, problem, blocks=GROWN_BLOCKS)
                sample = self._samples[problem]
            except RunFailed as failed:
                if failed.outcome is Outcome.COMPILE_ERROR:
                    return "exhausted"
                raise
            ran |= loop.place in sample.paths.loops and sample.paths.loops[loop.place].rounds > 0
            self._found.paths = self._found.paths.merged(sample.paths)
            if self._found.paths.loops[loop.place].rounds >= ROUNDS:
                self._check(problem)
                return "repeated"
            if sample.paths is NO_PATHS:
                return "too large"
        # A loop that none of the blocks entered, perhaps because only other values do, may repeat all the same.
        return ("exhausted" if ran else "too large") if related else "unrelated"

    def _check(self, problem: Problem) -> None:
        """Check a problem at which a loop repeats more thoroughly.

        Raises:
            RunFailed: results are wrong.
        """
        self._found.grown.append(problem)
        if not self._compare:
            self._races.at(self._config, problem)
            return
        try:
            fault = self._values.at(self._config, problem, most=INSTRUCTIONS).fault_evidence
        except RunFailed as failed:
            if failed.outcome is Outcome.HUNG:
                return  # a sampled block may wait for others; `RaceCheck` finds loops that never end
            raise
        if fault is not None:
            raise RunFailed(Outcome.WRONG, fault)

    def _doubled(self, problem: Problem, name: str) -> Problem | None:
        for factor in (2, 3, 4):
            larger = runnable(self._kernel, self._config, problem, {name: factor * int(problem[name])}, self._chip)
            if larger is not None:
                return larger
        return None

    def _decides(self, loop: LoopRounds, problem: Problem, larger: Problem) -> bool:
        """Return whether a loop may take other rounds at a larger problem: its limits or the program differ."""
        if render(self._kernel, self._config, problem) != render(self._kernel, self._config, larger):
            return True
        if ANY_PARAMETER in loop.parameters:
            return True
        pairs = zip(self._launches(problem), self._launches(larger), strict=False)
        return any(
            index < len(one.args) and one.args[index] != other.args[index]
            for one, other in pairs
            for index in loop.parameters
        )

    def _launches(self, problem: Problem) -> tuple[Any, ...]:
        return launches_of(self._kernel, self._config, problem)

    def _blocks(self, problem: Problem) -> int:
        return sum(int(launch.blocks) for launch in self._launches(problem))


def of_several_blocks(kernel: Kernel, config: Config, bases: Sequence[Problem], chip: Profile) -> Iterator[Problem]:
    """Yield small problems, and larger ones in case that the small ones have too few blocks."""
    yield from bases[:MOST_FEWER]
    for entry in kernel.free_fields:
        changes = {entry.name: TIMES_LARGER * int(bases[0][entry.name])}
        if (larger := runnable(kernel, config, bases[0], changes, chip)) is not None:
            yield larger


def one_way_branches(
    kernel: Kernel, config: Config, small: Sequence[Problem], paths: Paths, runs: OwnProblemRuns
) -> dict[tuple[str, int], Problem]:
    """Return the branches that go one way at the small problems, each with a similar problem at which it goes both.

    Args:
        kernel: the kernel.
        config: the candidate.
        small: the small problems.
        paths: paths of the small problems.
        runs: runs the candidate's blocks.

    Raises:
        RunFailed: the sanitizer found an error at a similar problem.
    """
    open_ = {place: sides for place, sides in paths.branches.items() if len(sides) == 1}
    near = (
        found
        for problem in small
        for entry in kernel.free_fields
        for delta in (entry.multiple_of, -entry.multiple_of)
        if (found := runnable(kernel, config, problem, {entry.name: int(problem[entry.name]) + delta}, runs.chip))
    )
    both: dict[tuple[str, int], Problem] = {}
    races = RaceCheck(runs)
    for problem in islice(near, MOST_NEAR if open_ else 0):
        sides = races.at(config, problem).paths.branches
        both |= {place: problem for place, seen in open_.items() if place not in both and sides.get(place, seen) - seen}
    return both


def small_or_given(kernel: Kernel, config: Config, text: str | None, chip: Profile) -> tuple[Problem, ...]:
    """Return the given problem, or the kernel's small problems that a candidate can run.

    Args:
        kernel: the kernel.
        config: the candidate.
        text: a problem such as `B=1 H=2 S=128 D=64`, or None.
        chip: chip with the resource limits.

    Raises:
        KernelError: the kernel does not accept the problem, or the candidate cannot run any small problem.
    """
    if text is not None:
        return (kernel.problem(text),)
    templates = known_problems(kernel)[:1]
    problems = gate_problems(kernel, config, templates, chip) if templates else ()
    if not problems:
        listed = "; ".join(kernel.workload.small_problems) or "none is declared"
        example = templates[0] if templates else " ".join(f"{name}=…" for name in kernel.field_names)
        remedy = f"set one with --problem, for example --problem '{example}'"
        if templates and check(kernel, config, templates, chip, essential=True) is not None:
            remedy = "change a gene with --set, or choose another problem with --problem"
        raise KernelError(
            f"this candidate of {kernel.name} cannot run any of its small problems on {chip.model} ({listed})"
            f"{_violated(kernel, config, templates, chip)}; {remedy}"
        )
    return problems


def _violated(kernel: Kernel, config: Config, templates: tuple[Problem, ...], chip: Profile) -> str:
    """Return a clause with the constraint that rejects the candidate on the kernel's first small problem."""
    for text in kernel.workload.small_problems if templates else ():
        violation = check(kernel, config, [small_problem(kernel, text, templates[0])], chip, essential=True)
        if violation is not None:
            return f", because it violates a constraint: {violation}"
    return ""
