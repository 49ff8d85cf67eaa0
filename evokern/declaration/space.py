"""Genes, constraints and the set of valid candidates.

A *gene* is one choice: a `Parameter` (a number, the inner layer) or a `Mutation` (a named code choice, the outer
layer). A *configuration* gives every gene a value. A gene that is inactive (its `when` does not hold) is pinned to its
default, so that two configurations that differ only where nothing can change are the same configuration.

`Space` answers what samplers ask: is this configuration valid, draw a valid one, what are its valid neighbours. The
constraints that depend on a problem and a chip are bound by `evokern.declaration.feasibility`, which passes one
predicate in.
"""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, islice
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


Predicate = Callable[[Config], bool]
_WALKED = 100_000
"""Configurations that are walked for a feasible one where draws found none: some seconds."""


def _steps(gene: Gene, value: Value) -> int:
    """Return how far a value stands from the default in the gene's list."""
    return abs(gene.values.index(value) - gene.values.index(gene.default))


@dataclass(frozen=True)
class Space:
    """The genes of a kernel, and which combinations of their values are valid."""

    genes: tuple[Gene, ...]
    """Every gene; a gene's `when` may only name genes that stand before it."""
    feasible: Predicate = field(default=lambda config: True, compare=False)
    """Whether a canonical configuration may run at all; `evokern.declaration.feasibility` binds problems and chip."""
    table: tuple[Config, ...] | None = field(default=None, compare=False)
    """The whole list of valid configurations where it is known (a recorded space); then `feasible` is membership."""
    late: Mapping[str, tuple[Value, ...]] = field(default_factory=dict, compare=False)
    """Gene → values that are tried late, by their marks; `feasible_space` binds them to a chip."""
    starting_points: tuple[Mapping[str, Value], ...] = field(default=(), compare=False)
    """Candidates that the kernel's author knows to be good somewhere, as what they change of the default."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "genes", tuple(self.genes))
        seen: dict[str, Gene] = {}
        for gene in self.genes:
            if gene.name in seen:
                raise SpaceError(f"gene {gene.name} is declared twice")
            for other, values in gene.when.items():
                if other not in seen:
                    raise SpaceError(f"gene {gene.name} depends on {other!r}, which does not stand before it")
                for value in values:
                    if value not in seen[other].values:
                        raise SpaceError(f"gene {gene.name} depends on {other}={value!r}, which {other} cannot be")
            seen[gene.name] = gene
        object.__setattr__(self, "_by_name", seen)
        if self.table is not None:
            object.__setattr__(self, "_members", frozenset(self.table))
            object.__setattr__(self, "feasible", self._members.__contains__)  # type: ignore[attr-defined]

    def gene(self, name: str) -> Gene:
        """Return a gene by name (case does not matter).

        Raises:
            SpaceError: there is no such gene.
        """
        by_name: dict[str, Gene] = self._by_name  # type: ignore[attr-defined]
        if name in by_name:
            return by_name[name]
        for gene in self.genes:
            if gene.name.lower() == name.lower():
                return gene
        raise SpaceError(f"there is no gene {name!r}: {nearest(name, by_name)}")

    @property
    def size(self) -> int:
        """Number of combinations before any constraint."""
        total = 1
        for gene in self.genes:
            total *= len(gene.values)
        return total

    @property
    def mutations(self) -> tuple[Gene, ...]:
        """The outer layer."""
        return tuple(gene for gene in self.genes if gene.layer == "mutation")

    @property
    def parameters(self) -> tuple[Gene, ...]:
        """The inner layer."""
        return tuple(gene for gene in self.genes if gene.layer == "parameter")

    def default(self) -> Config:
        """Return the default candidate's configuration."""
        return Config({gene.name: gene.default for gene in self.genes})

    def starting_configs(self) -> list[Config]:
        """Return the starting points as configurations, in their order, infeasible ones too."""
        return [self.canonical({**self.default(), **changes}) for changes in self.starting_points]

    def active(self, gene: Gene, values: Mapping[str, Value]) -> bool:
        """Tell whether a gene matters, given the values of the genes before it."""
        return all(values[other] in allowed for other, allowed in gene.when.items())

    def canonical(self, values: Mapping[str, Value]) -> Config:
        """Return the configuration in declared order with every inactive gene pinned to its default.

        Raises:
            SpaceError: a gene is missing, unknown, or has a value that is not its own.
        """
        chosen: dict[str, Value] = {}
        for gene in self.genes:
            if gene.name not in values:
                raise SpaceError(f"gene {gene.name} has no value; give one of {gene.values}")
            value = values[gene.name]
            if value not in gene.values:
                raise SpaceError(f"gene {gene.name} cannot be {value!r}: {nearest(str(value), map(str, gene.values))}")
            chosen[gene.name] = value if self.active(gene, chosen) else gene.default
        if len(values) != len(self.genes):
            extra = next(name for name in values if name not in chosen)
            raise SpaceError(f"there is no gene {extra!r}: {nearest(extra, chosen)}")
        return Config(chosen)

    def with_changes(self, base: Config, changes: Mapping[str, str | Value]) -> Config:
        """Return `base` with genes changed by name, as `--set GENE=VALUE` does."""
        values: dict[str, Value] = dict(base)
        for name, value in changes.items():
            gene = self.gene(name)
            values[gene.name] = gene.parse(str(value))
        return self.canonical(values)

    def grid(self) -> Iterator[Config]:
        """Yield every distinct configuration, infeasible ones too, in declared order (the last gene runs fastest)."""
        if self.table is not None:
            yield from self.table
            return
        yield from self._extend({}, 0)

    def _extend(self, chosen: dict[str, Value], depth: int) -> Iterator[Config]:
        if depth == len(self.genes):
            yield Config(chosen)
            return
        gene = self.genes[depth]
        values = gene.values if self.active(gene, chosen) else (gene.default,)
        for value in values:
            yield from self._extend({**chosen, gene.name: value}, depth + 1)

    def draw(self, rng: random.Random) -> Config:
        """Draw a configuration, uniform over the combinations; feasible only where a table is known."""
        if self.table is not None:
            return self.table[rng.randrange(len(self.table))]
        chosen: dict[str, Value] = {}
        for gene in self.genes:
            value = gene.values[rng.randrange(len(gene.values))]
            chosen[gene.name] = value if self.active(gene, chosen) else gene.default
        return Config(chosen)

    def sample(self, rng: random.Random, attempts: int = 20_000) -> Config | None:
        """Draw a feasible configuration by rejection.

        Args:
            rng: source of randomness.
            attempts: how many draws before giving up.

        Returns:
            A feasible configuration, or None when none was found.
        """
        for _ in range(attempts):
            config = self.draw(rng)
            if self.feasible(config):
                return config
        return None

    def first_feasible(self) -> Config | None:
        """Return where a search begins: the default candidate, or where it is infeasible one near it that is not.

        One gene is changed, then two, values next to the default first; then the space is drawn from and walked. The
        answer depends on the space alone.

        Returns:
            A feasible configuration, or None when none was found.
        """
        known: list[Config | None] = self.__dict__.setdefault("_first_feasible", [])
        if not known:
            known.append(next((config for config in self._near_default() if self.feasible(config)), None))
            if known[0] is None:
                known[0] = self.sample(random.Random(0)) or next(
                    (config for config in islice(self.grid(), _WALKED) if self.feasible(config)), None
                )
        return known[0]

    def _near_default(self) -> Iterator[Config]:
        """Yield the default candidate, then what differs from it in one gene, then in two."""
        base = self.default()
        yield base
        moves = [
            {gene.name: value}
            for gene in self.genes
            for value in sorted(gene.values, key=partial(_steps, gene))
            if value != gene.default
        ]
        for change in moves:
            yield self.canonical({**base, **change})
        for one, two in combinations(moves, 2):
            if one.keys() != two.keys():
                yield self.canonical({**base, **one, **two})

    def neighbours(self, config: Config) -> Iterator[Config]:
        """Yield the feasible configurations that differ from `config` in one active gene (inactive ones follow)."""
        for gene in self.genes:
            if not self.active(gene, config):
                continue
            for value in gene.values:
                if value == config[gene.name]:
                    continue
                other = self.canonical({**config, gene.name: value})
                if other != config and self.feasible(other):
                    yield other
