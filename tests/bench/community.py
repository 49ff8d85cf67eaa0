"""The community's score of tuners over spaces: 0 is random search, 1 the optimum at once.

PyPI's `autotuning_methodology` reads the spaces, makes the random baseline, and turns runs into a score. Runs that
ended at the optimum are continued at the optimum, because its curves read only what was evaluated.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.records import Recording, Run

CUTOFF = (0.01, 0.95)
"""Start and end of the scored time: parts of the gap from median to optimum that random search has closed."""
RESOLUTION = 1000
"""Points in time."""
CONFIDENCE = 0.95
"""Of the package's intervals."""
TIMES = ("compilation", "search_algorithm")
"""Times that are counted: evaluation as recorded, and the tuner's own."""


def scores(
    recordings: Sequence[Recording], runs: Mapping[tuple[str, str], Sequence[Run]]
) -> dict[str, tuple[float, dict[str, float]]]:
    """Return each tuner's score over all spaces, and on each of them.

    Args:
        recordings: the spaces.
        runs: (tuner, space) → its repeats.
    """
    from autotuning_methodology.report_experiments import get_strategies_aggregated_performance

    tuners = list(dict.fromkeys(tuner for tuner, _ in runs))
    with tempfile.TemporaryDirectory() as folder:
        data = [_aggregation(recording, tuners, runs, Path(folder)) for recording in recordings]
        per_space = [get_strategies_aggregated_performance([entry], CONFIDENCE)[0] for entry in data]
    found = {}
    for index, tuner in enumerate(tuners):
        own = {r.name: float(np.mean(curves[index])) for r, curves in zip(recordings, per_space, strict=True)}
        found[tuner] = (float(np.mean(list(own.values()))), own)
    return found


def _aggregation(
    recording: Recording, tuners: Sequence[str], runs: Mapping[tuple[str, str], Sequence[Run]], folder: Path
) -> tuple[Any, ...]:
    from autotuning_methodology.baseline import RandomSearchCalculatedBaseline
    from autotuning_methodology.caching import ResultsDescription
    from autotuning_methodology.curves import StochasticOptimizationAlgorithm
    from autotuning_methodology.runner import write_results
    from autotuning_methodology.searchspace_statistics import SearchspaceStatistics

    entries = [_entry(recording, position, 0.0) for position in range(len(recording.configs))]
    whole = folder / f"{recording.name}.json"
    whole.write_text(json.dumps({"schema_version": "1.0.0", "metadata": {"timeunit": "seconds"}, "results": entries}))
    stats = SearchspaceStatistics(recording.name, "recorded", True, list(TIMES), ["time"], whole, full_validate=False)
    first, last, start_s, end_s = stats.cutoff_point_fevals_time_start_end(*CUTOFF)
    curves = []
    for tuner in tuners:
        described = ResultsDescription(
            folder / tuner, recording.name, "recorded", tuner, tuner, True, list(TIMES), ["time"], True
        )
        repeats = [_repeat(recording, run, end_s) for run in runs[tuner, recording.name]]
        write_results(repeats, described)
        curves.append(StochasticOptimizationAlgorithm(described))
    time_range = np.linspace(start_s, end_s, RESOLUTION)
    return RandomSearchCalculatedBaseline(stats), curves, stats, time_range, np.arange(first, last + 1)


def _repeat(recording: Recording, run: Run, end_s: float) -> list[dict[str, Any]]:
    own = run.own_s / max(len(run.evaluated), 1)
    entries = [_entry(recording, position, own) for position in run.evaluated]
    spent = sum(recording.costs[position] + own for position in run.evaluated)
    if recording.optimum in run.evaluated:
        while spent < 1.5 * end_s:
            entries.append(_entry(recording, recording.optimum, own))
            spent += recording.costs[recording.optimum] + own
    return entries


def _entry(recording: Recording, position: int, own_s: float) -> dict[str, Any]:
    time = recording.times[position]
    failed = bool(np.isnan(time))
    return {
        "configuration": dict(recording.configs[position]),
        "times": {"compilation": float(recording.costs[position]), "search_algorithm": own_s},
        "invalidity": "runtime" if failed else "correct",
        "correctness": int(not failed),
        "measurements": [{"name": "time", "value": float("nan") if failed else float(time), "unit": "us"}],
        "objectives": ["time"],
    }
