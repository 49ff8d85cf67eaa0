"""Genes and configurations.

A *gene* is one choice: a `Parameter` (a number, in the inner layer) or a `Mutation` (a named code choice, in the outer
layer). A *configuration* assigns a value to every gene.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from evokern.declaration.field_types import TEXT, Kind, is_whole, members
from evokern.errors import EvokernError, SpaceError, suggestion
from evokern.hardware.profiles import CHIPS

Value = int | str
"""A gene's value: a whole number or a named choice. Booleans are the numbers 0 and 1."""


class NamedValues(Mapping[str, Value]):
    """An immutable mapping whose entries are also available as attributes."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)

    @abstractmethod
    def _unknown(self, name: str) -> EvokernError:
        """Return the exception for an unknown name."""

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __getattr__(self, name: str) -> int:
        # Declared as int, the most common type: constraints and launches do arithmetic on genes and shapes.
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._values[name]  # type: ignore[return-value]
        except KeyError:
            raise self._unknown(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> ItemsView[str, Value]:
        """Return the names with their values; faster than `Mapping.items`, because reports read many trials."""
        return self._values.items()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or the default if the name is unknown; faster than `Mapping.get`."""
        return self._values.get(name, default)

    def __getstate__(self) -> dict[str, Value]:
        return self._values

    def __setstate__(self, state: dict[str, Value]) -> None:
        self._values = state


class Config(NamedValues):
    """A value for every gene: an immutable, hashable mapping; genes are also available as attributes (`c.BLOCK_M`)."""

    __slots__ = ("_hash",)

    def __init__(self, values: Mapping[str, Value]) -> None:
        super().__init__(values)
        self._hash = hash(tuple(self._values.items()))

    def _unknown(self, name: str) -> SpaceError:
        return SpaceError(f"there is no gene {name!r}: {suggestion(name, self._values)}")

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Config):
            return self._values == other._values
        return NotImplemented

    def __setstate__(self, state: dict[str, Value]) -> None:
        super().__setstate__(state)
        self._hash = hash(tuple(state.items()))

    def replace(self, **changes: Value) -> Config:
        """Return a copy with some genes changed; the copy may not be canonical (see `Space.canonical`)."""
        return Config({**self._values, **changes})

    @property
    def key(self) -> str:
        """Configuration as one line of JSON, its identity in databases and caches."""
        return json.dumps(self._values, separators=(",", ":"))

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value}' for name, value in self._values.items())})"


_VALUE = Kind(lambda value: isinstance(value, (int, str)), "a whole number or a name")

When = Mapping[str, Sequence[Value]]
"""Condition of a gene: it is active if each named gene has one of the listed values."""

Form = Literal["macro", "template", "constexpr"]
"""Form in which a gene's value reaches the source.

A *macro* is defined by `-D`. A *template* argument replaces `{NAME}` in the entry point of a launch, and is no macro. A
*constexpr* is a constant in `namespace genes` of the generated header `evokern_genes.h`, and no macro has its name."""

CAUSES = ("memory", "shared-memory", "latency", "tensor", "launch", "arithmetic")
"""Possible bottlenecks of a kernel; `profile` prints them as `memory-bound` and so on."""
Relieves = Mapping[str, int] | Sequence[str]
"""Bottlenecks that a gene can relieve: a mapping from bottleneck to weight, or a sequence if all weights are 1."""
MOST_VALUES = 1 << 15
"""Maximum number of values of a gene; samplers store the index of a value in 16 bits."""


