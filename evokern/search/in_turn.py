"""The champion against its baseline, measured in turn at the end of a search.

A baseline is measured when a session starts, on a GPU that has idled; candidates are measured on one that has worked.
Where power or heat sets the clock, as in long products, the ratio of the two is not what a user sees. So both are
sampled in turn, in rounds as a playoff has them (`evokern.measurement.playoff`): whatever drifts does so for both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from evokern.device import Task
from evokern.device.contract import Interleaving
from evokern.measurement.playoff import effects
from evokern.study.trial import Trial

ROUNDS = 8
"""Rounds at most."""
LEAST_ROUNDS = 4
"""Rounds of which an interval can still be told."""
SAMPLES = 7
"""Samples of each in a round."""


def against_baseline(
    device: Interleaving,
    task: Task,
    champion: Trial,
    baseline: str,
    seconds: float,
    least_s: float,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any] | None:
    """Measure a champion and a baseline in turn.

    Args:
        device: where; nothing can be submitted to it after.
        task: what it was started with.
        champion: the trial.
        baseline: name of one that was right.
        seconds: time for all rounds. Those from the second on tell how many there are.
        least_s: time for the four without which nothing is told, where that is longer: at a large problem a round takes
            a second.
        stopped: whether the user wants an end.
        clock: seconds, from any origin.

    Returns:
        What is kept of it, JSON values: `rounds`, the champion's `time_us`, the `baseline` with its `time_us`, and its
        time over the champion's as `ratio` with `ratio_ci95`. None where there was no time for four rounds.

    Raises:
        DeviceError: one of them was wrong, crashed or hung, or does not compile any more.
    """
    began = clock()
    measure = device.rounds(task, [champion.config, baseline])
    taken: list[Sequence[Sequence[float]]] = []
    round_s = math.inf  # of the shortest
    while len(taken) < ROUNDS and not stopped():
        now, wanted = clock(), max(len(taken) + 1, LEAST_ROUNDS)  # none is begun that leads to fewer
        room_s = max(seconds, least_s) if wanted == LEAST_ROUNDS else seconds
        # The first one also has what comes once: compilers end what they have at hand, a worker compiles the baseline,
        # buffers are made. So its length alone does not tell that four do not fit, while half of the time is left.
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
