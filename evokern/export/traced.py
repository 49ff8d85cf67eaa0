"""Integers that record their formula and the conditions under which it is valid."""

from __future__ import annotations

from typing import Any, SupportsIndex, cast

from evokern.export.formula import COMPARISONS, OPERATORS, OPPOSITE, Formula, ShapeGuard, fields_of


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
            self.guards.setdefault(guard, self.reason)
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
        """Return the bit length, and add a guard that fixes the number."""
        return self._pinned().bit_length()


def bare(number: int) -> int:
    """Return the plain number of a traced number; this adds no guard."""
    return number.value if isinstance(number, Traced) else number


def formula_of(number: int) -> Formula:
    """Return the formula of a plain or traced number."""
    return number.formula if isinstance(number, Traced) else ("number", int(number))
