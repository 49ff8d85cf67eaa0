"""Problems: the shapes, dtype and options of one call, and their textual forms.

The functions of a kernel get a `Problem`. A kernel declares the possible fields as `ProblemField` objects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.declaration.field_types import TEXT, WHOLE, Kind, members, optional, require
from evokern.declaration.genes import NamedValues, Value
from evokern.errors import KernelError, suggestion


class Problem(NamedValues):
    """Shapes, dtype and options of one call: an immutable mapping; fields are also available as attributes (`p.S`)."""

    __slots__ = ("_defaults", "_unwritten")

    def __init__(
        self, values: Mapping[str, Value], unwritten: Collection[str] = (), defaults: Mapping[str, Value] | None = None
    ) -> None:
        """Create a problem.

        Args:
            values: field → value, in the order of the kernel's fields.
            unwritten: fields that the key omits.
            defaults: field → default value, which `in_words` omits.
        """
        super().__init__(values)
        self._unwritten = frozenset(unwritten)
        self._defaults = dict(defaults or {})

    @property
    def key(self) -> str:
        """The problem as one line: its identifier in databases, JSON and random seeds; see `in_words` for display."""
        written = ((n, v) for n, v in self._values.items() if n not in self._unwritten)
        return ",".join(str(v) if isinstance(v, int) else f"{n}={v}" for n, v in written)

    def in_words(self, *, every: bool = False) -> str:
        """Return the problem in the form `B=2 S=512 CAUSAL=1`, for display and as input of `problem_of`.

        Args:
            every: whether to include fields at their default; all fields are included if all are at their default.
        """
        names = [n for n, v in self._values.items() if every or n not in self._defaults or self._defaults[n] != v]
        return " ".join(f"{name}={self._values[name]}" for name in names or self._values)

    def changed(self, changes: Mapping[str, Value]) -> Problem:
        """Return this problem with some numbers changed."""
        return Problem({**self._values, **changes}, self._unwritten, self._defaults)

    def __getstate__(self) -> Any:
        return self._values, self._unwritten, self._defaults

    def __setstate__(self, state: Any) -> None:
        self._values, self._unwritten, self._defaults = state

    def _unknown(self, name: str) -> KernelError:
        return KernelError(f"the problem has no field {name!r}: {suggestion(name, self._values)}")

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self._values == other._values

    def __str__(self) -> str:
        return self.in_words()

    def __repr__(self) -> str:
        return f"Problem({', '.join(f'{name}={value}' for name, value in self._values.items())})"


_CHOICE = Kind(lambda value: isinstance(value, (int, str)), "a whole number or a name")


@dataclass(frozen=True)
class ProblemField:
    """One field of a kernel's problems: a dimension or an option."""

    name: str
    """Name in study files and in `p.NAME`."""
    choices: tuple[Value, ...] = ()
    """Possible values; empty means any whole number from `least` to `most`."""
    default: Value | None = None
    """Value if the problem does not set the field; None makes the field required and positional."""
    least: int = 1
    """Smallest number."""
    most: int = 2**31 - 1
    """Largest number."""
    multiple_of: int = 1
    """Required divisor of a number."""
    later: bool = False
    """Whether the field was added after problems without it were recorded. At its default, the key of a problem omits
    the field, so that the recorded keys stay valid. Declare such fields last."""
    doc: str = ""
    """Meaning of the field."""

    def __post_init__(self) -> None:
        require("a problem field", self, {"name": TEXT})
        owner = f"problem field {self.name}"
        choices = members(owner, "choices", self.choices, _CHOICE)
        object.__setattr__(self, "choices", choices)
        require(owner, self, {"default": optional(_CHOICE), "least": WHOLE, "most": WHOLE, "multiple_of": WHOLE})
        if self.later and self.default is None:
            raise KernelError(
                f"problem field {self.name} is marked `later`, so it needs a default: the value used before the field "
                "was added"
            )

    def parse(self, text: str | int | bool) -> Value:
        """Return the value of the field for a text from a study file or the command line.

        Raises:
            KernelError: the kernel does not support this value; the message lists the supported values.
        """
        if isinstance(text, bool):
            text = int(text)
        word = {"true": "1", "false": "0"}.get(str(text).strip().lower(), str(text).strip())
        if self.choices:
            for choice in self.choices:
                if str(choice) == word:
                    return choice
            raise KernelError(f"{self.name}={text} is not supported; choose from {', '.join(map(str, self.choices))}")
        try:
            number = int(word)
        except ValueError:
            raise KernelError(f"{self.name}={text!r} is not a whole number") from None
        if not self.least <= number <= self.most:
            raise KernelError(f"{self.name}={number} is out of range; use {self.least} to {self.most}")
        if number % self.multiple_of:
            takes = f"a multiple of {self.multiple_of} up to {self.most}"
            raise KernelError(f"{self.name}={number} is not supported; use {takes}")
        return number