@dataclass(frozen=True)
class Gene:
    """One choice of a candidate. Create it with `Parameter` or `Mutation`."""

    name: str
    """Name of the gene, and of the macro or constant in the CUDA source."""
    values: tuple[Value, ...]
    """Possible values, in declared order."""
    default: Value
    """Value in the default candidate, and while the gene is inactive."""
    doc: str = ""
    """Effect of the gene on the chip, in one line."""
    when: When = field(default_factory=dict)
    """Condition under which the gene is active; empty means always."""
    min_compute_capability: Mapping[Value, tuple[int, int]] = field(default_factory=dict)
    """Minimum compute capability of a value, for example ``{"wgmma": (9, 0)}``."""
    layer: Literal["parameter", "mutation"] = "parameter"
    """Inner layer (a number) or outer layer (a code choice)."""
    relieves: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Entries of `CAUSES` that another value may relieve, with weights; `profile` names the largest weights first."""
    for_study: tuple[Value, ...] = field(default=(), compare=False)
    """Values that are slow on purpose and serve as a comparison; `evo` tries them with low priority."""
    for_chips: Mapping[Value, tuple[str, ...]] = field(default_factory=dict, compare=False)
    """Value → chips (names in `CHIPS`) for which it is designed; on other chips, `evo` tries it with low priority."""
    less_precise: tuple[Value, ...] = field(default=(), compare=False)
    """Values that round more than the default and may miss the tolerance; `evo` tries them with low priority."""
    as_: Form = field(default="macro", compare=False)
    """Form in which the value reaches the source: a macro, a template argument, or a constant in `namespace genes`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(int(v) if isinstance(v, bool) else v for v in self.values))
        if isinstance(self.default, bool):
            object.__setattr__(self, "default", int(self.default))
        if not self.name.isidentifier():
            raise SpaceError(f"gene name {self.name!r} is not a C identifier; rename it, because it becomes a macro")
        if self.as_ not in get_args(Form):
            raise SpaceError(f"gene {self.name}: as_={self.as_!r}: {suggestion(str(self.as_), get_args(Form))}")
        if not self.values:
            raise SpaceError(f"gene {self.name} has no values; list at least one")
        if len(self.values) > MOST_VALUES:
            raise SpaceError(
                f"gene {self.name} has {len(self.values):,} values; list at most {MOST_VALUES:,}, for example only "
                "multiples of 16"
            )
        if len(set(self.values)) != len(self.values):
            twice = next(value for value, count in Counter(self.values).items() if count > 1)
            raise SpaceError(f"gene {self.name} lists a value twice: {twice!r}")
        if self.default not in self.values:
            raise SpaceError(
                f"gene {self.name}: default {self.default!r} is not among its values: "
                f"{suggestion(str(self.default), map(str, self.values))}"
            )
        for value, capability in self.min_compute_capability.items():
            if value not in self.values:
                raise SpaceError(f"gene {self.name}: min_compute_capability names the unknown value {value!r}")
            if not (isinstance(capability, tuple) and len(capability) == 2 and all(map(is_whole, capability))):
                raise SpaceError(
                    f"gene {self.name}: min_compute_capability of {value!r} is {capability!r}; "
                    "use a pair such as (9, 0)"
                )
        for value in (*self.for_study, *self.for_chips, *self.less_precise):
            if value not in self.values:
                raise SpaceError(
                    f"gene {self.name} marks a value that it does not have, {value!r}: "
                    f"{suggestion(str(value), map(str, self.values))}"
                )
        for value, chips in self.for_chips.items():
            for chip in chips:
                if chip not in CHIPS:
                    raise SpaceError(
                        f"gene {self.name}: unknown chip {chip!r} for value {value!r}: {suggestion(chip, CHIPS)}"
                    )
        for cause, weight in self.relieves.items():
            if cause not in CAUSES:
                raise SpaceError(f"gene {self.name}: unknown cause {cause!r} in relieves: {suggestion(cause, CAUSES)}")
            if not isinstance(weight, int) or weight < 1:
                raise SpaceError(f"gene {self.name}: weight {weight!r} of {cause} in relieves; use a positive integer")

    def low_priority_on(self, chip: str) -> tuple[Value, ...]:
        """Return the values with low priority on a chip: comparison values, less precise values, other chips' values.

        Args:
            chip: name of the chip; a name that is not in `CHIPS` matches none of them.
        """
        marked = tuple(
            value
            for value in self.values
            if value in (*self.for_study, *self.less_precise)
            or (value in self.for_chips and chip not in self.for_chips[value])
        )
        return marked if len(marked) < len(self.values) else ()  # if all values are marked, none is worse than another

    def beyond(self, value: Value) -> int | None:
        """Return the next number beyond a parameter's range if `value` is its smallest or largest value.

        Args:
            value: the current value.

        Returns:
            The value extended by the last factor if that is a whole number, otherwise by the last difference. None if
            `value` is not at an end, is a name, or the next number would be below 1.
        """
        numbers = sorted(value for value in self.values if isinstance(value, int))
        if (
            self.layer != "parameter"
            or len(numbers) < max(2, len(self.values))
            or value not in (numbers[0], numbers[-1])
        ):
            return None
        near, end = (numbers[-2], numbers[-1]) if value == numbers[-1] else (numbers[1], numbers[0])
        small, large = min(near, end), max(near, end)
        if small > 0 and large % small == 0:
            factor = large // small
            return end * factor if end == large else end // factor if end % factor == 0 else None
        return 2 * end - near if 2 * end - near >= 1 else None

    def parse(self, text: str) -> Value:
        """Return the value named by `text`, ignoring case.

        Raises:
            SpaceError: the gene has no such value.
        """
        wanted = {"true": "1", "false": "0"}.get(text.strip().lower(), text.strip().lower())
        for value in self.values:
            if str(value).lower() == wanted:
                return value
        raise SpaceError(f"gene {self.name} cannot be {text!r}: {suggestion(text, map(str, self.values))}")


