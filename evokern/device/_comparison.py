"""Jobs with known times that serve to compare the GPUs of one search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from evokern.device._executors import Calibration, Reference
from evokern.device.contract import BaselineResult
from evokern.errors import DeviceError
from evokern.measurement.statistics import geometric_mean


def require_one_model(gpus: Sequence[tuple[str, str]]) -> None:
    """Check that all GPUs are the same model.

    Args:
        gpus: name and model of each.

    Raises:
        DeviceError: the models differ; the message lists them.
    """
    if len({model for _, model in gpus}) > 1:
        listed = ", ".join(f"{name} ({model})" for name, model in gpus)
        raise DeviceError(
            f"times are comparable only on GPUs of the same model, but these are {listed}; select one model, "
            "for example with --device cuda:0,1"
        )


def calibration_of(
    baselines: Sequence[BaselineResult],
    baseline_job: Callable[[int], Any],
    default_job: Any,
    deadline_s: float,
    proof: Any = None,
) -> Calibration:
    """Return the references for comparing GPUs: the fastest baseline, then the default candidate.

    If no baseline has a time, the default candidate is used twice, because a single time may be disturbed.

    Args:
        baselines: results from one of the GPUs.
        baseline_job: function that returns the job that measures the baseline with a given index.
        default_job: job that evaluates the default candidate.
        deadline_s: timeout of one job, in seconds.
        proof: job that a GPU must complete before it joins later.
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


def comparison_note(names: Sequence[str], first_us: Sequence[float], reference: str) -> str:
    """Return a note that compares the GPUs.

    Args:
        names: names of the GPUs.
        first_us: time of the reference on each GPU in µs.
        reference: name of the reference.
    """
    times = ", ".join(f"{name} {us:.4g} µs" for name, us in zip(names, first_us, strict=True))
    spread = max(first_us) / min(first_us) - 1
    return f"measuring on {len(names)} GPUs; {reference} takes {times} (difference {spread:.1%})"
