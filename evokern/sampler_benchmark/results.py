"""Settings and results of a replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from evokern.errors import UsageError
from evokern.samplers.contract import TrialSchedule

LIVE = 96
"""Maximum number of trials in flight of a time-limited search on a GPU with 16 cores."""
CHECKPOINTS = (50, 100, 200, 500, 1000, 2000, 5000)
"""Numbers of evaluations after which results are reported; the last evaluation of a replay is always added."""


@dataclass(frozen=True)
class Repeat:
    """One search over a recording."""

    sampler: str
    """Name of the sampler."""
    seed: int
    """Seed of the proposals."""
    best_us: tuple[float | None, ...]
    """Shortest time in µs after each evaluation; None while there is none."""
    elapsed_s: float = 0.0
    """Simulated seconds, the sum of the recorded durations of the evaluations; 0 if unknown."""


@dataclass(frozen=True)
class SamplerResult:
    """All repeats of one sampler, as fractions of the optimum: optimum ÷ best so far, or 0 without a time."""

    sampler: str
    """Name of the sampler."""
    curves: tuple[tuple[float, ...], ...]
    """Fraction after each evaluation, one curve per repeat."""
    score: float
    """Score: 0 for random search, 1 for finding the optimum at once (`evokern.sampler_benchmark.score`)."""
    elapsed_s: float = 0.0
    """Mean simulated seconds of a repeat."""

    def at(self, evaluations: int) -> list[float]:
        """Return each repeat's fraction after a number of evaluations."""
        return [curve[evaluations - 1] for curve in self.curves]


@dataclass(frozen=True)
class ReplayResult:
    """Results of a replay."""

    space: str
    """Name of the recording."""
    trials: int
    """Number of evaluations of each repeat."""
    optimum_us: float
    """Shortest recorded time in µs."""
    samplers: tuple[SamplerResult, ...]
    """Results per sampler, in the requested order."""
    random_curve: tuple[float, ...] = ()
    """Expected fraction of random search after each evaluation, computed from the recording."""
    notes: tuple[str, ...] = field(default=())
    """Notes for the user."""
    in_flight: str = ""
    """Schedule of the trials in flight, as text."""
    oracle: bool = False
    """Whether the samplers received the list of recorded configurations."""

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Numbers of evaluations after which results are reported."""
        return (*(n for n in CHECKPOINTS if n < self.trials), self.trials)

    def as_dict(self) -> dict[str, Any]:
        """Return the object printed by `replay --json`."""
        rows = [self._row(sampler) for sampler in self.samplers]
        return {
            "space": self.space,
            "trials": self.trials,
            "in_flight": self.in_flight,
            "oracle": self.oracle,
            "samplers": rows,
            "notes": list(self.notes),
        }

    def _row(self, result: SamplerResult) -> dict[str, Any]:
        at = {str(n): result.at(n) for n in self.checkpoints}
        return {
            "sampler": result.sampler,
            "repeats": len(result.curves),
            "fraction_of_optimum": {n: fmean(values) for n, values in at.items()},
            "worst": {n: min(values) for n, values in at.items()},
            "sd": {n: stdev(values) if len(values) > 1 else 0.0 for n, values in at.items()},
            "score": result.score,
        }


@dataclass(frozen=True)
class Settings:
    """Settings shared by all repeats of a replay."""

    source: str
    """File of a recording, or `runs.db:study`."""
    trials: int = 200
    """Number of evaluations of each repeat."""
    window: int | None = None
    """Maximum number of trials in flight; None for `LIVE`."""
    budget_s: float | None = None
    """Simulated seconds of each repeat."""
    oracle: bool = False
    """Whether samplers receive the list of recorded configurations, which a live search never does."""

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise UsageError(f"trials = {self.trials}; use at least 1")
        if self.window is not None and not 1 <= self.window <= 1024:
            raise UsageError(f"max_in_flight = {self.window}; use a number from 1 to 1024")

    @property
    def in_flight(self) -> TrialSchedule:
        """Schedule that limits the number of concurrent trials."""
        return TrialSchedule(self.window or LIVE)


OnRepeat = Callable[[int, int, Repeat], None]
"""Callback with the number of completed repeats, the total, and the latest repeat."""
