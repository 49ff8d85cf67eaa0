"""The default candidate on its smallest problem on the PTX machine, and whether the small problems can show defects."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from evokern.analysis.check.folder import Folder, Results
from evokern.analysis.check.reference_check import workload_tensors
from evokern.analysis.wrong_trials import suspect
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem, ProblemField
from evokern.declaration.render import render
from evokern.declaration.small_problems import keeps_limits
from evokern.errors import KernelError, UsageError
from evokern.hardware.profiles import CHIPS, Profile
from evokern.study.settings import GateSettings, SimulationSettings

MOST_BYTES = 64 << 20
"""Buffers of a problem that are simulated here; larger ones take minutes."""
OWN_INSTRUCTIONS = 1_500_000
"""Warp instructions at a study's own problem: about a second; of a larger one some blocks run."""
SEED = 0
"""Of the inputs: the gate of a search draws its own from a secret one."""


def simulated_run(folder: Folder) -> Results:
    """The default candidate runs on its smallest problem, and with each other word, without a finding, and is right."""
    kernel = folder.kernel
    config = kernel.space.default()
    small = sorted(folder.small, key=lambda problem: _bytes(kernel, problem))
    place = next(((problem, chip) for problem in small if (chip := _chip(kernel, config, problem)) is not None), None)
    if place is None:
        yield None, "not tried: the default candidate is feasible at no small problem"
        return
    problem, chip = place
    if _bytes(kernel, problem) > MOST_BYTES:
        yield None, f"not tried: the smallest problem, {problem}, takes more than {MOST_BYTES >> 20} MiB"
        return
    yield _tried(_run, kernel, config, problem, chip)
    for worded in folder.worded:  # no larger than a small one
        where = _chip(kernel, config, worded)
        if where is not None and _bytes(kernel, worded) <= MOST_BYTES:
            yield _tried(_run, kernel, config, worded, where)


def own_problem(folder: Folder) -> Results:
    """The default candidate covers its outputs at the first study's problem, and some of its blocks are right there."""
    kernel = folder.kernel
    config = kernel.space.default()
    studied = folder.studied[:1]
    if not studied:
        yield None, "not tried: no study names a problem of its own"
        return
    (problem,) = studied
    chip = _chip(kernel, config, problem)
    if chip is None:
        yield None, f"not tried: the default candidate is infeasible at {problem}"
    elif _bytes(kernel, problem) > MOST_BYTES:
        yield None, f"not tried: {problem} takes more than {MOST_BYTES >> 20} MiB; `evokern search` does it"
    else:
        yield _tried(_covers, kernel, config, problem, chip)


Answer = tuple[bool | None, str]
"""Whether a check holds, None where it was not tried, and what to say."""


def _tried(
    ask: Callable[[str, Kernel, Config, Problem, Profile], Answer],
    kernel: Kernel, config: Config, problem: Problem, chip: Profile,
) -> Answer:  # fmt: skip
    """Run the default candidate, and say what keeps it from running."""
    from evokern.gate import RunFailed

    where = f"the default candidate at {problem} on sim:{chip.name}"
    try:
        return ask(where, kernel, config, problem, chip)
    except RunFailed as failed:
        reason = failed.message or failed.evidence.get("error") or failed.evidence.get("check", "")
        return False, f"{where} {failed.outcome.value}: {reason}"
    except KernelError:
        return None, "not tried: the Python reference fails"
    except UsageError as error:
        return None, f"not tried: {error}"


