"""A kernel's declared functions, run once on numbers that remember their formula.

A launcher outside Python must know the grid for shapes other than the study's. The declared functions are plain Python,
so they are run on `Traced` integers: the study's own values, each with the formula that made it. Arithmetic extends the
formula; every comparison, and every use as a plain number, becomes a guard: a condition under which the formulas hold.
`trace` then tries the formulas on other shapes that pass the guards, against the functions themselves; should they ever
disagree (a number escaped unseen, say into `range`), it guards every field with the study's own value.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, SupportsIndex, cast

from evokern.errors import EvokernError
from evokern.export.formula import (
    COMPARISONS,
    OPERATORS,
    OPPOSITE,
    Formula,
    Guard,
    evaluate,
    fields_of,
    simplified,
)
from evokern.feasibility import check, launches_of
from evokern.kernel import Kernel, Launch, Problem, Scalar, Tensor
from evokern.profiles import Profile
from evokern.render import macros
from evokern.space import Config, Value


class Recorder:
    """Collects guards while traced code runs, each with the reason given last."""

    def __init__(self) -> None:
        self.guards: dict[Guard, str] = {}
        self.reason = ""
        self.texts_matter = True

    def decide(self, comparison: str, left: Formula, right: Formula, answer: bool) -> bool:
        """Note that a comparison came out as it did."""
        if fields_of(left) or fields_of(right):
            guard = Guard(comparison if answer else OPPOSITE[comparison], left, right)
            self.guards.setdefault(guard, self.reason)
        return answer


class Traced(int):
    """A whole number with the formula that made it."""

    formula: Formula
    recorder: Recorder

    @staticmethod
    def make(value: int, formula: Formula, recorder: Recorder) -> Traced:
        """Return a number with its formula."""
        number = int.__new__(Traced, value)
        number.formula = formula
        number.recorder = recorder
        return number

    @property
    def value(self) -> int:
        """The bare number, without a guard."""
        return int.__int__(self)

    def _pinned(self) -> int:
        """Return the bare number and guard that it stays what it is."""
        self.recorder.decide("==", self.formula, ("number", self.value), True)
        return self.value

    def _join(self, operator: str, left: object, right: object) -> Any:
        if not (isinstance(left, int) and isinstance(right, int)):
            plain = [number._pinned() if isinstance(number, Traced) else number for number in (left, right)]
            return OPERATORS[operator](*cast("list[int]", plain))
        result = OPERATORS[operator](bare(left), bare(right))
        return Traced.make(result, (operator, formula_of(left), formula_of(right)), self.recorder)

    def _compare(self, comparison: str, other: object) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        if isinstance(other, float):
            if not other.is_integer():
                return COMPARISONS[comparison](self._pinned(), cast("int", other))
            other = int(other)
        answer = COMPARISONS[comparison](self.value, bare(other))
        return self.recorder.decide(comparison, self.formula, formula_of(other), answer)

    def __add__(self, other: Any) -> Any:
        return self._join("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._join("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._join("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._join("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._join("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._join("*", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self._join("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._join("//", other, self)

    def __mod__(self, other: Any) -> Any:
        return self._join("%", self, other)

    def __rmod__(self, other: Any) -> Any:
        return self._join("%", other, self)

    def __neg__(self) -> Any:
        return Traced.make(-self.value, ("neg", self.formula), self.recorder)

    def __pos__(self) -> Any:
        return self

    def __lt__(self, other: Any) -> Any:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Any:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(">=", other)

    def __eq__(self, other: object) -> Any:
        return self._compare("==", other)

    def __ne__(self, other: object) -> Any:
        return self._compare("!=", other)

    def __bool__(self) -> bool:
        return bool(self._compare("!=", 0))

    def __hash__(self) -> int:
        return hash(self._pinned())

    def __int__(self) -> int:
        return self._pinned()

    def __index__(self) -> int:
        return self._pinned()

    def __float__(self) -> float:
        return float(self._pinned())

    def __truediv__(self, other: Any) -> Any:
        return self._pinned() / (other._pinned() if isinstance(other, Traced) else other)

    def __rtruediv__(self, other: Any) -> Any:
        return other / self._pinned()

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        return pow(self._pinned(), int(other) if isinstance(other, Traced) else other, modulus)

    def __rpow__(self, other: Any, modulus: Any = None) -> Any:
        return pow(other, self._pinned(), modulus)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __lshift__(self, other: Any) -> Any:
        return self * (1 << int(other))

    def __rshift__(self, other: Any) -> Any:
        return self // (1 << int(other))

    def __and__(self, other: Any) -> Any:
        return self._pinned() & int(other)

    def __or__(self, other: Any) -> Any:
        return self._pinned() | int(other)

    def __xor__(self, other: Any) -> Any:
        return self._pinned() ^ int(other)

    def _text(self) -> int:
        """Pin only where text may decide something, such as an entry's name; messages do not."""
        return self._pinned() if self.recorder.texts_matter else self.value

    def __str__(self) -> str:
        return str(self._text())

    def __repr__(self) -> str:
        return repr(self._text())

    def __format__(self, spec: str) -> str:
        return format(self._text(), spec)

    def __round__(self, digits: SupportsIndex | None = None) -> Any:
        return self

    def bit_length(self) -> int:
        """Pinned: no formula has it."""
        return self._pinned().bit_length()


