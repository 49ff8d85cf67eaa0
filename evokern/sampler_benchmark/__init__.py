"""Replay: comparison of samplers on a recorded space, with the same loop as in a search.

`replay(...)` repeats a search with different seeds for each sampler, and stores the best result after each evaluation.
A failed candidate counts as an evaluation. Configurations that are not in the recording, and machine code that was
already evaluated, cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from evokern.errors import UsageError
from evokern.sampler_benchmark.results import CHECKPOINTS, OnRepeat, Repeat, ReplayResult, SamplerResult, Settings

FEW = 100
"""Minimum number of configurations for a meaningful score."""


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
        source: File of a recording (Kernel Tuner cache, T4, evokern's own; plain or gzip), or `runs.db:study`.
        samplers: Names of samplers, as for `evokern search --sampler`.
        trials: Evaluations of each repeat.
        repeats: Searches per sampler, with the seeds `seed`, `seed` + 1, …
        seed: Seed of the first repeat.
        window: Maximum number of trials in flight; 1 shows every sampler every result. None uses the schedule of a
            time-limited search on a GPU with 16 cores.
        oracle: Whether samplers receive the list of recorded configurations. Otherwise they can only check single
            configurations, as in a live search. Recordings of a search always provide the list.
        budget: Simulated time of each repeat, such as `10m`; the recording must contain durations.
        jobs: Number of parallel processes.
        on_repeat: Function called after each repeat.

    Raises:
        UsageError: The recording cannot be read, a sampler is unknown, or a number is out of range.
    """
    from evokern.sampler_benchmark.results import run_all
    from evokern.sampler_benchmark.score import random_fractions, recording_notes, score
    from evokern.store import open_recording
    from evokern.study.options import parse_duration

    settings = Settings(str(source), trials, window, None if budget is None else parse_duration(budget), oracle)
    if repeats < 1 or jobs < 1:
        raise UsageError(f"repeats = {repeats}, jobs = {jobs}; use at least 1 for each")
    table = open_recording(settings.source)
    optimum = table.optimum_us
    assert optimum is not None  # open_recording rejects recordings without a time
    if settings.budget_s is not None and not table.timed:
        raise UsageError(f"recording {table.name} contains no durations; omit --budget")
    work = [(name, seed + repeat) for name in dict.fromkeys(samplers) for repeat in range(repeats)]
    done = run_all(table, settings, work, jobs, on_repeat or (lambda *_: None))
    expected = random_fractions(table, settings.trials)
    results = []
    for name in dict.fromkeys(samplers):
        own = [repeat for repeat in done if repeat.sampler == name]
        curves = tuple(_fractions(repeat, optimum, settings.trials) for repeat in own)
        elapsed = fmean(repeat.elapsed_s for repeat in own)
        results.append(SamplerResult(name, curves, score(curves, expected), elapsed))
    notes: list[str] = recording_notes(table)
    listed = table.space(listed=settings.oracle).table is not None
    if settings.trials > len(table.answers):
        notes.append(f"recording {table.name} has only {len(table.answers)} configurations")
    if len(table.answers) < FEW:
        notes.append(
            f"scores are meaningless for a recording of {len(table.answers)} configurations, which chance searches "
            f"completely; use a recording with at least {FEW}"
        )
    return ReplayResult(
        table.name, settings.trials, optimum, tuple(results), expected, tuple(notes), str(settings.in_flight), listed
    )


def _fractions(repeat: Repeat, optimum: float, trials: int) -> tuple[float, ...]:
    found = [optimum / best if best else 0.0 for best in repeat.best_us]
    # When the space or budget is exhausted, the last value remains.
    return (*found, *[found[-1] if found else 0.0] * (trials - len(found)))


__all__ = ["CHECKPOINTS", "OnRepeat", "Repeat", "ReplayResult", "SamplerResult", "Settings", "replay"]
