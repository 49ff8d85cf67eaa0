"""Genes and configurations: what a candidate may choose, and what one has chosen.

A *gene* is one choice: a `Parameter` (a number, the inner layer) or a `Mutation` (a named code choice, the outer
layer). A *configuration* gives every gene a value.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from evokern.errors import EvokernError, SpaceError, nearest
from evokern.hardware.profiles import CHIPS

Value = int | str
"""A gene's value: a whole number or a named choice. Booleans are the numbers 0 and 1."""


class NamedValues(Mapping[str, Value]):
    """An immutable mapping whose entries also read as attributes."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)

    @abstractmethod
    def _unknown(self, name: str) -> EvokernError:
        """Return what to raise where there is no such entry."""

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __getattr__(self, name: str) -> int:
        # Declared as int, the commonest type: constraints and launches do arithmetic on genes and shapes.
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
        """Return names with their values, faster than `Mapping` does: reports ask it of thousands of trials."""
        return self._values.items()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or what is given where there is none; faster than `Mapping` does, likewise."""
        return self._values.get(name, default)

    def __getstate__(self) -> dict[str, Value]:
        return self._values

    def __setstate__(self, state: dict[str, Value]) -> None:
        self._values = state


class Config(NamedValues):
    """One choice for every gene: an immutable, hashable mapping whose genes also read as attributes (`c.BLOCK_M`)."""

    __slots__ = ("_hash",)

    def __init__(self, values: Mapping[str, Value]) -> None:
        super().__init__(values)
        self._hash = hash(tuple(self._values.items()))

    def _unknown(self, name: str) -> SpaceError:
        return SpaceError(f"there is no gene {name!r}: {nearest(name, self._values)}")

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
        """Return a copy with some genes changed (not made canonical: see `Space.canonical`)."""
        return Config({**self._values, **changes})

    @property
    def key(self) -> str:
        """The configuration as one line of JSON: its identity in databases and caches."""
        return json.dumps(self._values, separators=(",", ":"))

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value}' for name, value in self._values.items())})"


When = Mapping[str, Sequence[Value]]
"""A gene's condition: it is active when each gene named here has one of the values listed."""

CAUSES = ("memory", "shared-memory", "latency", "tensor", "launch", "arithmetic")
"""What may bound a kernel; `profile` calls it `memory-bound` and so on."""
Relieves = Mapping[str, int] | Sequence[str]
"""Causes that a gene can relieve; as a mapping with weights, of which a cause without one has 1."""