def _covers(where: str, kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> Answer:
    from evokern.device.sim.own_problem import OwnProblemCheck
    from evokern.device.sim.own_problem_runs import OwnProblemRuns
    from evokern.gate.comparison import tolerances

    runs = OwnProblemRuns(kernel, chip, SimulationSettings(), tolerances(kernel, None, None), SEED)
    found = OwnProblemCheck(runs).at(config, problem, most=OWN_INSTRUCTIONS)
    if found.against is not None:
        return False, f"{where}: {found.against['message']}"
    ran = f"{found.blocks} of {found.of} blocks ran" + (", and they are right" if found.judged else "")
    covered = "every output is written" if found.covered else "whether every output is written is not known"
    return True, f"{where}: {ran}; {covered}" + (f"; whole at {found.scaled}" if found.scaled else "")


def _bytes(kernel: Kernel, problem: Problem) -> int:
    return sum(tensor.bytes for tensor in workload_tensors(kernel, problem).values())


def _chip(kernel: Kernel, config: Config, problem: Problem) -> Profile | None:
    return next((chip for chip in CHIPS.values() if keeps_limits(kernel, config, problem, chip)), None)


def _run(where: str, kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> Answer:
    # All of it needs torch, which the checks before this one do without.
    import torch

    from evokern.compile.build import tensors_of
    from evokern.compile.records import CompileFailure
    from evokern.device.sim.program import compile_simulated
    from evokern.device.sim.runner import SimRunner, checked
    from evokern.gate import Gate

    program = compile_simulated(render(kernel, config, problem), chip)
    if isinstance(program, CompileFailure):
        return None, f"not tried: {where} does not compile: {program.message}"
    launches = launches_of(kernel, config, problem)
    try:
        for launch in launches:
            program.cluster(launch)
    except UsageError as error:  # said of the launch, whatever the machine
        return False, f"{where}: {error}"
    gate = Gate(kernel, problem, GateSettings(runs=1), torch.device("cpu"), SEED)
    runner = SimRunner(program, problem, SimulationSettings().instruction_limit)
    verdict = checked(gate, runner, launches, tensors_of(kernel, config, problem))
    if not verdict.passed:
        return False, f"{where} is wrong: {verdict.evidence['message']}; suspect {suspect(verdict.evidence)}"
    return True, f"{where} is right on {len(gate.settings.input_sets)} kinds of inputs, without a finding"


def small_problems_that_show(folder: Folder) -> Results:
    """Some small problem has several blocks, some has unequal extents, and each field has a tail in some."""
    kernel, config = folder.kernel, folder.kernel.space.default()
    able = [problem for problem in folder.small if _chip(kernel, config, problem) is not None]
    if not able:
        yield None, "not tried: the default candidate is feasible at no small problem"
        return
    doubts = [*_one_block(kernel, config, able), *_square(kernel, able), *_without_tails(kernel, config, able)]
    for doubt in doubts:
        yield "warning", doubt
    if not doubts:
        yield True, f"{len(able)} problems: several blocks, unequal extents and tails are among them"


def _one_block(kernel: Kernel, config: Config, problems: list[Problem]) -> Iterator[str]:
    if all(launch.blocks == 1 for problem in problems for launch in launches_of(kernel, config, problem)):
        yield (
            f"every small problem is one block of the default candidate ({_listed(problems)}): what goes wrong between "
            "blocks does not show there; add a larger one"
        )


def _square(kernel: Kernel, problems: list[Problem]) -> Iterator[str]:
    """Extents that are always equal hide strides and axes that are mixed up."""
    free = [entry.name for entry in kernel.fields if _is_extent(entry)]
    if len(free) > 1 and all(len({problem[name] for name in free}) == 1 for problem in problems):
        yield (
            f"every small problem is square, {' = '.join(free)} ({_listed(problems)}): axes and strides that are mixed "
            "up do not show there; add one with unequal extents"
        )


def _without_tails(kernel: Kernel, config: Config, problems: list[Problem]) -> Iterator[str]:
    """A block that is not full, or a row that is no power of two, is where bound checks are missed."""
    names = []
    for entry in kernel.fields:
        if _is_extent(entry):
            tails = [_tail(kernel, config, problem, entry) for problem in problems]
            if False in tails and True not in tails:
                names.append(entry.name)
    if names:
        yield (
            f"no small problem has a tail in {' or '.join(names)} ({_listed(problems)}): a missing bound check does "
            "not show there; add one whose extents fill no whole number of blocks"
        )


def _tail(kernel: Kernel, config: Config, problem: Problem, entry: ProblemField) -> bool | None:
    """Whether an extent leaves a block partly filled; None where the kernel takes none that does.

    Where the grid grows with the extent, a block has room left if one step more needs no further block. Where it does
    not, a loop inside the block has the tail, of which nothing can be seen but that powers of two have none.
    """
    steps = [_grid(kernel, config, problem, entry, count) for count in (0, 1, 2, 3)]
    taken = [grid for grid in steps if grid is not None]
    if len(taken) < len(steps):
        return None  # the kernel refuses what would have a tail
    if len(set(taken)) == len(taken):
        return None  # a block for each step: nothing is left over
    value = int(problem[entry.name])
    if taken[0] != taken[1]:
        return False
    grows = _grid(kernel, config, problem, entry, max(1, 4 * value // entry.multiple_of)) != taken[0]
    return grows or bool(value & (value - 1))


def _grid(
    kernel: Kernel, config: Config, problem: Problem, entry: ProblemField, steps: int
) -> tuple[tuple[int, int, int], ...] | None:
    """Return the grids with an extent some steps larger, None where the kernel cannot run it."""
    value = int(problem[entry.name]) + steps * entry.multiple_of
    if value > entry.most:
        return None
    larger = problem.changed({entry.name: value})
    if _chip(kernel, config, larger) is None:
        return None
    return tuple(launch.grid for launch in launches_of(kernel, config, larger))


def _is_extent(entry: ProblemField) -> bool:
    return not entry.choices and entry.most > 1


def _listed(problems: list[Problem]) -> str:
    return "; ".join(map(str, problems))
