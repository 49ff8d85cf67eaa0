"""Replay: samplers compared on a recorded space, by the same loop that searches a GPU.

`replay(...)` repeats a search of each sampler with different seeds over the recording and keeps how good the best
candidate was after each evaluation. A failed candidate is an evaluation; what the recording does not have costs
nothing; machine code met before is not evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from evokern.errors import UsageError

CHECKPOINTS = (50, 100, 200, 500, 1000, 2000, 5000)
"""Evaluations after which results are told, as far as a replay goes; its last evaluation is always one."""

FEW = 100
"""Configurations below which a score says nothing of a sampler."""


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
    """0 is random search, 1 the optimum at once (see `evokern.replay._score`)."""
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

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Evaluations after which results are told."""
        return (*(n for n in CHECKPOINTS if n < self.trials), self.trials)

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `replay --json` prints."""
        return {"space": self.space, "trials": self.trials, "samplers": [self._row(s) for s in self.samplers]}

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
    window: int = 1
    """Trials in flight: proposal n sees the results up to n - window."""
    budget_s: float | None = None
    """Simulated seconds of each repeat."""

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise UsageError(f"trials = {self.trials}; give at least 1")
        if not 1 <= self.window <= 1024:
            raise UsageError(f"window = {self.window}; give 1 to 1024")


OnRepeat = Callable[[int, int, Repeat], None]
"""Called with repeats done, repeats in all, and the latest one."""


def replay(
    source: str | Path,
    *,
    samplers: Sequence[str] = ("evo", "tpe", "random"),
    trials: int = 200,
    repeats: int = 30,
    seed: int = 0,
    window: int = 1,
    budget: str | float | None = None,
    jobs: int = 1,
    on_repeat: OnRepeat | None = None,
) -> ReplayResult:
    """Compare samplers on a recorded space.

    Args:
        source: a recording's file (Kernel Tuner cache, T4, evokern's own; plain or gzip), or `runs.db:study`.
        samplers: names, as `evokern search --sampler` takes them.
        trials: evaluations of each repeat.
        repeats: searches per sampler, with the seeds `seed`, `seed` + 1, …
        seed: seed of the first repeat.
        window: trials in flight; 1 shows every sampler every result.
        budget: simulated time of each repeat, for example `10m`; needs a recording that knows how long things took.
        jobs: processes that repeat side by side.
        on_repeat: called after each repeat.

    Raises:
        UsageError: the recording cannot be read, a sampler is unknown, or a number is out of range.
    """
    from evokern.duration import parse_duration
    from evokern.replay._repeat import run_all
    from evokern.replay._score import random_fractions, score
    from evokern.store import open_recording

    settings = Settings(str(source), trials, window, None if budget is None else parse_duration(budget))
    if repeats < 1 or jobs < 1:
        raise UsageError(f"repeats = {repeats}, jobs = {jobs}; give at least 1 of each")
    table = open_recording(settings.source)
    optimum = table.optimum_us
    assert optimum is not None  # a recording without a time is refused when it is read
    if settings.budget_s is not None and not table.timed:
        raise UsageError(f"recording {table.name} does not say how long its evaluations took; leave --budget away")
    work = [(name, seed + repeat) for name in dict.fromkeys(samplers) for repeat in range(repeats)]
    done = run_all(table, settings, work, jobs, on_repeat or (lambda *_: None))
    expected = random_fractions(table, settings.trials)
    results = []
    for name in dict.fromkeys(samplers):
        own = [repeat for repeat in done if repeat.sampler == name]
        curves = tuple(_fractions(repeat, optimum, settings.trials) for repeat in own)
        elapsed = fmean(repeat.elapsed_s for repeat in own)
        results.append(SamplerResult(name, curves, score(curves, expected), elapsed))
    notes: list[str] = []
    if settings.trials > len(table.answers):
        notes.append(f"recording {table.name} has only {len(table.answers)} configurations")
    if len(table.answers) < FEW:
        notes.append(
            f"the scores mean nothing: a recording of {len(table.answers)} configurations is searched through by "
            f"chance; take one of at least {FEW}"
        )
    return ReplayResult(table.name, settings.trials, optimum, tuple(results), expected, tuple(notes))


def _fractions(repeat: Repeat, optimum: float, trials: int) -> tuple[float, ...]:
    found = [optimum / best if best else 0.0 for best in repeat.best_us]
    # A space that is exhausted, or a budget that is used up, keeps what it has.
    return (*found, *[found[-1] if found else 0.0] * (trials - len(found)))


__all__ = ["CHECKPOINTS", "OnRepeat", "Repeat", "ReplayResult", "SamplerResult", "Settings", "replay"]
