"""What every repeat of a replay shares, and what a replay found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from evokern.errors import UsageError
from evokern.samplers.contract import TrialSchedule

LIVE = 96
"""Most trials in flight of a search whose time is limited, on a GPU beside 16 cores."""
CHECKPOINTS = (50, 100, 200, 500, 1000, 2000, 5000)
"""Evaluations after which results are reported, as far as a replay goes; its last evaluation is always one."""


@dataclass(frozen=True)
class Repeat:
    """One search over a recording."""

    sampler: str
    """Who proposed."""
    seed: int
    """Seed of the proposals."""
    best_us: tuple[float | None, ...]
    """Least time, in µs, after each evaluation; None while nothing ran."""
    elapsed_s: float = 0.0
    """Simulated seconds: what the evaluations took when they were recorded; 0 where that is not known."""


@dataclass(frozen=True)
class SamplerResult:
    """Every repeat of one sampler, as fractions of the optimum: optimum ÷ best so far, 0 while nothing ran."""

    sampler: str
    """Its name."""
    curves: tuple[tuple[float, ...], ...]
    """One per repeat: the fraction after each evaluation; as long as the replay's trials."""
    score: float
    """0 is random search, 1 the optimum at once (see `evokern.sampler_benchmark.score`)."""
    elapsed_s: float = 0.0
    """Mean simulated seconds of a repeat."""

    def at(self, evaluations: int) -> list[float]:
        """Return each repeat's fraction after so many evaluations."""
        return [curve[evaluations - 1] for curve in self.curves]


@dataclass(frozen=True)
class ReplayResult:
    """What a replay found."""

    space: str
    """Name of the recording."""
    trials: int
    """Evaluations of each repeat."""
    optimum_us: float
    """Least recorded time, in µs."""
    samplers: tuple[SamplerResult, ...]
    """One per sampler, in the order asked for."""
    random_curve: tuple[float, ...] = ()
    """Expected fraction of random search after each evaluation, computed from the recording."""
    notes: tuple[str, ...] = field(default=())
    """What the user should know."""
    in_flight: str = ""
    """How many trials were in flight, in words."""
    oracle: bool = False
    """Whether samplers were handed the list of the recorded configurations."""

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Evaluations after which results are reported."""
        return (*(n for n in CHECKPOINTS if n < self.trials), self.trials)

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `replay --json` prints."""
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
    """What every repeat of a replay shares."""

    source: str
    """A recording's file, or `runs.db:study`."""
    trials: int = 200
    """Evaluations of each repeat."""
    window: int | None = None
    """Most trials in flight, None: `LIVE`."""
    budget_s: float | None = None
    """Simulated seconds of each repeat."""
    oracle: bool = False
    """Whether samplers are handed the list of the recorded configurations, which no search on a GPU has."""

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise UsageError(f"trials = {self.trials}; give at least 1")
        if self.window is not None and not 1 <= self.window <= 1024:
            raise UsageError(f"max_in_flight = {self.window}; give 1 to 1024")

    @property
    def in_flight(self) -> TrialSchedule:
        """Trials in flight."""
        return TrialSchedule(self.window or LIVE)


OnRepeat = Callable[[int, int, Repeat], None]
"""Called with repeats done, repeats in all, and the latest one."""
