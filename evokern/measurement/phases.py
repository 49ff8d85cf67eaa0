"""Who spends a trial's time: when its compile, its gate and its timing began and how long they took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from evokern.study.trial import Span


class PhaseClock:
    """Notes phases of one candidate at a time.

    Times are of `time.monotonic`, which on Linux (CLOCK_MONOTONIC) is one clock for all processes of a machine, so that
    what a worker notes can be set beside what its parent does.
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note what is done inside, also where it ends with an exception."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._spans.append(Span(name, began, time.monotonic() - began))

    def taken(self) -> tuple[Span, ...]:
        """Return the spans since the last call, in the order in which they ended."""
        spans, self._spans = tuple(self._spans), []
        return spans