def Parameter(  # noqa: N802 (reads as a type where kernels declare their genes)
    name: str,
    values: Sequence[int],
    default: int | None = None,
    doc: str = "",
    *,
    when: When | None = None,
    min_compute_capability: Mapping[Value, tuple[int, int]] | None = None,
    relieves: Relieves = (),
    for_study: Sequence[int] = (),
    for_chips: Mapping[int, Sequence[str]] | None = None,
    less_precise: Sequence[int] = (),
    as_: Form = "macro",
) -> Gene:
    """Declare a gene with numeric values (inner layer); the default is the first value unless `default` is set.

    The fields of `Gene` describe the arguments; `as_` is described at `Form`.
    """
    made = _gene(name, values, default, doc, when, min_compute_capability, "parameter", relieves)
    return replace(_marked(made, for_study, for_chips or {}, less_precise), as_=as_)


def Mutation(  # noqa: N802
    name: str,
    values: Sequence[str | int],
    default: str | int | None = None,
    doc: str = "",
    *,
    when: When | None = None,
    min_compute_capability: Mapping[Value, tuple[int, int]] | None = None,
    relieves: Relieves = (),
    for_study: Sequence[str | int] = (),
    for_chips: Mapping[str, Sequence[str]] | Mapping[int, Sequence[str]] | None = None,
    less_precise: Sequence[str | int] = (),
    as_: Form = "macro",
) -> Gene:
    """Declare a gene with code choices (outer layer); the default is the first value unless `default` is set.

    The fields of `Gene` describe the arguments; `as_` is described at `Form`. With `as_="template"`, the entry point
    contains the name itself, for example a type.
    """
    made = _gene(name, values, default, doc, when, min_compute_capability, "mutation", relieves)
    return replace(_marked(made, for_study, for_chips or {}, less_precise), as_=as_)


def _gene(
    name: str,
    values: Sequence[Value],
    default: Value | None,
    doc: str,
    when: When | None,
    min_compute_capability: Mapping[Value, tuple[int, int]] | None,
    layer: Literal["parameter", "mutation"],
    relieves: Relieves,
) -> Gene:
    owner = f"gene {name}"
    values = members(owner, "values", values, _VALUE, SpaceError)
    if not values:
        raise SpaceError(f"gene {name} has no values; list at least one")
    for what, given in (("when", when), ("min_compute_capability", min_compute_capability)):
        if given is not None and not isinstance(given, Mapping):
            raise SpaceError(f"{owner}: {what} is {given!r}; use a mapping")
    for other, wanted in (when or {}).items():
        members(owner, f"when[{other!r}]", wanted, _VALUE, SpaceError)
    if isinstance(relieves, str):
        raise SpaceError(f'gene {name}: relieves={relieves!r} is a string; write relieves=("{relieves}",)')
    if not isinstance(relieves, (Mapping, Sequence)):
        raise SpaceError(f"{owner}: relieves is {relieves!r}; use a tuple of {', '.join(CAUSES)}")
    chosen = values[0] if default is None else default
    least = dict(min_compute_capability or {})
    weights = dict(relieves) if isinstance(relieves, Mapping) else dict.fromkeys(relieves, 1)
    return Gene(name, tuple(values), chosen, doc, dict(when or {}), least, layer, weights)


def _marked(
    gene: Gene, for_study: Sequence[Value], for_chips: Mapping[Any, Sequence[str]], less_precise: Sequence[Value]
) -> Gene:
    """Return a gene with marked values."""
    for mark, values in (("for_study", for_study), ("less_precise", less_precise)):
        if isinstance(values, str):
            raise SpaceError(f'gene {gene.name}: {mark}={values!r} is a string; write {mark}=("{values}",)')
        members(f"gene {gene.name}", mark, values, _VALUE, SpaceError)
        if gene.default in values:
            raise SpaceError(f"gene {gene.name}: {mark} marks its default {gene.default!r}; choose another default")
    if not isinstance(for_chips, Mapping):
        raise SpaceError(f"gene {gene.name}: for_chips is {for_chips!r}; use a mapping from values to chips")
    for value, names in for_chips.items():
        if isinstance(names, str):
            raise SpaceError(f'gene {gene.name}: for_chips[{value!r}] is a string; write ("{names}",)')
    chips = {
        value: members(f"gene {gene.name}", f"for_chips[{value!r}]", names, TEXT, SpaceError)
        for value, names in for_chips.items()
    }
    return replace(gene, for_study=tuple(for_study), for_chips=chips, less_precise=tuple(less_precise))


_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
"""A gene's place in an entry point. C++ braces with spaces, as in `Shape{ N }`, are not placeholders."""


def placeholders(entry: str) -> list[str]:
    """Return the names of the genes in an entry point, such as BLOCK_M in `kernel<{BLOCK_M}, 64>`."""
    return _PLACEHOLDER.findall(entry)


def filled(entry: str, values: Mapping[str, Value]) -> str:
    """Return an entry point with each `{GENE}` replaced by the gene's value.

    Raises:
        SpaceError: there is no such gene.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            raise SpaceError(
                f"entry point {entry!r}: there is no gene {name!r}: {suggestion(name, values)}; for C++ braces, write "
                f"{{ {name} }}"
            )
        return str(values[name])

    return _PLACEHOLDER.sub(value, entry)
