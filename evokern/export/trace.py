"""Tracing of a kernel's declared functions, which turns their results into formulas over the shape.

The exported launcher needs the grid for shapes other than the study's. Therefore the declared Python functions run on
`Traced` integers, which record the formula of each value. Every comparison, and every use as a plain number, becomes a
guard: a condition under which the formulas are valid. `trace` then compares the formulas with the functions on other
shapes that pass the guards. If they differ, for example because a number was used in `range`, only the study's shape
is accepted.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config, Value
from evokern.declaration.kernel import Kernel, Launch, Problem, Scalar, Tensor
from evokern.declaration.render import macros
from evokern.errors import EvokernError
from evokern.export.formula import ShapeGuard, evaluate, fields_of, simplified
from evokern.export.traced import GuardRecorder, Traced
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
    traces = _run(kernel, config, problem, chip)
    if _agrees(traces, kernel, config, problem, chip):
        return traces
    exactly = {ShapeGuard("==", ("field", name), ("number", int(problem[name]))): "" for name in traces.fields}
    reason = "this launcher supports only the study's shape"
    return replace(traces, guards=dict.fromkeys(exactly, reason), pinned=True)


def _run(kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> Traces:
    recorder = GuardRecorder()
    numeric = tuple(f.name for f in kernel.fields if isinstance(problem[f.name], int))
    values: dict[str, Value] = dict(problem)
    for name in numeric:
        values[name] = Traced.make(int(problem[name]), ("field", name), recorder)
    symbolic = Problem(values)
    recorder.reason = "the program was compiled for this value"
    plain = macros(kernel, config, problem)
    for name, value in dict(kernel.macros(config, symbolic)).items():
        if isinstance(value, Traced):
            recorder.decide("==", value.formula, ("number", int(plain[name])), True)
    for constraint in kernel.constraints:
        if constraint.wasteful:
            continue  # concerns only speed, so other shapes may violate it
        recorder.reason = constraint.reason
        bool(constraint.evaluate(config, symbolic, chip).holds)
    recorder.reason, recorder.texts_matter = f"a limit of {chip.model}", False
    check(replace(kernel, constraints=()), config, [symbolic], chip)
    recorder.texts_matter = True
    recorder.reason = "the launch was derived for this value"
    launches = launches_of(kernel, config, symbolic)
    tensors = dict(kernel.workload.tensors(symbolic, config))
    return Traces(numeric, _essential(recorder.guards), launches, tensors)


def _essential(guards: Mapping[ShapeGuard, str]) -> dict[ShapeGuard, str]:
    """Return the guards simplified by fixed fields, without guards that are always true."""
    fixed = {
        g.left[1]: g.right[1] for g in guards if (g.comparison, g.left[0], g.right[0]) == ("==", "field", "number")
    }
    kept: dict[ShapeGuard, str] = {}
    for guard, reason in guards.items():
        if guard.left[0] == "field" and guard.left[1] in fixed:
            if guard.comparison == "==":
                kept.setdefault(guard, reason)
            continue
        left, right = simplified(guard.left, fixed), simplified(guard.right, fixed)
        if fields_of(left) or fields_of(right):
            kept.setdefault(ShapeGuard(guard.comparison, left, right), reason)
    return kept


def _agrees(traces: Traces, kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> bool:
    """Return whether formulas and functions agree on other shapes that pass the guards."""
    rng = random.Random(0)
    compiled = macros(kernel, config, problem)
    own = {name: int(problem[name]) for name in traces.fields}
    for _ in range(200):
        fields = {name: rng.choice(_nearby_values(value, rng)) for name, value in own.items()}
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
        result.append([launch.entry, *map(plain, (*launch.grid, *launch.block, launch.shared_bytes)), scalars])
    result += [[name, *map(plain, tensor.shape)] for name, tensor in tensors.items()]
    return result