def bare(number: int) -> int:
    """Return a number without its formula and without a guard."""
    return number.value if isinstance(number, Traced) else number


def formula_of(number: int) -> Formula:
    """Return a number's formula; a plain number is its own."""
    return number.formula if isinstance(number, Traced) else ("number", int(number))


@dataclass(frozen=True)
class Traces:
    """What a launcher needs to know, as formulas over the numeric fields."""

    fields: tuple[str, ...]
    """Numeric fields, in declared order."""
    guards: Mapping[Guard, str]
    """Conditions under which everything here holds, and why."""
    launches: tuple[Launch, ...]
    """Launches whose numbers may be `Traced`."""
    tensors: Mapping[str, Tensor]
    """Buffers whose extents may be `Traced`."""
    pinned: bool = field(default=False)
    """Whether only the study's own shape is taken."""


def trace(kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> Traces:
    """Trace a candidate's launches and buffers at a problem.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the problem that it was found on, whose macros the exported source carries.
        chip: limits that other shapes have to keep as well.

    Raises:
        KernelError: a function that the kernel declares raised.
    """
    traces = _run(kernel, config, problem, chip)
    if _agrees(traces, kernel, config, problem, chip):
        return traces
    exactly = {Guard("==", ("field", name), ("number", int(problem[name]))): "" for name in traces.fields}
    reason = "this launcher knows the study's own shape only"
    return replace(traces, guards=dict.fromkeys(exactly, reason), pinned=True)


def _run(kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> Traces:
    recorder = Recorder()
    numeric = tuple(f.name for f in kernel.fields if isinstance(problem[f.name], int))
    values: dict[str, Value] = dict(problem)
    for name in numeric:
        values[name] = Traced.make(int(problem[name]), ("field", name), recorder)
    symbolic = Problem(values)
    recorder.reason = "the program was compiled for it"
    plain = macros(kernel, config, problem)
    for name, value in dict(kernel.macros(config, symbolic)).items():
        if isinstance(value, Traced):
            recorder.decide("==", value.formula, ("number", int(plain[name])), True)
    for constraint in kernel.constraints:
        recorder.reason = constraint.reason
        bool(constraint.evaluate(config, symbolic, chip).holds)
    recorder.reason, recorder.texts_matter = f"the limits of {chip.model}", False
    check(replace(kernel, constraints=()), config, [symbolic], chip)
    recorder.texts_matter = True
    recorder.reason = "the launch was derived for it"
    launches = launches_of(kernel, config, symbolic)
    tensors = dict(kernel.workload.tensors(symbolic, config))
    return Traces(numeric, _essential(recorder.guards), launches, tensors)


def _essential(guards: Mapping[Guard, str]) -> dict[Guard, str]:
    """Return the guards simplified by the fields that others fix, without those that then always hold."""
    fixed = {
        g.left[1]: g.right[1] for g in guards if (g.comparison, g.left[0], g.right[0]) == ("==", "field", "number")
    }
    kept: dict[Guard, str] = {}
    for guard, reason in guards.items():
        if guard.left[0] == "field" and guard.left[1] in fixed:
            if guard.comparison == "==":
                kept.setdefault(guard, reason)
            continue
        left, right = simplified(guard.left, fixed), simplified(guard.right, fixed)
        if fields_of(left) or fields_of(right):
            kept.setdefault(Guard(guard.comparison, left, right), reason)
    return kept


def _agrees(traces: Traces, kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> bool:
    """Try the formulas on other shapes that pass the guards, against the functions themselves."""
    rng = random.Random(0)
    compiled = macros(kernel, config, problem)
    own = {name: int(problem[name]) for name in traces.fields}
    for _ in range(200):
        fields = {name: rng.choice(_around(value, rng)) for name, value in own.items()}
        if not all(guard.holds(fields) for guard in traces.guards):
            continue
        try:
            other = kernel.problem({**problem, **fields})
        except EvokernError:
            continue  # the launcher checks each field's own range
        if check(kernel, config, [other], chip) is not None or macros(kernel, config, other) != compiled:
            return False
        wanted = _numbers(launches_of(kernel, config, other), kernel.workload.tensors(other, config))
        if _numbers(traces.launches, traces.tensors, fields) != wanted:
            return False
    return True


def _around(value: int, rng: random.Random) -> list[int]:
    near = [value, value, value, value + 1, value - 1, 2 * value, value // 2, 3 * value, rng.randint(1, 4 * value + 4)]
    return [number for number in near if number >= 0]


def _numbers(
    launches: Sequence[Launch], tensors: Mapping[str, Tensor], fields: Mapping[str, int] | None = None
) -> list[Any]:
    """Return every number of launches and buffers, formulas evaluated."""

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
