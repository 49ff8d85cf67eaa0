"""Checks that run the default candidate on the PTX simulator, and that judge the choice of small problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from evokern.analysis.check.folder import Folder, Results, problem_bytes
from evokern.analysis.no_success import suspect
from evokern.declaration.as_data.golden import compared_with
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem, ProblemField
from evokern.declaration.render import render
from evokern.declaration.small_problems import keeps_limits
from evokern.errors import KernelError, UsageError
from evokern.hardware.profiles import CHIPS, Profile
from evokern.measurement.grid import grid_facts
from evokern.study.settings import GateSettings, SimulationSettings
from evokern.study.trial import SMALLER, TOO_LARGE
from evokern.wording import count_noun

MOST_BYTES = 64 << 20
"""Largest total buffer size of a simulated problem, in bytes; larger problems take minutes."""
OWN_INSTRUCTIONS = 1_500_000
"""Maximum number of warp instructions on a full-size problem, about a second; larger problems run only some blocks."""
MOST_WIDTH = 1 << 16
"""Largest extent of a block that a change of the grid is searched for."""
SEED = 0
"""Seed of the inputs; a search uses a secret seed."""


def simulated_run(folder: Folder) -> Results:
    """Check that the default candidate passes without findings on its smallest problem and for each field choice."""
    kernel = folder.kernel
    config = kernel.space.default()
    small = sorted(folder.small, key=lambda problem: problem_bytes(kernel, problem))
    place = next(
        ((problem, chip) for problem in small if (chip := chip_for(kernel, config, problem)) is not None), None
    )
    if place is None:
        yield None, "skipped: the default candidate is infeasible on every small problem"
        return
    problem, chip = place
    if problem_bytes(kernel, problem) > MOST_BYTES:
        yield None, f"skipped: the smallest problem, {problem}, needs more than {MOST_BYTES >> 20} MiB"
        return
    yield _run_check(_run, kernel, config, problem, chip)
    for worded in folder.choice_variants:  # as small as the small problems
        where = chip_for(kernel, config, worded)
        if where is not None and problem_bytes(kernel, worded) <= MOST_BYTES:
            yield _run_check(_run, kernel, config, worded, where)


def own_problem(folder: Folder) -> Results:
    """Check that the default candidate writes all outputs on the first study's problem, and verify some blocks."""
    kernel = folder.kernel
    config = kernel.space.default()
    studied = folder.study_problems[:1]
    if not studied:
        yield None, "skipped: no study has a full-size problem"
        return
    (problem,) = studied
    chip = chip_for(kernel, config, problem)
    if chip is None:
        yield None, f"skipped: the default candidate is infeasible at {problem}"
    elif problem_bytes(kernel, problem) > MOST_BYTES:
        yield None, f"skipped: {problem} needs more than {MOST_BYTES >> 20} MiB; `evokern search` checks it"
    else:
        yield _run_check(_covers, kernel, config, problem, chip)


def grid(folder: Folder) -> Results:
    """Warn if the default candidate's grid leaves a part of a chip idle at a study's problem."""
    from evokern.compile.build import Target, build
    from evokern.compile.cache import default_cache
    from evokern.compile.records import Built

    kernel, config = folder.kernel, folder.kernel.space.default()
    for problem in folder.study_problems[:1]:
        chip = chip_for(kernel, config, problem)
        if chip is None:
            return
        built = build(kernel, config, [problem], Target(chip, default_cache()))
        note = grid_facts(built.resources, None)["note"] if isinstance(built, Built) else ""
        if note:
            yield "warning", f"the default candidate at {problem} on sim:{chip.name}: {note}"


Answer = tuple[bool | Literal["warning"] | None, str]
"""Result of a check (None if skipped) and its detail text."""


