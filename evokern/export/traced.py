"""Integers that record their formula and the conditions under which it is valid."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex, cast

from evokern.export.formula import COMPARISONS, OPERATORS, OPPOSITE, Formula, ShapeGuard, fields_of

DERIVED = "the launch was derived for this value"
"""Reason for a guard from the kernel's `launches`; any other reason for the same guard replaces it."""


class GuardRecorder:
    """Collector of guards while traced code runs, each with the current reason."""

    def __init__(self) -> None:
        self.guards: dict[ShapeGuard, str] = {}
        self.reason = ""
        self.texts_matter = True

    def decide(self, comparison: str, left: Formula, right: Formula, answer: bool) -> bool:
        """Record the result of a comparison as a guard, and return this result."""
        if fields_of(left) or fields_of(right):
            guard = ShapeGuard(comparison if answer else OPPOSITE[comparison], left, right)
            if self.guards.get(guard, DERIVED) == DERIVED:
                self.guards[guard] = self.reason
        return answer


class Traced(int):
    """An integer with its formula."""

    formula: Formula
    recorder: GuardRecorder

    @staticmethod
    def make(value: int, formula: Formula, recorder: GuardRecorder) -> Traced:
        """Return an integer with the given value and formula."""
        number = int.__new__(Traced, value)
        number.formula = formula
        number.recorder = recorder
        return number

    @property
    def value(self) -> int:
        """The plain number, without adding a guard."""
        return int.__int__(self)

    def _pinned(self) -> int:
        """Return the plain number, and add a guard that fixes its value."""
        self.recorder.decide("==", self.formula, ("number", self.value), True)
        return self.value

    def _join(self, sign: str, left: object, right: object) -> Any:
        if not (isinstance(left, int) and isinstance(right, int)):
            plain = [number._pinned() if isinstance(number, Traced) else number for number in (left, right)]
            return OPERATORS[sign](*cast("list[int]", plain))
        result = OPERATORS[sign](bare(left), bare(right))
        return Traced.make(result, (sign, formula_of(left), formula_of(right)), self.recorder)

    def _compare(self, comparison: str, other: object) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        if isinstance(other, float):
            if not other.is_integer():
                return COMPARISONS[comparison](self._pinned(), cast("int", other))
            other = int(other)
        answer = COMPARISONS[comparison](self.value, bare(other))
        return self.recorder.decide(comparison, self.formula, formula_of(other), answer)

    def __neg__(self) -> Any:
        return Traced.make(-self.value, ("neg", self.formula), self.recorder)

    def __pos__(self) -> Any:
        return self

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
        return TracedRatio(self, other) if isinstance(other, int) else self._pinned() / other

    def __rtruediv__(self, other: Any) -> Any:
        return TracedRatio(other, self) if isinstance(other, int) else other / self._pinned()

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
        if type(other) is int and other < 0 and -other & (-other - 1) == 0:  # n & -8 rounds down to a multiple of 8
            return self // -other * -other
        return self._pinned() & int(other)

    def __or__(self, other: Any) -> Any:
        return self._pinned() | int(other)

    def __xor__(self, other: Any) -> Any:
        return self._pinned() ^ int(other)

    def __rlshift__(self, other: Any) -> Any:
        return other << self._pinned()

    def __rrshift__(self, other: Any) -> Any:
        return other >> self._pinned()

    def __rand__(self, other: Any) -> Any:
        return self & other

    def __ror__(self, other: Any) -> Any:
        return self | other

    def __rxor__(self, other: Any) -> Any:
        return self ^ other

    def __invert__(self) -> Any:
        return -self - 1

    def _text(self) -> int:
        """Return the plain number; add a guard only if texts matter, for example in an entry's name."""
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
        """Return the bit length."""
        return Traced.make(self.value.bit_length(), ("bits", self.formula), self.recorder)


class TracedRatio:
    """A quotient of integers, which `math.ceil`, `math.floor` and `int` make a traced integer.

    Any other use makes it a float, with guards that fix the two integers.
    """

    def __init__(self, dividend: int, divisor: int) -> None:
        """Keep the integers.

        Raises:
            ZeroDivisionError: the divisor is 0.
        """
        if bare(divisor) == 0:
            raise ZeroDivisionError("division by zero")
        self.dividend, self.divisor = dividend, divisor

    def __ceil__(self) -> Any:
        return -(-self.dividend // self.divisor)

    def __floor__(self) -> Any:
        return self.dividend // self.divisor

    def __int__(self) -> int:
        return int(float(self))

    def __trunc__(self) -> Any:
        return self.__floor__() if (self.dividend >= 0) == (self.divisor > 0) else self.__ceil__()

    def __float__(self) -> float:
        return int(self.dividend) / int(self.divisor)

    def __round__(self, digits: int | None = None) -> Any:
        return round(float(self), digits)

    def is_integer(self) -> bool:
        """Return whether the quotient is a whole number, and add a guard for the answer."""
        return bool(self.dividend % self.divisor == 0)


def _joining(sign: str) -> tuple[Any, Any]:
    """Return methods of `Traced` that apply an operator, as left and as right operand."""
    return lambda self, other: self._join(sign, self, other), lambda self, other: self._join(sign, other, self)


def _as_float(name: str) -> tuple[Any, Any]:
    """Return methods of `TracedRatio` that apply an operator to the float, as left and as right operand."""

    def method(self: TracedRatio, *others: Any) -> Any:
        return getattr(operator, name)(float(self), *(float(o) if isinstance(o, TracedRatio) else o for o in others))

    def reflected(self: TracedRatio, other: Any) -> Any:
        return getattr(operator, name)(other, float(self))

    return method, reflected


def _comparing(comparison: str) -> Any:
    """Return a method of `Traced` that compares."""
    return lambda self, other: self._compare(comparison, other)


for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}.items():
    for _prefix, _method in zip(("__", "__r"), _joining(_sign), strict=True):
        setattr(Traced, f"{_prefix}{_name}__", _method)
for _name, _sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    setattr(Traced, f"__{_name}__", _comparing(_sign))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    for _prefix, _method in zip(("__", "__r"), _as_float(_name), strict=True):
        setattr(TracedRatio, f"{_prefix}{_name}__", _method)
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs"):
    setattr(TracedRatio, f"__{_name}__", _as_float(_name)[0])


def bare(number: int) -> int:
    """Return the plain number of a traced number; this adds no guard."""
    return number.value if isinstance(number, Traced) else number


def formula_of(number: int) -> Formula:
    """Return the formula of a plain or traced number."""
    return number.formula if isinstance(number, Traced) else ("number", int(number))
