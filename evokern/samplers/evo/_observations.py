"""What the sampler sees of a history, as arrays: rows, values, failures, what is pending.

A trial that was lost counts as pending until the next generation begins, as it did when the one under way did; then it
is as if it had not been. One whose configuration may not be proposed again stays pending.
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
"""What makes a proposal: change of one gene, of a few, a mix of two elites, a draw from the whole space; or, in the
first generation, a warm start, the default candidate, values not yet shown, a starting point of the kernel's."""


@dataclass(frozen=True)
class Observations:
    """Every trial before the one that is proposed, in number order: finished ones, then pending ones."""

    numbers: npt.NDArray[np.intp]
    """Trial numbers."""
    rows: Rows
    """Their configurations."""
    keys: Keys
    """Their keys."""
    values: Floats
    """log(time) where one was seen, else NaN; of a slow trial what is known: it is above what it raced against."""
    finished: npt.NDArray[np.bool_]
    """Whether the result is visible; the others are pending."""
    fingerprints: npt.NDArray[np.int64]
    """A number per distinct fingerprint; -1 where none is known."""
    operators: npt.NDArray[np.int8]
    """Position in `OPERATORS`; -1 where another sampler proposed."""
    slow: npt.NDArray[np.bool_]
    """Whether racing stopped it: its time is above that of the best trial visible when it was proposed."""
    lost: npt.NDArray[np.bool_]
    """Whether it is visible that the trial was lost, and its configuration may be proposed again."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def timed(self) -> npt.NDArray[np.bool_]:
        """Whether a time was seen."""
        return ~np.isnan(self.values)

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Whether the candidate was evaluated and gave no time: wrong, crashed, hung, refused by the compiler."""
        return self.finished & np.isnan(self.values)

    @property
    def best_first(self) -> npt.NDArray[np.intp]:
        """Positions of the trials with a time, the best first."""
        order = np.argsort(np.where(self.timed, self.values, np.inf), kind="stable")
        return order[: int(self.timed.sum())]

    def without_lost(self) -> Observations:
        """Return what is left without the trials that were lost."""
        return self if not self.lost.any() else self.before(int(self.numbers[-1]) + 1, int(self.numbers[-1]))

    def before(self, number: int, latest_result: int) -> Observations:
        """Return what was known before trial `number`, when results up to trial `latest_result` were visible."""
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
        )


class Ledger:
    """Reads histories, remembering what it read of the latest one.

    Each proposal and each result is read once: with 384 trials in flight, reading those anew for each proposal took a
    third of a search's own time.
    """

    def __init__(self, genome: Genome, in_flight: Callable[[int], int] = lambda number: 1) -> None:
        self._genome = genome
        self._in_flight = in_flight
        self._history: History | None = None
        self._forget()

    def _forget(self) -> None:
        self._codes: dict[str, int] = {}
        self._seen = self._proposed(range(0), [])
        self._told = 0
        self._taken = 0

    def read(self, history: History) -> Observations:
        """Return every trial of a history."""
        if history is not self._history:
            self._history = history
            self._forget()
        begin, end = len(self._seen), len(history.proposals)
        if end > begin:
            self._seen = _joined(self._seen, self._proposed(range(begin, end), history.proposals[begin:]))
        if history.told > self._told:
            self._seen = self._with_results(history)
            self._told, self._taken = history.told, len(history.results)
        return self._seen

    def with_pending(self, seen: Observations, number: int, proposal: Proposal) -> Observations:
        """Return what was known with one more trial, of which there is no result yet."""
        return _joined(seen, self._proposed(range(number, number + 1), [proposal]))

    def _proposed(self, numbers: range, proposals: Sequence[Proposal]) -> Observations:
        """Return some trials without a result, in number order."""
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
        )

    def _with_results(self, history: History) -> Observations:
        """Return what is known with the results that were told since, in arrays of their own.

        A slow trial's time is lifted to what it raced against, where what was seen of it is less: over several problems
        it tells the time of those that it came to, which may be the short ones.
        """
        old = self._seen
        values, codes = old.values.copy(), old.fingerprints.copy()
        finished, slow, lost = old.finished.copy(), old.slow.copy(), old.lost.copy()
        for result in history.results[self._taken :]:
            at = result.number
            values[at] = math.nan if result.value is None else result.value
            finished[at] = True
            codes[at] = self._code(result.fingerprint)
            slow[at] = result.outcome is Outcome.SLOW
        for at in range(self._told, history.told):
            lost[at] = history.lost.get(at, False)
        for late in np.flatnonzero(slow[self._told :] & ~np.isnan(values[self._told :])) + self._told:
            raced = ~np.isnan(values) & ~slow & (old.numbers <= late - self._in_flight(int(late)))
            if raced.any():
                values[late] = max(values[late], values[raced].min())
        return replace(old, values=values, finished=finished, fingerprints=codes, slow=slow, lost=lost)

    def _code(self, fingerprint: str | None) -> int:
        return -1 if fingerprint is None else self._codes.setdefault(fingerprint, len(self._codes))


def _joined(one: Observations, other: Observations) -> Observations:
    def both(name: str) -> Any:
        return np.concatenate([getattr(one, name), getattr(other, name)])

    return Observations(*(both(name) for name in Observations.__dataclass_fields__))


def _operator(info: Mapping[str, Any]) -> int:
    name = info.get("operator")
    return OPERATORS.index(name) if name in OPERATORS else -1
