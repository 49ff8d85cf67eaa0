"""Failures of a search: the recent ones for displays, and the rule that ends a search without correct candidates.

One cause that depends on no gene ends a search early. Every value of each gene that reaches its place must have failed.
Genes that may be parts of one condition must have failed in every combination (`evokern.compile.failure_cause`). Too
many of these genes only delay the end.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product

from evokern.compile.failure_cause import Cause, cause_of
from evokern.declaration.genes import Config, Value
from evokern.declaration.space import Space
from evokern.study.trial import Outcome, Trial

MOST_KINDS = 8
"""Maximum number of kinds."""
SAME_CAUSE = 40
"""Number of evaluated trials after which one cause that depends on no gene ends the search."""
NOTHING_RIGHT = 350
"""Number of evaluated trials after which a search without a right candidate ends."""
_MOST_COMBINATIONS = 4096
_DRAWS = 64
"""Random draws that look for a feasible candidate with a combination of values."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[-+]?\b(?:\d[\d.,]*(?:e[-+]?\d+)?|nan|inf)\b")


@dataclass(frozen=True)
class Failure:
    """A kind of failure and its latest trial."""

    trial: Trial
    """Latest trial with this failure."""
    count: int
    """Number of trials with this failure since the kind was last dropped."""


class LastFailures:
    """Most recent kinds of failures."""

    def __init__(self) -> None:
        self._kinds: dict[str, Failure] = {}

    @property
    def newest(self) -> tuple[Failure, ...]:
        """Kinds of failures, most recent first."""
        return tuple(reversed(self._kinds.values()))

    def add(self, trial: Trial) -> None:
        """Add a failed trial."""
        self._put(Failure(trial, 1))
        if len(self._kinds) > MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]

    def annotate(self, changed: Mapping[int, Trial]) -> None:
        """Update trials for which evidence arrived later; a kind with a changed reason may merge with another kind.

        Args:
            changed: trials with all their evidence, by trial number.
        """
        kinds, self._kinds = self._kinds, {}
        for failure in kinds.values():
            self._put(replace(failure, trial=changed.get(failure.trial.number, failure.trial)))

    def _put(self, failure: Failure) -> None:
        kind = f"{failure.trial.outcome.value} {_NUMBER.sub('#', failure.trial.evaluation.reason)}"
        before = self._kinds.pop(kind, None)
        self._kinds[kind] = replace(failure, count=failure.count + (before.count if before else 0))


class FailureWatch:
    """Decision whether a search can still succeed, from its recorded trials."""

    def __init__(
        self,
        space: Space,
        reaching: Callable[[Cause], frozenset[str]],
        ignored: frozenset[int] = frozenset(),
        alone: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """Create the decision for a search without trials.

        Args:
            space: genes and feasibility rules.
            reaching: returns the genes on which a cause may depend.
            ignored: numbers of trials of earlier kernel code.
            alone: returns the genes whose values matter one by one, not in combination.
        """
        self._space, self._reaching, self._ignored, self._alone = space, reaching, ignored, alone
        self._seen: dict[int, tuple[Config, Cause | None]] = {}
        self._right = False
        self._genes: dict[Cause, tuple[str, ...]] = {}
        self._single: dict[Cause, frozenset[str]] = {}
        self._possible: dict[tuple[tuple[str, Value], ...], bool] = {}
        self._decided: tuple[int, bool] = (0, False)

    def add(self, trial: Trial) -> None:
        """Add a recorded trial, or replace it after its evidence has changed.

        A slow trial that was not checked may be right, so it does not count.
        """
        if trial.number in self._ignored:
            return
        self._right |= trial.evaluation.passed_gate
        if self._right or not trial.outcome.evaluated or trial.outcome is Outcome.SLOW:
            return
        self._seen[trial.number] = trial.config, cause_of(trial.evaluation)
        self._decided = 0, False

    @property
    def hopeless(self) -> bool:
        """Whether no candidate was correct and either rule ends the search."""
        count = len(self._seen)
        if self._right or count < SAME_CAUSE:
            return False
        if self._decided[0] != count:
            self._decided = count, count >= NOTHING_RIGHT or self._same_cause()
        return self._decided[1]

    def undecided(self, in_flight: int) -> bool:
        """Whether the trials in flight may end the search: further ones would be in vain.

        Args:
            in_flight: number of trials without a result.
        """
        count = len(self._seen)
        if self._right or not count < SAME_CAUSE <= count + in_flight:
            return False
        causes = {cause for _, cause in self._seen.values()}
        return len(causes) == 1 and causes != {None}

    def _same_cause(self) -> bool:
        """Return whether one cause explains every failure and depends on no gene."""
        causes = {cause for _, cause in self._seen.values()}
        cause = causes.pop()
        if causes or cause is None:
            return False
        if cause not in self._genes:
            self._genes[cause] = tuple(sorted(self._reaching(cause)))
            self._single[cause] = self._alone()
        genes, single = self._genes[cause], self._single[cause]
        joint = tuple(name for name in genes if name not in single)
        return all(self._failed(part) for part in (joint, *((name,) for name in genes if name in single)))

    def _count(self, name: str) -> int:
        return len(self._space.gene(name).values)

    def _failed(self, genes: tuple[str, ...]) -> bool:
        """Return whether every feasible combination of values of some genes has failed."""
        if math.prod(map(self._count, genes)) > _MOST_COMBINATIONS:
            return False
        failed = {tuple(config[name] for name in genes) for config, _ in self._seen.values()}
        return not any(
            combination not in failed and self._feasible(tuple(zip(genes, combination, strict=True)))
            for combination in product(*(self._space.gene(name).values for name in genes))
        )

    def _feasible(self, chosen: tuple[tuple[str, Value], ...]) -> bool:
        """Return whether a feasible candidate with these values is found: the default, or one of a few random draws."""
        if chosen not in self._possible:
            space, rng = self._space, random.Random(0)
            bases = [space.first_feasible() or space.default(), *(space.draw(rng) for _ in range(_DRAWS))]
            candidates = (space.canonical({**base, **dict(chosen)}) for base in bases)
            self._possible[chosen] = any(
                all(config[name] == value for name, value in chosen) and space.feasible(config) for config in candidates
            )
        return self._possible[chosen]
