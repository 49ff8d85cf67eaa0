"""Tracing of a kernel's declared functions, which turns their results into formulas over the shape.

The exported launcher needs the grid for shapes other than the study's. Therefore the declared Python functions run on
`Traced` integers, which record the formula of each value. Every comparison, and every use as a plain number, becomes a
guard: a condition under which the formulas are valid. `trace` runs the functions also at other shapes, which pass other
guards, and merges the formulas: `min(blocks, 65535)` is one formula on each side of a comparison. It then compares the
formulas with the functions on shapes that pass the guards. If they differ, for example because a number was used in
`range`, only the study's shape is accepted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config, Value
from evokern.declaration.kernel import Kernel, Launch, Problem, ProblemField, Scalar, Tensor, TileMap
from evokern.declaration.render import macros
from evokern.errors import EvokernError
from evokern.export.formula import ShapeGuard, evaluate
from evokern.export.traced import DERIVED, GuardRecorder, Traced, bare, formula_of
from evokern.hardware.profiles import Profile


@dataclass(frozen=True)
class Traces:
    """Launches and buffers as formulas over the numeric fields."""

    fields: tuple[str, ...]
    """Numeric fields, in declared order."""
    guards: Mapping[ShapeGuard, str]
    """Conditions under which the formulas are valid, with reasons."""
    launches: tuple[Launch, ...]
    """Launches; their numbers may be `Traced`."""
    tensors: Mapping[str, Tensor]
    """Buffers; their extents may be `Traced`."""
    pinned: bool = field(default=False)
    """Whether only the study's shape is accepted."""


@dataclass(frozen=True)
class _Path:
    """One way through the declared functions, taken at one shape."""

    decisions: tuple[tuple[ShapeGuard, str], ...]
    """Conditions under which other shapes take the same way, in order, with reasons."""
    launches: tuple[Launch, ...]
    """Launches; their numbers may be `Traced`."""
    tensors: Mapping[str, Tensor]
    """Buffers; their extents may be `Traced`."""

    def covers(self, fields: Mapping[str, int]) -> bool:
        """Return whether a shape takes this way."""
        return all(guard.holds(fields) for guard, _ in self.decisions)

    def without(self, guards: Set[ShapeGuard]) -> _Path:
        """Return the path without some of its conditions."""
        return replace(self, decisions=tuple(one for one in self.decisions if one[0] not in guards))


