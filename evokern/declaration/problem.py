"""What a kernel is asked to do: the shapes, dtype and options of one call, and how a user names them.

A `Problem` is the second of the things that a kernel's functions get; the fields that it may have are declared as
`ProblemField`s.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.declaration.genes import NamedValues, Value
from evokern.errors import KernelError, nearest


class Problem(NamedValues):
    """The shapes, dtype and options of one call: an immutable mapping whose fields also read as attributes (`p.S`)."""

    __slots__ = ("_defaults", "_unwritten")

    def __init__(
        self, values: Mapping[str, Value], unwritten: Collection[str] = (), defaults: Mapping[str, Value] | None = None
    ) -> None:
        """Take the fields' values.

        Args:
            values: field → value, in the order of the kernel's fields.
            unwritten: fields that the key leaves out.
            defaults: field → value at which words for people leave it out.
        """
        super().__init__(values)
        self._unwritten = frozenset(unwritten)
        self._defaults = dict(defaults or {})

    @property
    def key(self) -> str:
        """The problem as one line: its identity in databases, JSON and draws; people read `in_words`."""
        written = ((n, v) for n, v in self._values.items() if n not in self._unwritten)
        return ",".join(str(v) if isinstance(v, int) else f"{n}={v}" for n, v in written)

    def in_words(self, *, every: bool = False) -> str:
        """Return `B=2 S=512 CAUSAL=1`: what people read, and what `problem_of` takes.

        Args:
            every: with the fields at their default; they are left out otherwise, unless none would be left.
        """
        told = [n for n, v in self._values.items() if every or n not in self._defaults or self._defaults[n] != v]
        return " ".join(f"{name}={self._values[name]}" for name in told or self._values)

    def changed(self, changes: Mapping[str, Value]) -> Problem:
        """Return this problem with some numbers changed."""
        return Problem({**self._values, **changes}, self._unwritten, self._defaults)

    def __getstate__(self) -> Any:
        return self._values, self._unwritten, self._defaults

    def __setstate__(self, state: Any) -> None:
        self._values, self._unwritten, self._defaults = state

    def _unknown(self, name: str) -> KernelError:
        return KernelError(f"the problem has no field {name!r}: {nearest(name, self._values)}")

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self._values == other._values

    def __str__(self) -> str:
        return self.in_words()

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
    """Whether the kernel had it only after problems without it were recorded: at its default the key of a problem, by
    which studies and draws know it, leaves it out. Such fields stand last."""
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
    """Return a problem from `"B=2 H=8 S=512 D=64"`, from `"2,8,512,64,causal=1"` or from a mapping.

    In a text, names may stand in any order and any case, apart by blanks or commas; a value without a name belongs to
    the field at its place.

    Args:
        kernel: the kernel's name, for messages.
        fields: its fields, positional ones first.
        text: what the user gave.

    Raises:
        KernelError: a field is unknown, missing, given twice or outside what the kernel takes; the message says what it
            takes.
    """
    values = _given(kernel, fields, text)
    ordered: dict[str, Value] = {}
    for entry in fields:
        if entry.name in values:
            ordered[entry.name] = values[entry.name]
        elif entry.default is not None:
            ordered[entry.name] = entry.default
        else:
            names = ", ".join(entry.name for entry in fields)
            raise KernelError(f"{kernel}: the problem lacks {entry.name}; fields: {names}")
    later = [entry.name for entry in fields if entry.later and ordered[entry.name] == entry.default]
    return Problem(ordered, later, {entry.name: entry.default for entry in fields if entry.default is not None})


def _given(kernel: str, fields: Sequence[ProblemField], text: str | Mapping[str, Value | bool]) -> dict[str, Value]:
    """Return the fields that a user gave, by name."""
    names = [entry.name for entry in fields]
    known = {entry.name.lower(): entry for entry in fields}
    values: dict[str, Value] = {}
    for name, raw in _split(kernel, fields, text) if isinstance(text, str) else text.items():
        if name.lower() not in known:
            raise KernelError(f"{kernel} has no problem field {name!r}: {nearest(name, names)}")
        entry = known[name.lower()]
        if entry.name in values:
            raise KernelError(
                f"{kernel}: the problem gives {entry.name} twice, {values[entry.name]} and {raw}; give each field once"
            )
        values[entry.name] = entry.parse(raw)
    return values


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
        KernelError: the kernel does not take one of them, has no field for the dtype, or a problem names another one.
    """
    if dtype is not None and "dtype" not in [entry.name for entry in fields]:
        raise KernelError(f"dtype = {dtype!r}, but kernel {kernel} has no such field; leave it away")
    found = [_given(kernel, fields, text) for text in given]
    if dtype is not None:
        wanted = next(entry for entry in fields if entry.name == "dtype").parse(dtype)
        for text, values in zip(given, found, strict=True):
            if (own := values.setdefault("dtype", wanted)) != wanted:
                raise KernelError(
                    f"dtype = {dtype!r}, but the problem {text!r} says {own}; name it in one of them alone"
                )
    return tuple(problem_of(kernel, fields, values) for values in found)


def key_of(kernel: str, fields: Sequence[ProblemField], text: str) -> str:
    """Return the key of the problem that a user's text names.

    Raises:
        KernelError: it names none; the message says what the kernel takes.
    """
    return problem_of(kernel, fields, text).key


def words_of(fields: Sequence[ProblemField], key: str, *, every: bool = False) -> str:
    """Return a stored problem in words (`Problem.in_words`); its key where that is none of the fields'.

    Args:
        fields: the kernel's fields as they were stored with the problem; none in databases from before they were.
        key: the problem's key.
        every: with the fields at their default.
    """
    found = _stored(fields, key)
    return key if found is None else found.in_words(every=every)


def meanings_of(fields: Sequence[ProblemField], key: str) -> tuple[tuple[str, Value, str], ...]:
    """Return name, value and meaning of each field of a stored problem; none where its key is none of the fields'."""
    found = _stored(fields, key)
    return () if found is None else tuple((entry.name, found[entry.name], entry.doc) for entry in fields)


def _stored(fields: Sequence[ProblemField], key: str) -> Problem | None:
    try:
        return problem_of("the kernel", fields, key) if fields else None
    except KernelError:
        return None


_APART = re.compile(r"\s*,\s*|\s+(?=[A-Za-z_]\w*\s*=)")
"""What stands between the parts of a problem's text: a comma, or blanks before a name. A choice may hold blanks."""


def parts_of(text: str) -> list[tuple[str, str]]:
    """Return name and value of each part of a problem's text, in order; an empty name where it has none."""
    split = (part.partition("=") for part in _APART.split(text.strip()) if part)
    return [(name.strip(), value.strip()) if equals else ("", name) for name, equals, value in split]


def _split(kernel: str, fields: Sequence[ProblemField], text: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each part of a problem's text."""
    positional = [entry.name for entry in fields if entry.default is None]
    for index, (name, value) in enumerate(parts_of(text)):
        if name or index < len(positional):
            yield name or positional[index], value
        elif index < len(fields):
            yield fields[index].name, value
        else:
            names = ", ".join(entry.name for entry in fields)
            raise KernelError(f"{kernel}: problem {text!r} has more values than fields, which are {names}")
