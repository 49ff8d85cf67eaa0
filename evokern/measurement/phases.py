"""Clock for the phases of a trial: start and duration of its compile, gate and timing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from evokern.study.trial import Span


class PhaseClock:
    """Recorder of the phases of one candidate at a time.

    Times come from `time.monotonic`. On Linux (CLOCK_MONOTONIC) all processes of a machine share this clock, so times
    of a worker and its parent are comparable.
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the duration of the enclosed code, even if it raises an exception."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._spans.append(Span(name, began, time.monotonic() - began))

    def taken(self) -> tuple[Span, ...]:
        """Return the spans since the last call, in the order in which they ended."""
        spans, self._spans = tuple(self._spans), []
        return spans
