"""Measure the champion and its baseline alternately at the end of a search.

The baseline is measured at the start of a session, when the GPU is cool; candidates are measured when it is warm. If
power or heat limits the clock, the ratio of those times is misleading. Both are therefore sampled alternately, in
rounds as in a playoff (`evokern.measurement.playoff`), so that drift affects both equally.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from evokern.device import Task
from evokern.device.contract import MeasuresRounds
from evokern.measurement.playoff import effects
from evokern.study.trial import Trial

ROUNDS = 8
"""Maximum number of rounds."""
LEAST_ROUNDS = 4
"""Minimum number of rounds for a confidence interval."""
SAMPLES = 7
"""Samples of each candidate per round."""


def compare_with_baseline(
    device: MeasuresRounds,
    task: Task,
    champion: Trial,
    baseline: str,
    seconds: float,
    least_s: float,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any] | None:
    """Measure a champion and a baseline alternately.

    Args:
        device: device of the search; it accepts no further submissions.
        task: task that the device was started with.
        champion: champion trial.
        baseline: name of a correct baseline.
        seconds: time limit for all rounds; the number of rounds depends on the rounds after the first.
        least_s: time limit for the minimum number of rounds, if longer; a round of a large problem takes a second.
        stopped: returns whether the user wants to stop.
        clock: returns seconds, from any origin.

    Returns:
        JSON values to store: `rounds`, the champion's `time_us`, the `baseline` with its `time_us`, and the baseline's
        time divided by the champion's as `ratio` with `ratio_ci95`. None if there was no time for four rounds.

    Raises:
        DeviceError: a result was wrong, or a candidate crashed, hung or failed to compile.
    """
    began = clock()
    measure = device.rounds(task, [champion.config, baseline])
    taken: list[Sequence[Sequence[float]]] = []
    round_s = math.inf  # shortest round
    while len(taken) < ROUNDS and not stopped():
        now, wanted = clock(), max(len(taken) + 1, LEAST_ROUNDS)  # do not start rounds if four do not fit
        room_s = max(seconds, least_s) if wanted == LEAST_ROUNDS else seconds
        # The first round includes one-off work: compilers finish their jobs, a worker compiles the baseline and creates
        # buffers. So its length alone cannot rule out four rounds while half of the time is left.
        left_s = (wanted - len(taken)) * round_s
        if len(taken) == 1:
            left_s = min(left_s, room_s / 2)
        if taken and now - began + left_s > room_s:
            break
        taken.append(measure(range(2), SAMPLES))
        round_s = min(round_s, clock() - now)
    if len(taken) < LEAST_ROUNDS:
        return None
    played = iter(taken)
    own, other = effects(lambda alive, samples: next(played), 2, rounds=len(taken), samples=SAMPLES)
    return {
        "rounds": len(taken),
        "time_us": own.time_us,
        "baseline": {"name": baseline, "time_us": other.time_us},
        "ratio": other.ratio,
        "ratio_ci95": list(other.ratio_ci95),
    }
