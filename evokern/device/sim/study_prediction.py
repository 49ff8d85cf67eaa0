"""A candidate's predicted time over all problems of a study."""

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
from evokern.measurement.roofline import Floor, Work, below, floor, peak_rates, work
from evokern.measurement.statistics import geometric_mean
from evokern.study.trial import Timing


@dataclass(frozen=True)
class StudyPrediction:
    """What is predicted of a candidate, a value per problem in the study's order."""

    problems: tuple[Problem, ...]
    """The study's problems."""
    tasks: tuple[Work, ...]
    """What each one asks for."""
    floors: tuple[Floor, ...]
    """The least time that each one takes on this chip."""
    predictions: tuple[Predicted, ...]
    """The predictions."""

    def replaced(self, at: int, prediction: Predicted) -> StudyPrediction:
        """Return the same with another prediction at one of the problems."""
        return replace(self, predictions=(*self.predictions[:at], prediction, *self.predictions[at + 1 :]))

    @property
    def time_us(self) -> float:
        """The geometric mean of the times, in µs."""
        return geometric_mean([prediction.total.time_us for prediction in self.predictions])

    @property
    def timings(self) -> tuple[Timing, ...]:
        """A timing per problem, each a single prediction."""
        times = (prediction.total.time_us for prediction in self.predictions)
        return tuple(Timing(t, (t, t), (t,), predicted=True) for t in times)

    def impossible(self) -> dict[str, Any] | None:
        """Return the evidence against a candidate whose sampled blocks were wrong, or that is faster than can be."""
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
    """Predict a candidate at every problem of a study.

    Args:
        kernel: the kernel.
        settings: the study's problems and chip.
        config: the candidate.
        limit_us: mean time beyond which it does not matter how slow it is.
        predict: predicts it at a problem, up to a limit in µs.

    Raises:
        RunFailed: it crashed, does not end, or is slower than the limit.
    """
    problems, chip = settings.context.problems, settings.context.profile
    tasks = tuple(work(kernel, p, tensors_of(kernel, config, p), settings.timing, chip) for p in problems)
    floors = tuple(floor(task, peak_rates(chip), chip) for task in tasks)
    least = [limit.time_us for limit in floors]
    found: dict[int, Predicted] = {}
    # The smallest first: what they take leaves a tighter limit to those that take longest to simulate.
    for position in sorted(range(len(least)), key=least.__getitem__):
        found[position] = predict(problems[position], _share(limit_us, least, position))
        least[position] = found[position].total.time_us
    return StudyPrediction(problems, tasks, floors, tuple(found[position] for position in range(len(least))))


def _share(limit_us: float | None, least_us: Sequence[float], position: int) -> float | None:
    """Return the time at one problem beyond which the geometric mean over all passes a limit.

    Args:
        limit_us: the limit of the mean.
        least_us: of each problem, a time that it takes at least.
        position: which problem.
    """
    if limit_us is None:
        return None
    count = len(least_us)
    others = sum(math.log(t) for other, t in enumerate(least_us) if other != position)
    # Beyond so many times the limit at one problem no mean comes near the time to beat; simulating it takes minutes.
    return min(math.exp(count * math.log(limit_us) - others), count * limit_us)
