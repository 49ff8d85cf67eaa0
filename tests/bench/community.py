"""The community's score, computed by its own package (`autotuning_methodology`).

Each search gets recorded time: as long as random search needs for 95 % of the way from the median to the optimum. A
score of 0 is random search, 1 the optimum at once.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from recorded import TIMES, Recorded

from evokern.declaration.genes import Config

CUTOFF = (0.01, 0.95)
"""Start and end of the curve, as fractions of the way from the median to the optimum."""
STEPS = 1000
"""Number of times at which a curve is evaluated."""
SPARE = 1.3
"""Factor on the number of evaluations, because a sampler that prefers fast candidates makes more than random search."""


class Budget:
    """Random search on a recording, and the time budget derived from it."""

    def __init__(self, space: Recorded) -> None:
        from autotuning_methodology.searchspace_statistics import SearchspaceStatistics

        results = [space.t4(config) for config in space.table.answers]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{space.name}.json"
            content = {"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}, "results": results}
            path.write_text(json.dumps(content), encoding="utf-8")
            with _silent():
                self.statistics = SearchspaceStatistics(
                    space.name, "recorded", True, list(TIMES), ["time"], path, False
                )
                ends = self.statistics.cutoff_point_fevals_time_start_end(*CUTOFF)
        self.start_s, self.end_s = float(ends[2]), float(ends[3])
        self.evaluations = math.ceil(SPARE * ends[1])
        """Number of evaluations that suffices for the time budget."""


def scores(
    spaces: Sequence[Recorded], budgets: Sequence[Budget], runs: Mapping[str, Sequence[Sequence[Sequence[Config]]]]
) -> dict[str, tuple[float, list[float]]]:
    """Return each contender's score over all spaces, and its score on each space.

    Args:
        spaces: Recorded spaces.
        budgets: Budgets of the spaces.
        runs: Searches by contender and space, each as the configurations in the order of evaluation.
    """
    from autotuning_methodology.baseline import RandomSearchCalculatedBaseline
    from autotuning_methodology.report_experiments import get_strategies_aggregated_performance

    found: dict[str, tuple[float, list[float]]] = {}
    for contender, searches in runs.items():
        parts = []
        for space, budget, repeats in zip(spaces, budgets, searches, strict=True):
            moments = np.linspace(budget.start_s, budget.end_s, STEPS)
            np.random.seed(0)  # the curve fit samples evaluations; make scores reproducible
            with _silent():
                curve = _curve(space, contender, repeats)
                entry = (RandomSearchCalculatedBaseline(budget.statistics), [curve], budget.statistics, moments, None)
                performance, _, _, _ = get_strategies_aggregated_performance([entry], 0.95)
            parts.append(float(np.mean(performance[0])))
        found[contender] = (sum(parts) / len(parts), parts)
    return found


def _curve(space: Recorded, contender: str, repeats: Sequence[Sequence[Config]]) -> Any:
    from autotuning_methodology.caching import ResultsDescription
    from autotuning_methodology.curves import StochasticOptimizationAlgorithm
    from autotuning_methodology.runner import write_results

    with tempfile.TemporaryDirectory() as folder:
        description = ResultsDescription(
            Path(folder),
            space.name,
            "recorded",
            contender.replace(":", "_"),
            contender,
            True,
            list(TIMES),
            ["time"],
            True,
        )
        write_results([[_seconds(space.t4(config)) for config in configs] for configs in repeats], description)
        return StochasticOptimizationAlgorithm(description)


def _seconds(result: dict[str, Any]) -> dict[str, Any]:
    times = {part: _each(value) for part, value in result["times"].items()}
    return {**result, "times": times}


def _each(value: Any) -> Any:
    return [entry / 1000 for entry in value] if isinstance(value, list) else value / 1000


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
