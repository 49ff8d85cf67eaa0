"""Predicted time of a candidate over all problems of a study."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evokern.compile.build import tensors_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.device.sim.jobs import SimSettings
from evokern.device.sim.predict import Predicted
from evokern.measurement.roofline import LowerBound, Work, below, floor, peak_rates, work
from evokern.measurement.statistics import geometric_mean
from evokern.study.trial import Timing


@dataclass(frozen=True)
class StudyPrediction:
    """Predictions of a candidate, one per problem in the study's order."""

    problems: tuple[Problem, ...]
    """Problems of the study."""
    tasks: tuple[Work, ...]
    """Work of one call for each problem."""
    floors: tuple[LowerBound, ...]
    """Lower bound on the time of each problem on this chip."""
    predictions: tuple[Predicted, ...]
    """Predictions of the candidate."""

    def replaced(self, at: int, prediction: Predicted) -> StudyPrediction:
        """Return a copy with another prediction for the problem at an index."""
        return replace(self, predictions=(*self.predictions[:at], prediction, *self.predictions[at + 1 :]))

    @property
    def time_us(self) -> float:
        """Geometric mean of the times, in µs."""
        return geometric_mean([prediction.total.time_us for prediction in self.predictions])

    @property
    def timings(self) -> tuple[Timing, ...]:
        """Timing of each problem, with a single predicted sample."""
        times = (prediction.total.time_us for prediction in self.predictions)
        return tuple(Timing(t, (t, t), (t,), predicted=True) for t in times)

    def impossible(self) -> dict[str, Any] | None:
        """Return the evidence for wrong sampled blocks or for a time below its lower bound, or None."""
        for problem, prediction, least in zip(self.problems, self.predictions, self.floors, strict=True):
            message = prediction.sampled or below(prediction.total.time_us, least)
            if message:
                check = "sampled_blocks" if prediction.sampled else "floor"
                return {"check": check, "message": message, "problem": problem.key}
        return None


def predict_study(
    kernel: Kernel,
    settings: SimSettings,
    config: Config,
    limit_us: float | None,
    predict: Callable[[Problem, float | None], Predicted],
) -> StudyPrediction:
    """Predict the time of a candidate on every problem of a study.

    Args:
        kernel: the kernel.
        settings: problems and chip of the study.
        config: the candidate.
        limit_us: mean time above which the prediction stops.
        predict: function that predicts the candidate on a problem, up to a limit in µs.

    Raises:
        RunFailed: the candidate crashed, hung, or is slower than the limit.
    """
    problems, chip = settings.context.problems, settings.context.profile
    tasks = tuple(work(kernel, p, tensors_of(kernel, config, p), settings.timing, chip) for p in problems)
    floors = tuple(floor(task, peak_rates(chip), chip) for task in tasks)
    least = [limit.time_us for limit in floors]
    found: dict[int, Predicted] = {}
    # The smallest problems first, because their times tighten the limit for those that take longest to simulate.
    for position in sorted(range(len(least)), key=least.__getitem__):
        found[position] = predict(problems[position], _share(limit_us, least, position))
        least[position] = found[position].total.time_us
    return StudyPrediction(problems, tasks, floors, tuple(found[position] for position in range(len(least))))


def _share(limit_us: float | None, least_us: Sequence[float], position: int) -> float | None:
    """Return the time on one problem above which the geometric mean exceeds the limit.

    Args:
        limit_us: limit of the mean.
        least_us: lower bound on the time of each problem.
        position: index of the problem.
    """
    if limit_us is None:
        return None
    count = len(least_us)
    others = sum(math.log(t) for other, t in enumerate(least_us) if other != position)
    # Also at most `count` times the limit, because simulating such a slow candidate takes minutes and cannot pay off.
    return min(math.exp(count * math.log(limit_us) - others), count * limit_us)