def problem_of(kernel: str, fields: Sequence[ProblemField], text: str | Mapping[str, Value | bool]) -> Problem:
    """Return a problem from `"B=2 H=8 S=512 D=64"`, from `"2,8,512,64,causal=1"` or from a mapping.

    In a text, named fields may appear in any order and case, separated by blanks or commas. A value without a name sets
    the field at its position.

    Args:
        kernel: name of the kernel, for messages.
        fields: fields of the kernel, positional ones first.
        text: the user's text or mapping.

    Raises:
        KernelError: a field is unknown, missing, given twice or out of range; the message lists the supported values.
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
            raise KernelError(f"{kernel}: the problem has no value for {entry.name}; fields: {names}")
    later = [entry.name for entry in fields if entry.later and ordered[entry.name] == entry.default]
    return Problem(ordered, later, {entry.name: entry.default for entry in fields if entry.default is not None})


def _given(kernel: str, fields: Sequence[ProblemField], text: str | Mapping[str, Value | bool]) -> dict[str, Value]:
    """Return the given fields by name."""
    names = [entry.name for entry in fields]
    known = {entry.name.lower(): entry for entry in fields}
    values: dict[str, Value] = {}
    for name, raw in _split(kernel, fields, text) if isinstance(text, str) else text.items():
        if name.lower() not in known:
            raise KernelError(f"{kernel} has no problem field {name!r}: {suggestion(name, names)}")
        entry = known[name.lower()]
        if entry.name in values:
            raise KernelError(
                f"{kernel}: the problem sets {entry.name} twice, to {values[entry.name]} and {raw}; set each field once"
            )
        values[entry.name] = entry.parse(raw)
    return values


def parse_problems(
    kernel: str, fields: Sequence[ProblemField], given: Sequence[str | Mapping[str, Value | bool]], dtype: str | None
) -> tuple[Problem, ...]:
    """Return the problems of a study, with the study's dtype.

    Args:
        kernel: name of the kernel, for messages.
        fields: fields of the kernel, positional ones first.
        given: problems in a form that `problem_of` accepts.
        dtype: dtype of all problems; None if the study sets none.

    Raises:
        KernelError: a problem is not supported, its dtype differs from `dtype`, or the kernel has no field `dtype`.
    """
    if dtype is not None and "dtype" not in [entry.name for entry in fields]:
        raise KernelError(f"dtype = {dtype!r}, but kernel {kernel} has no such field; remove the dtype")
    found = [_given(kernel, fields, text) for text in given]
    if dtype is not None:
        wanted = next(entry for entry in fields if entry.name == "dtype").parse(dtype)
        for text, values in zip(given, found, strict=True):
            if (own := values.setdefault("dtype", wanted)) != wanted:
                raise KernelError(
                    f"dtype = {dtype!r}, but the problem {text!r} sets {own}; set the dtype in only one of them"
                )
    return tuple(problem_of(kernel, fields, values) for values in found)


def key_of(kernel: str, fields: Sequence[ProblemField], text: str) -> str:
    """Return the key of the problem that a user's text describes.

    Raises:
        KernelError: the text is not a supported problem; the message lists the supported values.
    """
    return problem_of(kernel, fields, text).key


def words_of(fields: Sequence[ProblemField], key: str, *, every: bool = False) -> str:
    """Return a stored problem in readable form (`Problem.in_words`), or its key if it does not match the fields.

    Args:
        fields: the kernel's fields, as stored with the problem; empty in databases of old versions.
        key: key of the problem.
        every: whether to include fields at their default.
    """
    found = _stored(fields, key)
    return key if found is None else found.in_words(every=every)


def meanings_of(fields: Sequence[ProblemField], key: str) -> tuple[tuple[str, Value, str], ...]:
    """Return the name, value and meaning of each field of a stored problem; empty if its key has other fields."""
    found = _stored(fields, key)
    return () if found is None else tuple((entry.name, found[entry.name], entry.doc) for entry in fields)


def _stored(fields: Sequence[ProblemField], key: str) -> Problem | None:
    try:
        return problem_of("the kernel", fields, key) if fields else None
    except KernelError:
        return None


_SEPARATOR = re.compile(r"\s*,\s*|\s+(?=[A-Za-z_]\w*\s*=)")
"""Separator of the parts of a problem's text: a comma, or blanks before a name. A choice may contain blanks."""


def parts_of(text: str) -> list[tuple[str, str]]:
    """Return the name and value of each part of a problem's text, in order; the name of a bare value is empty."""
    split = (part.partition("=") for part in _SEPARATOR.split(text.strip()) if part)
    return [(name.strip(), value.strip()) if equals else ("", name) for name, equals, value in split]


def _split(kernel: str, fields: Sequence[ProblemField], text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each part of a problem's text."""
    positional = [entry.name for entry in fields if entry.default is None]
    for index, (name, value) in enumerate(parts_of(text)):
        if name or index < len(positional):
            yield name or positional[index], value
        elif index < len(fields):
            yield fields[index].name, value
        else:
            names = ", ".join(entry.name for entry in fields)
            raise KernelError(f"{kernel}: problem {text!r} has more values than fields; fields: {names}")
