"""Histories as arrays: rows, values, failures and pending trials.

A lost trial counts as pending until the next generation, as it did when the current generation started. After that it
is ignored, unless its configuration may not be proposed again: then it stays pending.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evokern.samplers.contract import History
from evokern.samplers.evo._features import Floats
from evokern.samplers.genome import Genome, Keys, Rows
from evokern.study.trial import Outcome, Proposal

OPERATORS: Final = ("neighbour", "mutation", "crossover", "immigrant", "prior", "default", "cover", "starting_point")
"""Origins of proposals: change of one gene, change of several genes, mix of two elites, draw from the whole space. The
others occur in the first generation: warm start, default candidate, uncertain row, starting point of the kernel."""


STAGES: Final = {
    Outcome.COMPILE_ERROR: 0,
    Outcome.INFEASIBLE: 1,
    Outcome.OVER_RESOURCES: 1,
    Outcome.CRASHED: 2,
    Outcome.HUNG: 2,
    Outcome.WRONG: 3,
}
"""Stage at which a candidate failed: a later stage requires all earlier ones."""
PASSED: Final = 4
"""Stage of a candidate that did not fail."""


@dataclass(frozen=True)
class Observations:
    """All trials before the next proposal in number order: finished trials, then pending trials."""

    numbers: npt.NDArray[np.intp]
    """Trial numbers."""
    rows: Rows
    """Configurations."""
    keys: Keys
    """Keys of the configurations."""
    values: Floats
    """log(time) or NaN. For a slow trial it is partial, and at least the time that the trial raced against."""
    finished: npt.NDArray[np.bool_]
    """Mask of trials with a visible result; the others are pending."""
    fingerprints: npt.NDArray[np.int64]
    """Number per distinct fingerprint; -1 if unknown."""
    operators: npt.NDArray[np.int8]
    """Index in `OPERATORS`; -1 for proposals of another sampler."""
    slow: npt.NDArray[np.bool_]
    """Mask of trials stopped by racing; their times exceed the best that was visible when they were proposed."""
    lost: npt.NDArray[np.bool_]
    """Mask of trials known to be lost whose configuration may be proposed again."""
    stages: npt.NDArray[np.int8]
    """Stage that each finished trial reached, from `STAGES` or `PASSED`; -1 for pending trials."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def timed(self) -> npt.NDArray[np.bool_]:
        """Mask of trials with a time."""
        return ~np.isnan(self.values)

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Mask of trials that ended without a time: wrong, crashed, hung, or rejected by the compiler."""
        return self.finished & np.isnan(self.values)

    @property
    def best_first(self) -> npt.NDArray[np.intp]:
        """Indices of trials with a time, best first."""
        order = np.argsort(np.where(self.timed, self.values, np.inf), kind="stable")
        return order[: int(self.timed.sum())]

    def without_lost(self) -> Observations:
        """Return the observations without lost trials."""
        return self if not self.lost.any() else self.before(int(self.numbers[-1]) + 1, int(self.numbers[-1]))

    def before(self, number: int, latest_result: int) -> Observations:
        """Return the observations before trial `number`, with results up to trial `latest_result`."""
        there = (self.numbers < number) & ~(self.lost & (self.numbers <= latest_result))
        visible = self.numbers[there] <= latest_result
        return Observations(
            self.numbers[there],
            self.rows[there],
            self.keys[there],
            np.where(visible, self.values[there], np.nan),
            self.finished[there] & visible,
            np.where(visible, self.fingerprints[there], -1),
            self.operators[there],
            self.slow[there] & visible,
            self.lost[there] & visible,
            np.where(visible, self.stages[there], np.int8(-1)),
        )


class Ledger:
    """Cached conversion of histories to observations.

    Each proposal and result is read once. With 384 trials in flight, reading all trials for each proposal took a third
    of the search's own time.
    """

    def __init__(self, genome: Genome, in_flight: Callable[[int], int] = lambda number: 1) -> None:
        self._genome = genome
        self._in_flight = in_flight
        self._history: History | None = None
        self._forget()

    def _forget(self) -> None:
        self._codes: dict[str, int] = {}
        self._seen = self._proposed(range(0), [])
        self._results_seen = 0
        self._taken = 0

    def read(self, history: History) -> Observations:
        """Return all trials of a history."""
        if history is not self._history:
            self._history = history
            self._forget()
        begin, end = len(self._seen), len(history.proposals)
        if end > begin:
            self._seen = _joined(self._seen, self._proposed(range(begin, end), history.proposals[begin:]))
        if history.results_seen > self._results_seen:
            self._seen = self._with_results(history)
            self._results_seen, self._taken = history.results_seen, len(history.results)
        return self._seen

    def with_pending(self, seen: Observations, number: int, proposal: Proposal) -> Observations:
        """Return observations with one additional pending trial."""
        return _joined(seen, self._proposed(range(number, number + 1), [proposal]))

    def _proposed(self, numbers: range, proposals: Sequence[Proposal]) -> Observations:
        """Return trials without results, in number order."""
        rows = self._genome.rows(proposal.config for proposal in proposals)
        count = len(rows)
        return Observations(
            np.array(numbers, dtype=np.intp),
            rows,
            self._genome.keys(rows),
            np.full(count, np.nan),
            np.zeros(count, dtype=bool),
            np.full(count, -1, dtype=np.int64),
            np.array([_operator(proposal.info) for proposal in proposals], dtype=np.int8),
            np.zeros(count, dtype=bool),
            np.zeros(count, dtype=bool),
            np.full(count, -1, dtype=np.int8),
        )

    def _with_results(self, history: History) -> Observations:
        """Return observations with the new results, as new arrays.

        The time of a slow trial is raised to the time it raced against if its partial time is shorter. With several
        problems, the partial time may cover only the short ones.
        """
        old = self._seen
        values, codes = old.values.copy(), old.fingerprints.copy()
        finished, slow, lost, stages = old.finished.copy(), old.slow.copy(), old.lost.copy(), old.stages.copy()
        for result in history.results[self._taken :]:
            at = result.number
            values[at] = math.nan if result.value is None else result.value
            finished[at] = True
            codes[at] = self._code(result.fingerprint)
            slow[at] = result.outcome is Outcome.SLOW
            stages[at] = STAGES.get(result.outcome, PASSED)
        for at in range(self._results_seen, history.results_seen):
            lost[at] = history.lost.get(at, False)
        for late in (
            np.flatnonzero(slow[self._results_seen :] & ~np.isnan(values[self._results_seen :])) + self._results_seen
        ):
            raced = ~np.isnan(values) & ~slow & (old.numbers <= late - self._in_flight(int(late)))
            if raced.any():
                values[late] = max(values[late], values[raced].min())
        return replace(old, values=values, finished=finished, fingerprints=codes, slow=slow, lost=lost, stages=stages)

    def _code(self, fingerprint: str | None) -> int:
        return -1 if fingerprint is None else self._codes.setdefault(fingerprint, len(self._codes))


def _joined(one: Observations, other: Observations) -> Observations:
    def both(name: str) -> Any:
        return np.concatenate([getattr(one, name), getattr(other, name)])

    return Observations(*(both(name) for name in Observations.__dataclass_fields__))


def _operator(info: Mapping[str, Any]) -> int:
    name = info.get("operator")
    return OPERATORS.index(name) if name in OPERATORS else -1