@dataclass(frozen=True)
class Gene:
    """One choice that a candidate makes. Use `Parameter` or `Mutation`."""

    name: str
    """Name of the macro that carries the value into the CUDA source."""
    values: tuple[Value, ...]
    """Everything the gene may be, in declared order."""
    default: Value
    """Value of the default candidate, and of an inactive gene."""
    doc: str = ""
    """What the gene changes on the chip, in one line."""
    when: When = field(default_factory=dict)
    """Genes and values that make this one active; empty means always."""
    min_compute_capability: Mapping[Value, tuple[int, int]] = field(default_factory=dict)
    """Least compute capability of a value, for example ``{"wgmma": (9, 0)}``."""
    layer: Literal["parameter", "mutation"] = "parameter"
    """Inner layer (a number) or outer layer (a code choice)."""
    relieves: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Which of `CAUSES` another value may relieve, and how directly; `profile` names the largest numbers first."""
    for_study: tuple[Value, ...] = field(default=(), compare=False)
    """Values that are slow on purpose, there to show what the others bring: `evo` tries them late."""
    for_chips: Mapping[Value, tuple[str, ...]] = field(default_factory=dict, compare=False)
    """Value → chips that it is meant for, by their names in `CHIPS`; on others it runs too, and `evo` tries it late."""
    less_precise: tuple[Value, ...] = field(default=(), compare=False)
    """Values that round more than the default, so that answers may miss the tolerance: `evo` tries them late."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(int(v) if isinstance(v, bool) else v for v in self.values))
        if isinstance(self.default, bool):
            object.__setattr__(self, "default", int(self.default))
        if not self.name.isidentifier():
            raise SpaceError(f"gene name {self.name!r} is no C identifier; it becomes a macro, so rename it")
        if not self.values:
            raise SpaceError(f"gene {self.name} has no values; list at least one")
        if len(set(self.values)) != len(self.values):
            raise SpaceError(f"gene {self.name} lists a value twice: {self.values}")
        if self.default not in self.values:
            raise SpaceError(f"gene {self.name}: default {self.default!r} is not among its values {self.values}")
        for value in self.min_compute_capability:
            if value not in self.values:
                raise SpaceError(f"gene {self.name}: compute capability given for unknown value {value!r}")
        for value in (*self.for_study, *self.for_chips, *self.less_precise):
            if value not in self.values:
                raise SpaceError(f"gene {self.name} marks {value!r}: {nearest(str(value), map(str, self.values))}")
        for value, chips in self.for_chips.items():
            for chip in chips:
                if chip not in CHIPS:
                    raise SpaceError(f"gene {self.name}: {value!r} is for chip {chip!r}: {nearest(chip, CHIPS)}")
        for cause, weight in self.relieves.items():
            if cause not in CAUSES:
                raise SpaceError(f"gene {self.name} relieves {cause!r}: {nearest(cause, CAUSES)}")
            if not isinstance(weight, int) or weight < 1:
                raise SpaceError(f"gene {self.name} relieves {cause} with weight {weight!r}; give 1, 2, 3 …")

    def late_on(self, chip: str) -> tuple[Value, ...]:
        """Return the values that are tried late on a chip: those for study, less precise ones, those for other chips.

        Args:
            chip: its name in `CHIPS`; one that is not listed there is another chip than any of them.
        """
        marked = tuple(
            value
            for value in self.values
            if value in (*self.for_study, *self.less_precise)
            or (value in self.for_chips and chip not in self.for_chips[value])
        )
        return marked if len(marked) < len(self.values) else ()  # where all are, none is worse than another

    def beyond(self, value: Value) -> int | None:
        """Return the number that would come next where a parameter's numbers went on past one of their ends.

        Args:
            value: the one it stands at.

        Returns:
            The last step once more: the same factor where it is whole, else the same difference. None for a value
            within, a name, or where nothing from 1 on comes next.
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
        """Return the value that `text` names (case does not matter).

        Raises:
            SpaceError: no value of this gene reads so.
        """
        wanted = {"true": "1", "false": "0"}.get(text.strip().lower(), text.strip().lower())
        for value in self.values:
            if str(value).lower() == wanted:
                return value
        raise SpaceError(f"gene {self.name} cannot be {text!r}: {nearest(text, map(str, self.values))}")


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
) -> Gene:
    """Declare a number of the inner layer; the default is the first value unless named."""
    made = _gene(name, values, default, doc, when, min_compute_capability, "parameter", relieves)
    return _marked(made, for_study, for_chips or {}, less_precise)


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
) -> Gene:
    """Declare a code choice of the outer layer; the default is the first value unless named."""
    made = _gene(name, values, default, doc, when, min_compute_capability, "mutation", relieves)
    return _marked(made, for_study, for_chips or {}, less_precise)


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
    if not values:
        raise SpaceError(f"gene {name} has no values; list at least one")
    if isinstance(relieves, str):
        raise SpaceError(f'gene {name}: relieves={relieves!r} is one word; write relieves=("{relieves}",)')
    chosen = values[0] if default is None else default
    least = dict(min_compute_capability or {})
    weights = dict(relieves) if isinstance(relieves, Mapping) else dict.fromkeys(relieves, 1)
    return Gene(name, tuple(values), chosen, doc, dict(when or {}), least, layer, weights)


def _marked(
    gene: Gene, for_study: Sequence[Value], for_chips: Mapping[Any, Sequence[str]], less_precise: Sequence[Value]
) -> Gene:
    """Return a gene with its values' marks."""
    for mark, values in (("for_study", for_study), ("less_precise", less_precise)):
        if isinstance(values, str):
            raise SpaceError(f'gene {gene.name}: {mark}={values!r} is one word; write {mark}=("{values}",)')
        if gene.default in values:
            raise SpaceError(f"gene {gene.name}: {mark} marks its default {gene.default!r}; name another default")
    for value, names in for_chips.items():
        if isinstance(names, str):
            raise SpaceError(f'gene {gene.name}: for_chips[{value!r}] is one word; write ("{names}",)')
    chips = {value: tuple(names) for value, names in for_chips.items()}
    return replace(gene, for_study=tuple(for_study), for_chips=chips, less_precise=tuple(less_precise))