def _run_check(
    ask: Callable[[str, Kernel, Config, Problem, Profile], Answer],
    kernel: Kernel, config: Config, problem: Problem, chip: Profile,
) -> Answer:  # fmt: skip
    """Run a check of the default candidate; turn its errors into results."""
    from evokern.device.sim.failure import is_too_large
    from evokern.gate import RunFailed

    where = f"the default candidate at {problem} on sim:{chip.name}"
    try:
        return ask(where, kernel, config, problem, chip)
    except RunFailed as failed:
        if is_too_large(failed):
            return "warning", f"{where} is {TOO_LARGE}: {failed.message}; {SMALLER}"
        reason = failed.message or failed.evidence.get("error") or failed.evidence.get("check", "")
        return False, f"{where} {failed.outcome.value}: {reason}"
    except KernelError as error:
        return None, f"skipped because of an error in kernel.py: {str(error).splitlines()[0]}"
    except UsageError as error:
        return None, f"skipped: {error}"


def _covers(where: str, kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> Answer:
    from evokern.device.sim.full_size_check import OwnProblemCheck
    from evokern.device.sim.full_size_runs import OwnProblemRuns
    from evokern.gate.comparison import tolerances

    runs = OwnProblemRuns(kernel, chip, SimulationSettings(), tolerances(kernel, None, None), SEED)
    found = OwnProblemCheck(runs).at(config, problem, most=OWN_INSTRUCTIONS)
    if found.fault_evidence is not None:
        return False, f"{where}: {found.fault_evidence['message']}"
    ran = f"{found.blocks} of {found.of} blocks ran"
    if found.judged:
        against = compared_with(kernel.workload.reference, default=True)
        ran += f" with equal results; compared with {against}" if against else " and are correct"
    covered = "every output is written" if found.covered else "could not confirm that every output is written"
    return True, f"{where}: {ran}; {covered}" + (
        f"; all blocks ran on the problem scaled down to {found.scaled}" if found.scaled else ""
    )


def chip_for(kernel: Kernel, config: Config, problem: Problem) -> Profile | None:
    """Return the first chip on which a candidate can run a problem, or None."""
    return next((chip for chip in CHIPS.values() if keeps_limits(kernel, config, problem, chip)), None)


def _run(where: str, kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> Answer:
    # These imports need torch; the earlier checks do not.
    import torch

    from evokern.compile.build import tensors_of
    from evokern.compile.records import CompileFailure
    from evokern.device.sim.program import compile_simulated
    from evokern.device.sim.runner import SimRunner, checked
    from evokern.gate import Gate

    program = compile_simulated(render(kernel, config, problem), chip)
    if isinstance(program, CompileFailure):
        return None, f"skipped: {where} does not compile: {program.message}"
    launches = launches_of(kernel, config, problem)
    try:
        for launch in launches:
            program.cluster(launch)
    except UsageError as error:  # an invalid launch, on any device
        return False, f"{where}: {error}"
    gate = Gate(kernel, problem, GateSettings(runs=1), torch.device("cpu"), SEED)
    runner = SimRunner(program, problem, SimulationSettings().instruction_limit)
    verdict = checked(gate, runner, launches, tensors_of(kernel, config, problem))
    if not verdict.passed:
        return False, f"{where} is wrong: {verdict.evidence['message']}; suspect {suspect(verdict.evidence)}"
    sets = f"on {len(gate.settings.input_sets)} input sets, without findings"
    against = compared_with(kernel.workload.reference, default=True)
    return True, f"{where} ran {sets}; compared with {against}" if against else f"{where} is correct {sets}"


def check_small_problems(folder: Folder) -> Results:
    """Check that the small problems include several blocks, unequal extents, and a tail in each field."""
    kernel, config = folder.kernel, folder.kernel.space.default()
    able = [problem for problem in folder.small if chip_for(kernel, config, problem) is not None]
    if not able:
        yield None, "skipped: the default candidate is infeasible on every small problem"
        return
    doubts = [*_one_block(kernel, config, able), *_square(kernel, able), *_without_tails(kernel, config, able)]
    for doubt in doubts:
        yield "warning", doubt
    if not doubts:
        cover = "covers" if len(able) == 1 else "cover"
        yield True, f"{count_noun(len(able), 'problem')} {cover} several blocks, unequal extents and tails"


def _one_block(kernel: Kernel, config: Config, problems: list[Problem]) -> Iterator[str]:
    if all(launch.blocks == 1 for problem in problems for launch in launches_of(kernel, config, problem)):
        yield (
            f"every small problem needs only one block of the default candidate ({_listed(problems)}), which hides "
            "bugs between blocks; add a larger problem"
        )


def _square(kernel: Kernel, problems: list[Problem]) -> Iterator[str]:
    """Report small problems with equal extents, which hide swapped axes and strides."""
    free = [entry.name for entry in kernel.fields if _is_extent(entry)]
    if len(free) > 1 and all(len({problem[name] for name in free}) == 1 for problem in problems):
        yield (
            f"every small problem is square, {' = '.join(free)} ({_listed(problems)}), which hides swapped axes and "
            "strides; add a problem with unequal extents"
        )


def _without_tails(kernel: Kernel, config: Config, problems: list[Problem]) -> Iterator[str]:
    """Report fields without a tail: only partial blocks or odd row lengths show missing bounds checks."""
    names = []
    for entry in kernel.fields:
        if _is_extent(entry):
            tails = [_tail(kernel, config, problem, entry) for problem in problems]
            if False in tails and True not in tails:
                names.append(entry.name)
    if names:
        yield (
            f"no small problem has a tail in {' or '.join(names)} ({_listed(problems)}), which hides missing bounds "
            "checks; add a problem whose extents leave a block partly filled"
        )


def _tail(kernel: Kernel, config: Config, problem: Problem, entry: ProblemField) -> bool | None:
    """Return whether an extent leaves a block partly filled, or None if the kernel accepts no such extent.

    If the grid changes with the extent, the distance between two changes is the extent of a block. Every other extent
    than a multiple of it has a tail, whether the number of blocks is rounded up or down. If the grid does not change, a
    loop inside the block has the tail. Then every extent that is not a power of two counts as a tail.
    """
    if any(_grid(kernel, config, problem, entry, count) is None for count in (1, 2, 3)):
        return None  # the kernel rejects extents with a tail
    value = int(problem[entry.name])
    first = _change(kernel, config, problem, entry, 0)
    if first is None:
        return bool(value & (value - 1))
    second = _change(kernel, config, problem, entry, first)
    if second is None:
        return first > 1
    if second - first == 1:
        return None  # one block for each step: no tail exists
    return value % ((second - first) * entry.multiple_of) != 0


def _change(kernel: Kernel, config: Config, problem: Problem, entry: ProblemField, begin: int) -> int | None:
    """Return the smallest number of steps after `begin` at which the grid differs; None if it stays the same."""
    before = _grid(kernel, config, problem, entry, begin)
    width = 1
    while (changed := _grid(kernel, config, problem, entry, begin + width)) == before and width <= MOST_WIDTH:
        width *= 2
    if changed is None or changed == before:
        return None
    low, high = begin + width // 2, begin + width
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _grid(kernel, config, problem, entry, middle) == before else (low, middle)
    return high


def _grid(
    kernel: Kernel, config: Config, problem: Problem, entry: ProblemField, steps: int
) -> tuple[tuple[int, int, int], ...] | None:
    """Return the grids for an extent that is some steps larger, or None if the kernel cannot run it."""
    value = int(problem[entry.name]) + steps * entry.multiple_of
    if value > entry.most:
        return None
    larger = problem.changed({entry.name: value})
    if chip_for(kernel, config, larger) is None:
        return None
    return tuple(launch.grid for launch in launches_of(kernel, config, larger))


def _is_extent(entry: ProblemField) -> bool:
    return not entry.choices and entry.most > 1


def _listed(problems: list[Problem]) -> str:
    return "; ".join(map(str, problems))
