"""Stop a search in which nothing is right: early if one cause explains every failure, later in any case.

A cause is a check and a place: a line of the source, or the declarations of shared memory. It depends on no gene if
every combination of values of the genes that reach the place has failed. `evokern.cuda_source.reaching` finds these
genes; too many of them only delay the stop.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from itertools import product

from evokern.compile.failure_cause import Cause, cause_of
from evokern.declaration.genes import Config, Value
from evokern.declaration.space import Space
from evokern.study.trial import Outcome, Trial

SAME_CAUSE = 40
"""Number of evaluated trials after which one cause that depends on no gene ends the search."""
NOTHING_RIGHT = 350
"""Number of evaluated trials after which a search without a right candidate ends."""
_MOST_COMBINATIONS = 4096
_DRAWS = 64
"""Random draws that look for a feasible candidate with a combination of values."""


def shared_cause(trials: Iterable[Trial]) -> Cause | None:
    """Return the cause that all evaluated trials share, or None."""
    causes = {cause_of(trial.evaluation) for trial in trials if trial.outcome.evaluated}
    return causes.pop() if len(causes) == 1 else None


class FailureWatch:
    """Decision whether a search can still succeed, from its recorded trials."""

    def __init__(
        self, space: Space, reaching: Callable[[Cause], frozenset[str]], ignored: frozenset[int] = frozenset()
    ) -> None:
        """Create the decision for a search without trials.

        Args:
            space: genes and feasibility rules.
            reaching: returns the genes on which a cause may depend.
            ignored: numbers of trials of earlier kernel code.
        """
        self._space, self._reaching, self._ignored = space, reaching, ignored
        self._seen: dict[int, tuple[Config, Cause | None]] = {}
        self._right = False
        self._genes: dict[Cause, tuple[str, ...]] = {}
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
        """Whether nothing was right and either rule ends the search."""
        count = len(self._seen)
        if self._right or count < SAME_CAUSE:
            return False
        if self._decided[0] != count:
            self._decided = count, count >= NOTHING_RIGHT or self._same_cause()
        return self._decided[1]

    def _same_cause(self) -> bool:
        """Return whether one cause explains every failure and depends on no gene."""
        causes = {cause for _, cause in self._seen.values()}
        cause = causes.pop()
        if causes or cause is None:
            return False
        if cause not in self._genes:
            self._genes[cause] = tuple(sorted(self._reaching(cause)))
        genes = self._genes[cause]
        values = [self._space.gene(name).values for name in genes]
        if math.prod(map(len, values)) > _MOST_COMBINATIONS:
            return False
        failed = {tuple(config[name] for name in genes) for config, _ in self._seen.values()}
        return not any(
            combination not in failed and self._feasible(tuple(zip(genes, combination, strict=True)))
            for combination in product(*values)
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
