"""A search of the time model, before anything runs on the GPU: what `--warm-start sim` begins with.

Candidates that a few genes must agree on are rare among random ones. So the model's candidates are not drawn: `evo`
searches the model as it would search a device, and what it looked at on the way, good and bad, is the prior.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from evokern.samplers import History, Result, make_sampler
from evokern.space import Config, Space
from evokern.trial import Outcome


class Model(Protocol):
    """Predicts candidates, several at a time."""

    def submit(self, key: int, config: Config) -> None:
        """Accept one candidate."""

    def poll(self) -> Mapping[int, float | None]:
        """Return the predicted times that are ready, in µs, by key; None where a candidate cannot run."""


def search_model(space: Space, model: Model, count: int, window: int, seed: int) -> list[tuple[Config, float]]:
    """Return the candidates that a search of the model looked at and their log(time in µs), in the order proposed.

    Args:
        space: genes with feasibility bound.
        model: predicts them.
        count: candidates to look at, those that cannot run too; fewer where the space has fewer.
        window: candidates in flight.
        seed: of the proposals.
    """
    sampler, history = make_sampler("evo", space, {}, seed, window), History(space)
    times: dict[int, float | None] = {}
    proposed, told = 0, 0
    while told < count:
        if proposed < min(count, told + window):
            if sampler.propose(history, proposed) is None:
                count = proposed
            else:
                model.submit(proposed, history.pending[proposed])
                proposed += 1
            continue
        while told not in times:
            times.update(model.poll())
        history.tell(_result(told, history.pending[told], times[told]))
        told += 1
    return [(result.config, result.value) for result in history.results if result.value is not None]


def _result(number: int, config: Config, time_us: float | None) -> Result:
    if time_us is None:
        return Result(number, config, Outcome.CRASHED)
    return Result(number, config, Outcome.MEASURED, math.log(time_us))