def trace(kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> Traces:
    """Trace a candidate's launches and buffers for a problem.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the problem of the search; its macros are part of the exported source.
        chip: chip with the resource limits for all shapes.

    Raises:
        KernelError: a declared function of the kernel raised.
    """
    numeric = tuple(f.name for f in kernel.fields if isinstance(problem[f.name], int))
    own = _run(kernel, config, problem, chip, numeric)
    others = _other_paths(kernel, config, problem, chip, numeric, own)
    for paths in ([own, *others], [own])[not others :]:
        guards: dict[ShapeGuard, str] = {}
        launches, tensors = _merged(paths, 0, (), guards)
        ranges = {f.name: (f.least, f.most) for f in kernel.free_fields if f.name in numeric}
        traces = Traces(numeric, _essential(guards, ranges), launches, tensors)
        if _agrees(traces, kernel, config, problem, chip):
            return traces
    exactly = {ShapeGuard("==", ("field", name), ("number", int(problem[name]))): "" for name in numeric}
    reason = "this launcher supports only the study's shape"
    return replace(traces, guards=dict.fromkeys(exactly, reason), pinned=True)


def _run(kernel: Kernel, config: Config, problem: Problem, chip: Profile, numeric: Sequence[str]) -> _Path:
    """Run the declared functions at one shape."""
    recorder = GuardRecorder()
    values: dict[str, Value] = dict(problem)
    for name in numeric:
        values[name] = Traced.make(int(problem[name]), ("field", name), recorder)
    symbolic = Problem(values)

    def launches_with_reason(config: Config, problem: Problem) -> Sequence[Launch]:
        before, recorder.reason = recorder.reason, DERIVED
        matter, recorder.texts_matter = recorder.texts_matter, True
        launches = kernel.launches(config, problem)
        recorder.reason, recorder.texts_matter = before, matter
        return launches

    traced = replace(kernel, launches=launches_with_reason)
    recorder.reason = "the program was compiled for this value"
    plain = macros(kernel, config, problem)
    for name, value in dict(kernel.macros(config, symbolic)).items():
        if isinstance(value, Traced):
            recorder.decide("==", value.formula, ("number", int(plain[name])), True)
    recorder.reason = DERIVED
    launches = tuple(launches_of(traced, config, symbolic))
    tensors = dict(kernel.workload.tensors(symbolic, config))
    for constraint in kernel.constraints:
        if constraint.wasteful:
            continue  # concerns only speed, so other shapes may violate it
        recorder.reason = constraint.reason
        bool(constraint.evaluate(config, symbolic, chip).holds)
    recorder.reason, recorder.texts_matter = f"a limit of {chip.model}", False
    check(replace(traced, constraints=()), config, [symbolic], chip)
    return _Path(tuple(recorder.guards.items()), launches, tensors)


def _other_paths(
    kernel: Kernel, config: Config, problem: Problem, chip: Profile, numeric: Sequence[str], own: _Path
) -> list[_Path]:
    """Return the paths that other shapes take, for example the other side of `min`."""
    rng = random.Random(1)
    compiled = macros(kernel, config, problem)
    entries = {entry.name: entry for entry in kernel.fields}
    paths = [own]
    for _ in range(_SHAPES if own.decisions else 0):
        fields = {name: _any_value(entries[name], int(problem[name]), rng) for name in numeric}
        if len(paths) > _MOST_PATHS or any(path.covers(fields) for path in paths):
            continue
        try:
            other = kernel.problem({**problem, **fields})
            if macros(kernel, config, other) != compiled:
                continue
            if check(kernel, config, [other], chip, essential=True) is None:
                paths.append(_run(kernel, config, other, chip, numeric))
        except EvokernError:
            continue  # not a shape of the kernel
    return paths[1:]


_SHAPES = 600
"""Number of shapes that are tried to find other paths."""
_MOST_PATHS = 40
"""Largest number of paths; the exported launcher rejects shapes that take others."""


def _any_value(entry: ProblemField, own: int, rng: random.Random) -> int:
    """Return a value of a field: its own, a near one, or any, where each order of magnitude is equally likely."""
    choices = [choice for choice in entry.choices if isinstance(choice, int)]
    if choices:
        return rng.choice([own, *choices])
    low, high = max(entry.least, 1), max(entry.most, 1)
    wide = round(math.exp(rng.uniform(math.log(low), math.log(high))))
    value = rng.choice([own, rng.choice(_nearby_values(own, rng)), wide])
    return value - value % entry.multiple_of


_Numbers = tuple[tuple[Launch, ...], Mapping[str, Tensor]]
"""Launches and buffers, whose numbers may be `Traced`."""


def _merged(paths: Sequence[_Path], at: int, when: tuple[ShapeGuard, ...], guards: dict[ShapeGuard, str]) -> _Numbers:
    """Merge paths with the same first `at` decisions, and add the conditions under which the result is valid.

    The paths are the leaves of a tree. At each decision on which they differ, their numbers become conditional
    formulas. A path with other launches or buffers cannot be merged; the launcher rejects its shapes.
    """
    first = paths[0]
    while at < len(first.decisions):
        guard, reason = first.decisions[at]
        groups: dict[ShapeGuard, list[_Path]] = {}
        for path in paths:
            groups.setdefault(path.decisions[at][0], []).append(path)
        if len(groups) > 1:
            common = set.intersection(*({one for one, _ in path.decisions[at + 1 :]} for path in paths))
            for one, why in first.decisions[at + 1 :]:
                if one in common:
                    guards.setdefault(replace(one, when=when), why)
            groups = {one: [path.without(common) for path in members] for one, members in groups.items()}
            found, inner, kept = _merged_groups(groups, at, when)
            if len(kept) > 1:
                if len(kept) > 2 or not kept[0].opposes(kept[1]):
                    guards.setdefault(replace(guard, when=when, others=tuple(kept[1:])), reason)
                guards |= inner
                return found
        paths = groups[guard]
        first, at = paths[0], at + 1
        guards.setdefault(replace(guard, when=when), reason)
    return first.launches, first.tensors


def _merged_groups(
    groups: Mapping[ShapeGuard, Sequence[_Path]], at: int, when: tuple[ShapeGuard, ...]
) -> tuple[_Numbers, dict[ShapeGuard, str], list[ShapeGuard]]:
    """Merge groups of paths with different decisions; return numbers, conditions, and the merged decisions."""
    first, *rest = groups
    guards: dict[ShapeGuard, str] = {}
    found, kept = _merged(groups[first], at + 1, (*when, first), guards), [first]
    for other in rest:
        more: dict[ShapeGuard, str] = {}
        merged = _conditional(other, _merged(groups[other], at + 1, (*when, other), more), found)
        if merged is not None and all(other.excludes(one) for one in kept):
            found = merged
            guards |= more
            kept.append(other)
    return found, guards, kept


_LISTS = ("box", "shape", "strides")
"""Numbers of a tensor map."""


def _conditional(guard: ShapeGuard, yes: _Numbers, no: _Numbers) -> _Numbers | None:
    """Return launches and buffers that depend on a condition; None if they differ in more than numbers."""

    def number(first: Any, second: Any) -> Any:
        one, two = formula_of(first), formula_of(second)
        if one == two:
            return second
        recorder = next(
            n.recorder for n in (second, first, Traced.make(0, two, GuardRecorder())) if isinstance(n, Traced)
        )
        return Traced.make(bare(second), ("if", guard, one, two), recorder)

    def numbers(first: Sequence[Any], second: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(map(number, first, second))

    def argument(first: str | Scalar | TileMap, second: str | Scalar | TileMap) -> str | Scalar | TileMap:
        if isinstance(first, TileMap) and isinstance(second, TileMap):
            lists: dict[str, Any] = {name: numbers(getattr(first, name), getattr(second, name)) for name in _LISTS}
            return made if (made := replace(second, **lists)) == replace(first, **lists) else ""
        if not (isinstance(first, Scalar) and isinstance(second, Scalar) and first.dtype == second.dtype):
            return second if first == second else ""
        if all(isinstance(one.value, int) and not isinstance(one.value, bool) for one in (first, second)):
            return replace(second, value=number(first.value, second.value))
        return second if first == second else ""

    launches: list[Launch] = []
    tensors: dict[str, Tensor] = {}
    if len(yes[0]) != len(no[0]) or list(yes[1]) != list(no[1]):
        return None
    for one, two in zip(yes[0], no[0], strict=True):
        if len(one.args) != len(two.args):
            return None
        arguments = tuple(map(argument, one.args, two.args))
        sizes = numbers((*one.grid, *one.block, one.shared_bytes), (*two.grid, *two.block, two.shared_bytes))
        made = replace(two, grid=sizes[:3], block=sizes[3:6], shared_bytes=sizes[6], args=arguments)
        same = replace(one, grid=made.grid, block=made.block, shared_bytes=made.shared_bytes, args=arguments)
        if "" in arguments or same != made:
            return None
        launches.append(made)
    for name, tensor in no[1].items():
        other = yes[1][name]
        if len(other.shape) != len(tensor.shape) or replace(other, shape=tensor.shape) != tensor:
            return None
        tensors[name] = replace(tensor, shape=numbers(other.shape, tensor.shape))
    return tuple(launches), tensors


def _essential(guards: Mapping[ShapeGuard, str], ranges: Mapping[str, tuple[int, int]]) -> dict[ShapeGuard, str]:
    """Return the guards simplified by fixed fields, without guards that are always true."""
    fixed = {
        g.left[1]: g.right[1]
        for g in guards
        if (g.comparison, g.left[0], g.right[0]) == ("==", "field", "number") and not (g.when or g.others)
    }
    kept: dict[ShapeGuard, str] = {}
    for guard, reason in guards.items():
        if guard.left[0] == "field" and guard.left[1] in fixed and not (guard.when or guard.others):
            if guard.comparison == "==":
                kept.setdefault(guard, reason)
            continue
        shorter = guard.simplified(fixed)
        if shorter.fields and not shorter.always_holds(ranges):
            kept.setdefault(shorter, reason)
    return kept


def _agrees(traces: Traces, kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> bool:
    """Return whether formulas and functions agree on other shapes that pass the guards."""
    rng = random.Random(0)
    compiled = macros(kernel, config, problem)
    own = {name: int(problem[name]) for name in traces.fields}
    entries = {entry.name: entry for entry in kernel.fields}
    if not all(guard.holds(own) for guard in traces.guards):
        return False
    for number in range(400):
        fields = {
            name: _any_value(entries[name], value, rng) if number % 2 else rng.choice(_nearby_values(value, rng))
            for name, value in own.items()
        }
        if not all(guard.holds(fields) for guard in traces.guards):
            continue
        try:
            other = kernel.problem({**problem, **fields})
        except EvokernError:
            continue  # the launcher checks the range of each field
        if (
            check(kernel, config, [other], chip, essential=True) is not None
            or macros(kernel, config, other) != compiled
        ):
            return False
        wanted = _numbers(launches_of(kernel, config, other), kernel.workload.tensors(other, config))
        if _numbers(traces.launches, traces.tensors, fields) != wanted:
            return False
    return True


def _nearby_values(value: int, rng: random.Random) -> list[int]:
    near = [value, value, value, value + 1, value - 1, 2 * value, value // 2, 3 * value, rng.randint(1, 4 * value + 4)]
    return [number for number in near if number >= 0]


def _numbers(
    launches: Sequence[Launch], tensors: Mapping[str, Tensor], fields: Mapping[str, int] | None = None
) -> list[Any]:
    """Return all numbers of launches and buffers, with formulas evaluated."""

    def plain(number: Any) -> Any:
        if isinstance(number, Traced):
            return evaluate(number.formula, fields or {})
        return number

    result: list[Any] = []
    for launch in launches:
        scalars = [plain(a.value) for a in launch.args if isinstance(a, Scalar)]
        scalars += [[*map(plain, getattr(one, name))] for one in launch.maps for name in _LISTS]
        result.append([launch.entry, *map(plain, (*launch.grid, *launch.block, launch.shared_bytes)), scalars])
    result += [[name, *map(plain, tensor.shape)] for name, tensor in tensors.items()]
    return result
