"""The last trials that failed, one of each kind, for whoever watches a search."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from evokern.study.trial import Trial

MOST_KINDS = 8
"""Kinds of failures that are kept."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[-+]?\b(?:\d[\d.,]*(?:e[-+]?\d+)?|nan|inf)\b")


@dataclass(frozen=True)
class Failure:
    """A kind of failure."""

    trial: Trial
    """The last trial that failed so."""
    count: int
    """Trials that failed so since it was last forgotten."""


class LastFailures:
    """Kinds of failures in the order in which they last happened."""

    def __init__(self) -> None:
        self._kinds: dict[str, Failure] = {}

    @property
    def newest(self) -> tuple[Failure, ...]:
        """The kinds, the one that happened last first."""
        return tuple(reversed(self._kinds.values()))

    def add(self, trial: Trial) -> None:
        """Take in a trial that failed."""
        self._put(Failure(trial, 1))
        if len(self._kinds) > MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]

    def annotate(self, changed: Mapping[int, Trial]) -> None:
        """Take in what became known of trials later; a kind that a diagnosis shows to be another one joins it.

        Args:
            changed: trial number → the trial with all its evidence.
        """
        kinds, self._kinds = self._kinds, {}
        for failure in kinds.values():
            self._put(replace(failure, trial=changed.get(failure.trial.number, failure.trial)))

    def _put(self, failure: Failure) -> None:
        kind = f"{failure.trial.outcome.value} {_NUMBER.sub('#', failure.trial.evaluation.reason)}"
        before = self._kinds.pop(kind, None)
        self._kinds[kind] = replace(failure, count=failure.count + (before.count if before else 0))
