"""Small problems for the gate of a simulated device, chosen from the problems that a candidate can run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config, Value
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.problem import parts_of
from evokern.errors import KernelError
from evokern.hardware.profiles import Profile

MAX_PROBLEMS = 2
"""Maximum number of small problems per candidate: one with tails and one without take about a second."""

MOST_ELEMENTS = 1 << 18
"""Maximum number of elements in a full-size problem that is run completely; larger problems take minutes."""

TINY, SMALLER, LEAST = 24, 4, 3
"""Divisors of all fields of a small problem, and least value, so that tiles are larger than the problem."""
SEVERAL, MOST_DOUBLINGS = 3, 10
"""Number of blocks along one field, and of doublings until the grid has so many."""
MOST_TILE = 1024
"""Maximum extent of a tile along one field, for problems made of whole tiles."""


def small_problem(kernel: Kernel, text: str, like: Problem) -> Problem:
    """Return a small problem; with named parts (`B=1 S=72`), missing fields are taken from the study's problem.

    Raises:
        KernelError: the text is not a problem of this kernel.
    """
    parts = parts_of(text)
    if not all(name for name, _ in parts):
        return kernel.problem(text)
    known = {name.lower(): name for name in like}
    changes: dict[str, str] = {}
    for name, value in parts:
        if name.lower() not in known:
            raise KernelError(
                f"kernel {kernel.name}: small problem {text!r} sets the unknown field {name!r}; "
                f"fields: {', '.join(like)}"
            )
        if known[name.lower()] in changes:
            raise KernelError(f"kernel {kernel.name}: small problem {text!r} sets {name!r} twice; set it once")
        changes[known[name.lower()]] = value
    return kernel.problem({**like, **changes})


def runnable_small_problems(kernel: Kernel, config: Config, like: Problem, chip: Profile) -> Iterator[Problem]:
    """Yield the small problems like a problem of the study that a candidate can run."""
    made = dict.fromkeys(small_problem(kernel, text, like) for text in kernel.workload.small_problems)
    return (one for one in made if keeps_limits(kernel, config, one, chip))


def edge_problems(kernel: Kernel, config: Config, like: Problem, chip: Profile) -> Iterator[Problem]:
    """Yield small problems at the edges of a candidate's tiles, which the declared ones may not have.

    In two of them, all fields are smaller than most tiles. In each other one, a field is doubled until the grid has
    several blocks along it.
    """
    names = [entry.name for entry in kernel.free_fields]
    base = like
    for divisor in (TINY, SMALLER):
        base = like
        for entry in kernel.free_fields:
            value = max(int(like[entry.name]) // divisor, entry.least, LEAST)
            for step in (entry.multiple_of, 8 * entry.multiple_of):  # vectors often have up to 8 elements
                rounded = -(-value // step) * step
                found = runnable(kernel, config, base, {entry.name: rounded}, chip)
                if found is not None and rounded < int(like[entry.name]):
                    base = found
                    break
        yield base
    for name in names:  # powers of two, because whole tiles may take another path
        base = runnable(kernel, config, base, {name: 1 << (int(base[name]) - 1).bit_length()}, chip) or base
    wanted = SEVERAL * _blocks(kernel, config, base)
    for name in names:
        problem: Problem | None = base
        for _ in range(MOST_DOUBLINGS):
            problem = problem and runnable(kernel, config, problem, {name: 2 * int(problem[name])}, chip)
            if problem is None or _blocks(kernel, config, problem) >= wanted:
                break
        else:
            problem = None
        if problem is not None:
            yield problem


def _blocks(kernel: Kernel, config: Config, problem: Problem) -> int:
    return sum(one.blocks for one in launches_of(kernel, config, problem))


def gate_problems(kernel: Kernel, config: Config, problems: Sequence[Problem], chip: Profile) -> tuple[Problem, ...]:
    """Return the problems on which the gate checks a candidate: small problems, or the study's if these are small.

    The result is empty if there is no such problem; the candidate can then not be checked.

    Args:
        kernel: the kernel.
        config: the candidate.
        problems: the study's problems.
        chip: chip with the resource limits.
    """
    chosen: list[Problem] = []
    for problem in problems:
        able = (one for one in runnable_small_problems(kernel, config, problem, chip) if one not in chosen)
        chosen += list(islice(able, MAX_PROBLEMS))
    if is_fixed(kernel):
        return tuple(p for p in problems if elements(kernel, config, p) <= MOST_ELEMENTS)
    if chosen or max(elements(kernel, config, problem) for problem in problems) > MOST_ELEMENTS:
        return tuple(chosen)
    return tuple(problems)


def is_fixed(kernel: Kernel) -> bool:
    """Return whether a kernel has only its study's shape, so that no smaller problem exists."""
    return not kernel.workload.small_problems and not kernel.free_fields


def whole_tile_problem(kernel: Kernel, config: Config, like: Problem, chip: Profile) -> Problem | None:
    """Return a small problem of whole tiles if the candidate's tiles exceed all declared small problems, else None.

    First all numeric fields get the same extent, the smallest feasible one. Possible extents are the candidate's values
    and products of two of them. Then each field is reduced to its smallest feasible extent.

    Args:
        kernel: the kernel.
        config: the candidate.
        like: a problem of the study, used for fields with choices.
        chip: chip with the resource limits.
    """
    names = [entry.name for entry in kernel.free_fields]
    values = [value for value in config.values() if isinstance(value, int) and 2 <= value <= MOST_TILE]
    products = (one * two for one in values for two in values)
    extents = sorted({*values, *(extent for extent in products if extent <= MOST_TILE)})

    def made(problem: Problem, changes: Mapping[str, int]) -> Problem | None:
        return runnable(kernel, config, problem, changes, chip)

    problem = next((found for extent in extents if (found := made(like, dict.fromkeys(names, extent)))), None)
    for name in names if problem else ():
        problem = next((found for extent in extents if problem and (found := made(problem, {name: extent}))), problem)
    return problem


def runnable(
    kernel: Kernel, config: Config, problem: Problem, changes: Mapping[str, int], chip: Profile
) -> Problem | None:
    """Return a problem with some numbers changed, or None if it is invalid or the candidate cannot run it."""
    found = problem_with(kernel, problem, changes)
    return found if found is not None and keeps_limits(kernel, config, found, chip) else None


def problem_with(kernel: Kernel, problem: Problem, changes: Mapping[str, Value]) -> Problem | None:
    """Return a problem with some fields changed, or None if the kernel does not support it."""
    try:
        return kernel.problem({**problem, **changes})
    except KernelError:
        return None


def keeps_limits(kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> bool:
    """Return whether a candidate can run a problem on a chip, ignoring constraints marked `wasteful`."""
    return check(kernel, config, [problem], chip, essential=True) is None


def elements(kernel: Kernel, config: Config, problem: Problem) -> int:
    """Return the number of elements in all buffers."""
    return sum(tensor.elements for tensor in kernel.workload.tensors(problem, config).values())
