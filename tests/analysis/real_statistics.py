"""How often playoff and compare are wrong about samples whose truth is known, taken by whoever is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.analysis.compare.compare import ComparedRun, RunTiming, compare
from evokern.measurement.playoff import play
from evokern.measurement.statistics import median, median_interval

Round = Sequence[Sequence[float]]
"""Samples of every candidate of a playoff, µs, paired by position."""


@dataclass(frozen=True)
class Count:
    """How many of some trials came out one way."""

    found: int
    """Differences that were found."""
    of: int
    """Trials."""

    @property
    def share(self) -> float:
        """Share of the trials."""
        return self.found / self.of


def playoffs(rounds: Sequence[Round], pair: tuple[int, int], most: int = 100) -> Count:
    """Play one playoff after the other between two candidates, each with rounds of its own.

    Args:
        rounds: what was measured, in order.
        pair: the two candidates' places in a round.
        most: playoffs at most; it ends sooner where rounds run out.

    Returns:
        In how many the first one was called faster or slower.
    """
    left: Iterator[Round] = iter(rounds)

    def measure(alive: Sequence[int], samples: int) -> list[Sequence[float]]:
        taken = next(left, None)
        if taken is None:
            raise EOFError
        return [taken[pair[index]] for index in alive]

    decided, played = 0, 0
    while played < most:
        try:
            one = play(measure, 2)
        except EOFError:
            break
        decided, played = decided + one.decided, played + 1
    return Count(decided, played)


def compared(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Count:
    """Compare stored samples pair by pair; count the new runs that are called slower."""
    alarms = [compare(_run("old", old), _run("new", new)).verdict == "slower" for old, new in pairs]
    return Count(sum(alarms), len(alarms))


def _run(label: str, samples: Sequence[float]) -> ComparedRun:
    reading: Any = RunTiming(median(samples), median_interval(samples), tuple(samples))
    return ComparedRun(label, "dial", "a GPU", False, {"1": reading})
