"""The set of valid candidates.

A gene that is inactive (its `when` does not hold) is pinned to its default, so that two configurations that differ only
where nothing can change are the same configuration.

`Space` answers what samplers ask: is this configuration valid, draw a valid one, what are its valid neighbours. The
constraints that depend on a problem and a chip are bound by `evokern.declaration.feasibility`, which passes one
predicate in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, islice

from evokern.declaration.genes import Config, Gene, Value
from evokern.errors import SpaceError, nearest

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

    def without_effect(self, config: Config, changes: Mapping[str, str | Value]) -> tuple[str, ...]:
        """Return a sentence for each change that a configuration does not have, since its gene is inactive there.

        Args:
            config: what `with_changes` made of the changes.
            changes: gene → value, as they were given to it.

        Returns:
            For example ``LANES=row does not count with PATH=tiled; it does with PATH=skinny``.
        """
        told = []
        for name, value in changes.items():
            gene = self.gene(name)
            if config[gene.name] != (given := gene.parse(str(value))):
                needs = self._needs(gene, config)
                now = " and ".join(f"{other}={config[other]}" for other in needs)
                wanted = " and ".join(f"{other}={'|'.join(map(str, allowed))}" for other, allowed in needs.items())
                told.append(f"{gene.name}={given} does not count with {now}; it does with {wanted}")
        return tuple(told)

    def _needs(self, gene: Gene, config: Config) -> dict[str, Sequence[Value]]:
        """Return what a configuration lacks for a gene to be active: other gene → values that it may have."""
        found: dict[str, Sequence[Value]] = {}
        for other, allowed in gene.when.items():
            if config[other] not in allowed:
                found |= {**self._needs(self.gene(other), config), other: allowed}
        return found

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
