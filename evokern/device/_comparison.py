"""What the GPUs of one search are compared by, and how they compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from evokern.device._executors import Calibration, Reference
from evokern.device.contract import BaselineResult
from evokern.errors import DeviceError
from evokern.measurement.statistics import geometric_mean


def require_one_model(gpus: Sequence[tuple[str, str]]) -> None:
    """Require that GPUs are of one model.

    Args:
        gpus: name and model of each.

    Raises:
        DeviceError: they are not; with the list.
    """
    if len({model for _, model in gpus}) > 1:
        listed = ", ".join(f"{name} ({model})" for name, model in gpus)
        raise DeviceError(
            f"one study takes GPUs of one model, whose times can be compared; these are {listed}: name some of one "
            "model, for example --device cuda:0,1"
        )


def calibration_of(
    baselines: Sequence[BaselineResult],
    baseline_job: Callable[[int], Any],
    default_job: Any,
    deadline_s: float,
    proof: Any = None,
) -> Calibration:
    """Return what GPUs are compared by: the fastest baseline, then the default candidate; timed as they always are.

    Where no baseline has a time it is the default candidate, twice: one time alone may be a disturbance.

    Args:
        baselines: as one of the GPUs measured them.
        baseline_job: from a baseline's place to the job that measures it.
        default_job: the job that evaluates the default candidate.
        deadline_s: seconds that one of them may take.
        proof: what a GPU that joins later has to do first.
    """
    default = Reference("the default candidate", default_job, lambda answer: answer.time_us)
    times = {index: _time_us(one) for index, one in enumerate(baselines)}
    index = min(times, key=lambda one: times[one] or math.inf, default=None)
    first = default
    if index is not None and times[index] is not None:
        first = Reference(f"the baseline {baselines[index].name}", baseline_job(index), _time_us)
    return Calibration((first, default), deadline_s, proof)


def _time_us(answer: BaselineResult) -> float | None:
    return geometric_mean([timing.median_us for timing in answer.timings]) if answer.timings else None


def comparison(names: Sequence[str], first_us: Sequence[float], reference: str) -> str:
    """Return how GPUs compare, as a note.

    Args:
        names: what they are called.
        first_us: what the reference took on each, µs.
        reference: its name.
    """
    told = ", ".join(f"{name} {us:.4g} µs" for name, us in zip(names, first_us, strict=True))
    apart = max(first_us) / min(first_us) - 1
    return f"{len(names)} GPUs measure, compared by {reference}: {told} ({apart:.1%} apart)"
