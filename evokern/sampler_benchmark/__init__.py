"""Replay: samplers compared on a recorded space, by the same loop that searches a GPU.

`replay(...)` repeats a search of each sampler with different seeds over the recording and keeps how good the best
candidate was after each evaluation. A failed candidate is an evaluation; what the recording does not have costs
nothing; machine code met before is not evaluated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from evokern.errors import UsageError
from evokern.sampler_benchmark.results import CHECKPOINTS, OnRepeat, Repeat, ReplayResult, SamplerResult, Settings

FEW = 100
"""Configurations below which a score says nothing of a sampler."""


def replay(
    source: str | Path,
    *,
    samplers: Sequence[str] = ("evo", "tpe", "random"),
    trials: int = 200,
    repeats: int = 30,
    seed: int = 0,
    window: int | None = None,
    oracle: bool = False,
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
        window: most trials in flight; 1 shows every sampler every result. None: as a search has them whose time is
            limited, on a GPU beside 16 cores.
        oracle: hand the samplers the list of the recorded configurations; else they ask whether one is recorded, as a
            search on a GPU asks its constraints. What one search sought out of a space is a list in any case.
        budget: simulated time of each repeat, for example `10m`; needs a recording that knows how long things took.
        jobs: processes that repeat side by side.
        on_repeat: called after each repeat.

    Raises:
        UsageError: the recording cannot be read, a sampler is unknown, or a number is out of range.
    """
    from evokern.sampler_benchmark.repeat import run_all
    from evokern.sampler_benchmark.score import random_fractions, score, worth
    from evokern.store import open_recording
    from evokern.study.duration import parse_duration

    settings = Settings(str(source), trials, window, None if budget is None else parse_duration(budget), oracle)
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
    notes: list[str] = worth(table)
    listed = table.space(listed=settings.oracle).table is not None
    if settings.trials > len(table.answers):
        notes.append(f"recording {table.name} has only {len(table.answers)} configurations")
    if len(table.answers) < FEW:
        notes.append(
            f"the scores mean nothing: a recording of {len(table.answers)} configurations is searched through by "
            f"chance; take one of at least {FEW}"
        )
    return ReplayResult(
        table.name, settings.trials, optimum, tuple(results), expected, tuple(notes), str(settings.in_flight), listed
    )


def _fractions(repeat: Repeat, optimum: float, trials: int) -> tuple[float, ...]:
    found = [optimum / best if best else 0.0 for best in repeat.best_us]
    # A space that is exhausted, or a budget that is used up, keeps what it has.
    return (*found, *[found[-1] if found else 0.0] * (trials - len(found)))


__all__ = ["CHECKPOINTS", "OnRepeat", "Repeat", "ReplayResult", "SamplerResult", "Settings", "replay"]
