"""Search space: the set of valid candidates, and the conditions that are checked before a candidate is compiled.

An inactive gene (its `when` does not hold) is fixed to its default. Configurations that differ only in inactive genes
are therefore equal.

Samplers use `Space` to test and draw valid configurations and to list valid neighbours. Constraints that depend on a
problem and a chip are bound by `evokern.declaration.feasibility`, which passes a predicate.
"""

from __future__ import annotations

import inspect
import random
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, islice

from evokern.declaration.field_types import FUNCTION, TEXT, WHOLE, members, quoted, require
from evokern.declaration.genes import Config, Gene, Value
from evokern.declaration.problem import Problem
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError, SpaceError, suggestion

Predicate = Callable[[Config], bool]
_WALKED = 100_000
"""Maximum number of configurations to enumerate if random draws find no feasible one; takes several seconds."""


def _steps(gene: Gene, value: Value) -> int:
    """Return the distance of a value from the default in the gene's list."""
    return abs(gene.values.index(value) - gene.values.index(gene.default))


@dataclass(frozen=True)
class Space:
    """Genes of a kernel, and the valid combinations of their values."""

    genes: tuple[Gene, ...]
    """All genes; a gene's `when` may only name genes before it."""
    feasible: Predicate = field(default=lambda config: True, compare=False)
    """Predicate for feasible canonical configurations; `evokern.declaration.feasibility` binds problems and chip."""
    table: tuple[Config, ...] | None = field(default=None, compare=False)
    """List of all valid configurations, if known (a recorded space); `feasible` then tests membership."""
    low_priority: Mapping[str, tuple[Value, ...]] = field(default_factory=dict, compare=False)
    """Gene → low-priority values, bound to a chip by `feasible_space`."""
    starting_points: tuple[Mapping[str, Value], ...] = field(default=(), compare=False)
    """Good candidates known to the kernel's author, each given as changes of the default."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "genes", tuple(self.genes))
        seen: dict[str, Gene] = {}
        for gene in self.genes:
            if gene.name in seen:
                raise SpaceError(f"gene {gene.name} is declared twice")
            for other, values in gene.when.items():
                if other not in seen:
                    raise SpaceError(f"gene {gene.name} depends on {other!r}, which is not declared before it")
                for value in values:
                    if value not in seen[other].values:
                        raise SpaceError(f"gene {gene.name} depends on {other}={value!r}, which {other} does not have")
            seen[gene.name] = gene
        object.__setattr__(self, "_by_name", seen)
        if self.table is not None:
            object.__setattr__(self, "_members", frozenset(self.table))
            object.__setattr__(self, "feasible", self._members.__contains__)  # type: ignore[attr-defined]

    def gene(self, name: str) -> Gene:
        """Return a gene by name, ignoring case.

        Raises:
            SpaceError: there is no such gene.
        """
        by_name: dict[str, Gene] = self._by_name  # type: ignore[attr-defined]
        if name in by_name:
            return by_name[name]
        for gene in self.genes:
            if gene.name.lower() == name.lower():
                return gene
        raise SpaceError(f"there is no gene {name!r}: {suggestion(name, by_name)}")

    @property
    def size(self) -> int:
        """Number of combinations before any constraint."""
        total = 1
        for gene in self.genes:
            total *= len(gene.values)
        return total

    @property
    def mutations(self) -> tuple[Gene, ...]:
        """Genes of the outer layer."""
        return tuple(gene for gene in self.genes if gene.layer == "mutation")

    @property
    def parameters(self) -> tuple[Gene, ...]:
        """Genes of the inner layer."""
        return tuple(gene for gene in self.genes if gene.layer == "parameter")

    def default(self) -> Config:
        """Return the configuration of the default candidate."""
        return Config({gene.name: gene.default for gene in self.genes})

    def starting_configs(self) -> list[Config]:
        """Return the starting points as configurations, in order, including infeasible ones."""
        return [self.canonical({**self.default(), **changes}) for changes in self.starting_points]

    def active(self, gene: Gene, values: Mapping[str, Value]) -> bool:
        """Return whether a gene is active, given the values of the genes before it."""
        return all(values[other] in allowed for other, allowed in gene.when.items())

    def canonical(self, values: Mapping[str, Value]) -> Config:
        """Return the configuration in declared order, with inactive genes set to their defaults.

        Raises:
            SpaceError: a gene is missing or unknown, or has an invalid value.
        """
        chosen: dict[str, Value] = {}
        for gene in self.genes:
            if gene.name not in values:
                raise SpaceError(f"gene {gene.name} has no value; use one of {gene.values}")
            value = values[gene.name]
            if value not in gene.values:
                raise SpaceError(
                    f"gene {gene.name} cannot be {value!r}: {suggestion(str(value), map(str, gene.values))}"
                )
            chosen[gene.name] = value if self.active(gene, chosen) else gene.default
        if len(values) != len(self.genes):
            extra = next(name for name in values if name not in chosen)
            raise SpaceError(f"there is no gene {extra!r}: {suggestion(extra, chosen)}")
        return Config(chosen)

    def with_changes(self, base: Config, changes: Mapping[str, str | Value]) -> Config:
        """Return a configuration with the named genes changed, as with `--set GENE=VALUE`."""
        values: dict[str, Value] = dict(base)
        for name, value in changes.items():
            gene = self.gene(name)
            values[gene.name] = gene.parse(str(value))
        return self.canonical(values)

    def without_effect(self, config: Config, changes: Mapping[str, str | Value]) -> tuple[str, ...]:
        """Return a sentence for each requested change that has no effect because its gene is inactive.

        Args:
            config: the configuration returned by `with_changes`.
            changes: gene → value, the changes passed to `with_changes`.

        Returns:
            For example ``LANES=row has no effect with PATH=tiled; it needs PATH=skinny``.
        """
        notes = []
        for name, value in changes.items():
            gene = self.gene(name)
            if config[gene.name] != (given := gene.parse(str(value))):
                needs = self._needs(gene, config)
                now = " and ".join(f"{other}={config[other]}" for other in needs)
                wanted = " and ".join(f"{other}={'|'.join(map(str, allowed))}" for other, allowed in needs.items())
                notes.append(f"{gene.name}={given} has no effect with {now}; it needs {wanted}")
        return tuple(notes)

    def _needs(self, gene: Gene, config: Config) -> dict[str, Sequence[Value]]:
        """Return the unmet conditions of an inactive gene: other gene → its allowed values."""
        found: dict[str, Sequence[Value]] = {}
        for other, allowed in gene.when.items():
            if config[other] not in allowed:
                found |= {**self._needs(self.gene(other), config), other: allowed}
        return found

    def grid(self) -> Iterator[Config]:
        """Yield all distinct configurations, including infeasible ones; the last gene varies fastest."""
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
        """Draw a configuration uniformly from all combinations; without a table, the result may be infeasible."""
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
            attempts: maximum number of draws.

        Returns:
            A feasible configuration, or None if none was found.
        """
        for _ in range(attempts):
            config = self.draw(rng)
            if self.feasible(config):
                return config
        return None

    def first_feasible(self) -> Config | None:
        """Return the first candidate of a search: the default candidate, or a feasible candidate near the default.

        If the default is infeasible, try changes of one gene, then of two genes, values next to the default first. Then
        try random draws, then enumerate. The result depends only on the space.

        Returns:
            A feasible configuration, or None if none was found.
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
        """Yield the default candidate, then configurations that differ from it in one gene, then in two genes."""
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
        """Yield the feasible configurations that differ from `config` in one active gene and its dependents."""
        for gene in self.genes:
            if not self.active(gene, config):
                continue
            for value in gene.values:
                if value == config[gene.name]:
                    continue
                other = self.canonical({**config, gene.name: value})
                if other != config and self.feasible(other):
                    yield other


LEFT_OVER = "left over"
"""End of the unit of a remainder, which must be 0."""


@dataclass(frozen=True)
class AtMost:
    """Amounts that a constraint compares: the constraint holds if `needed` is at most `available`."""

    needed: float
    """Amount that the candidate needs."""
    available: float
    """Available amount."""
    unit: str = ""
    """Unit of both amounts, for messages."""

    @property
    def holds(self) -> bool:
        """Whether the available amount suffices."""
        return self.needed <= self.available


def divides(divisor: int, number: int, unit: str = "") -> AtMost:
    """Return amounts for the condition that `divisor` divides `number`; `needed` is the remainder."""
    return AtMost(number % divisor if divisor else 1, 0, f"{unit} {LEFT_OVER}".strip())


@dataclass(frozen=True)
class Constraint:
    """A named condition that a candidate must meet before it is compiled."""

    name: str
    """Name; use it also in the corresponding `static_assert` of the source."""
    holds: Callable[..., bool | AtMost]
    """Function of (config), (config, problem) or (config, problem, chip)."""
    reason: str
    """Reason why a candidate that violates the constraint cannot work, as a sentence."""
    wasteful: bool = False
    """Whether violating candidates are correct but too slow to try; they may run on small problems in a simulated
    gate."""

    def __post_init__(self) -> None:
        require("a constraint", self, {"name": TEXT})
        require(f"constraint {self.name}", self, {"holds": FUNCTION, "reason": TEXT})
        arity = len(inspect.signature(self.holds).parameters)
        if not 1 <= arity <= 3:
            raise KernelError(f"constraint {self.name} takes {arity} arguments; use (config[, problem[, chip]])")
        object.__setattr__(self, "_arity", arity)

    @property
    def arity(self) -> int:
        """Number of parameters, out of (config, problem, chip), that the function takes."""
        return self._arity  # type: ignore[attr-defined,no-any-return]

    def evaluate(self, config: Config, problem: Problem, chip: object) -> AtMost:
        """Return the needed and available amounts; for a boolean, 0 of 0 if the constraint holds, else 1 of 0.

        Raises:
            KernelError: the constraint's function raised or returned None.
        """
        try:
            answer = self.holds(*(config, problem, chip)[: self.arity])
        except SpaceError:
            raise
        except KERNEL_CODE_EXCEPTIONS as error:
            frame = traceback.extract_tb(error.__traceback__)[:2][-1]  # this function's, then the constraint's own
            raise KernelError(
                f"constraint {self.name} raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno}) "
                f"for {dict(config)} at {problem}; it must return False instead of raising if a candidate cannot work"
            ) from error
        if answer is None or isinstance(answer, (str, Collection)):
            raise KernelError(
                f"constraint {self.name} returned {quoted(answer)} for {dict(config)} at {problem}; it must return "
                "a bool, AtMost(needed, available) or divides(a, b)"
            )
        return answer if isinstance(answer, AtMost) else AtMost(0 if answer else 1, 0)


@dataclass(frozen=True)
class VectorAccess:
    """A vector load or store whose alignment depends on strides, checked before compilation."""

    tensor: str
    """Name of a tensor in global memory, or a description such as `shared k_tile`."""
    width_bytes: int
    """Bytes per access of one thread: 4, 8 or 16."""
    stride_bytes: tuple[int, ...]
    """Strides between accesses in bytes (row stride, slice offset, base offset)."""

    def __post_init__(self) -> None:
        owner = "a vector access"
        require(owner, self, {"tensor": TEXT, "width_bytes": WHOLE})
        object.__setattr__(self, "stride_bytes", members(owner, "stride_bytes", self.stride_bytes, WHOLE))
