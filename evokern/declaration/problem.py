"""What a kernel is asked to do: the shapes, dtype and options of one call, and how a user names them.

A `Problem` is the second of the things that a kernel's functions get; the fields that it may have are declared as
`ProblemField`s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.declaration.space import NamedValues, Value
from evokern.errors import KernelError, nearest


class Problem(NamedValues):
    """The shapes, dtype and options of one call: an immutable mapping whose fields also read as attributes (`p.S`)."""

    __slots__ = ("_unwritten",)

    def __init__(self, values: Mapping[str, Value], unwritten: Collection[str] = ()) -> None:
        """Take the fields, and the names of those that the text leaves out."""
        super().__init__(values)
        self._unwritten = frozenset(unwritten)

    def changed(self, changes: Mapping[str, Value]) -> Problem:
        """Return this problem with some numbers changed."""
        return Problem({**self._values, **changes}, self._unwritten)

    def __getstate__(self) -> Any:
        return self._values, self._unwritten

    def __setstate__(self, state: Any) -> None:
        self._values, self._unwritten = state

    def _unknown(self, name: str) -> KernelError:
        return KernelError(f"the problem has no field {name!r}: {nearest(name, self._values)}")

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self._values == other._values

    def __str__(self) -> str:
        written = ((n, v) for n, v in self._values.items() if n not in self._unwritten)
        return ",".join(str(v) if isinstance(v, int) else f"{n}={v}" for n, v in written)

    def __repr__(self) -> str:
        return f"Problem({', '.join(f'{name}={value}' for name, value in self._values.items())})"


@dataclass(frozen=True)
class ProblemField:
    """One field of a kernel's problems: a dimension or an option."""

    name: str
    """Name in study files and in `p.NAME`."""
    choices: tuple[Value, ...] = ()
    """Everything it may be; empty means any whole number from `least` to `most`."""
    default: Value | None = None
    """Value where the problem does not name it; None makes it compulsory and positional."""
    least: int = 1
    """Smallest value of a number."""
    most: int = 2**31 - 1
    """Largest value of a number."""
    multiple_of: int = 1
    """What divides a number."""
    later: bool = False
    """Whether the kernel had it only after problems without it were recorded: at its default the text of a problem, by
    which studies, draws and reports know it, leaves it out. Such fields stand last."""
    doc: str = ""
    """What it means."""

    def __post_init__(self) -> None:
        if self.later and self.default is None:
            raise KernelError(f"problem field {self.name} came later, so that it needs a default: what it was before")

    def parse(self, text: str | int | bool) -> Value:
        """Return the field's value from a study file or the command line.

        Raises:
            KernelError: the kernel does not take this value; the message lists what it takes.
        """
        if isinstance(text, bool):
            text = int(text)
        word = {"true": "1", "false": "0"}.get(str(text).strip().lower(), str(text).strip())
        if self.choices:
            for choice in self.choices:
                if str(choice) == word:
                    return choice
            raise KernelError(f"{self.name}={text} is not supported; it takes {', '.join(map(str, self.choices))}")
        try:
            number = int(word)
        except ValueError:
            raise KernelError(f"{self.name}={text!r} is no whole number") from None
        if not self.least <= number <= self.most:
            raise KernelError(f"{self.name}={number} is out of range; it takes {self.least} to {self.most}")
        if number % self.multiple_of:
            takes = f"multiples of {self.multiple_of} up to {self.most}"
            raise KernelError(f"{self.name}={number} is not supported; it takes {takes}")
        return number


def problem_of(kernel: str, fields: Sequence[ProblemField], text: str | Mapping[str, Value | bool]) -> Problem:
    """Return a problem from `"2,8,512,64,causal=1"` or from a mapping.

    Args:
        kernel: the kernel's name, for messages.
        fields: its fields, positional ones first.
        text: what the user gave.

    Raises:
        KernelError: a field is unknown, missing or outside what the kernel takes; the message says what it takes.
    """
    names = [entry.name for entry in fields]
    given = _split(kernel, fields, text) if isinstance(text, str) else dict(text)
    known = {entry.name.lower(): entry for entry in fields}
    values: dict[str, Value] = {}
    for name, raw in given.items():
        if name.lower() not in known:
            raise KernelError(f"{kernel} has no problem field {name!r}: {nearest(name, names)}")
        entry = known[name.lower()]
        values[entry.name] = entry.parse(raw)
    ordered: dict[str, Value] = {}
    for entry in fields:
        if entry.name in values:
            ordered[entry.name] = values[entry.name]
        elif entry.default is not None:
            ordered[entry.name] = entry.default
        else:
            raise KernelError(f"{kernel}: the problem lacks {entry.name}; fields: {', '.join(names)}")
    return Problem(ordered, [entry.name for entry in fields if entry.later and ordered[entry.name] == entry.default])


def parse_problems(
    kernel: str, fields: Sequence[ProblemField], given: Sequence[str | Mapping[str, Value | bool]], dtype: str | None
) -> tuple[Problem, ...]:
    """Return a study's problems, with its dtype where the kernel has such a field.

    Args:
        kernel: the kernel's name, for messages.
        fields: its fields, positional ones first.
        given: each problem as `problem_of` takes it.
        dtype: data type of them all, None where the study names none.

    Raises:
        KernelError: the kernel does not take one of them, or has no field for the dtype.
    """
    if dtype is not None and "dtype" not in [entry.name for entry in fields]:
        raise KernelError(f"dtype = {dtype!r}, but kernel {kernel} has no such field; leave it away")
    found = [problem_of(kernel, fields, text) for text in given]
    if dtype is not None:
        found = [problem_of(kernel, fields, {**problem, "dtype": dtype}) for problem in found]
    return tuple(found)


def _split(kernel: str, fields: Sequence[ProblemField], text: str) -> dict[str, Value | bool]:
    positional = [entry.name for entry in fields if entry.default is None]
    given: dict[str, Value | bool] = {}
    for index, part in enumerate(piece.strip() for piece in text.split(",") if piece.strip()):
        name, equals, value = part.partition("=")
        if equals:
            given[name.strip()] = value.strip()
        elif index < len(positional):
            given[positional[index]] = part
        elif index < len(fields):
            given[fields[index].name] = part
        else:
            names = [entry.name for entry in fields]
            raise KernelError(f"{kernel}: problem {text!r} has more values than fields: {names}")
    return given
