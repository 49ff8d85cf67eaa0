"""Recent failures of a search, grouped by kind, for progress displays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from evokern.study.trial import Trial

MOST_KINDS = 8
"""Maximum number of kinds."""
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
