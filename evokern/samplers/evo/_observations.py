"""What the sampler sees of a history, as arrays: rows, values, failures, what is pending.

Reading a finished trial again would cost more than the model, so finished trials, which never change, are kept as
arrays.

A trial that was lost counts as pending until the next generation begins, as it did when the one under way did; then it
is as if it had not been. One whose configuration may not be proposed again stays pending.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evokern.samplers.contract import History, TrialResult
from evokern.samplers.evo._features import Floats
from evokern.samplers.evo.genome import Genome, Keys, Rows
from evokern.study.trial import Proposal

OPERATORS: Final = ("neighbour", "mutation", "crossover", "immigrant", "prior", "default", "cover")
"""What makes a proposal: change of one gene, of a few, a mix of two elites, a draw from the whole space; or, in the
first generation, a warm start, the default candidate, values not yet shown."""


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
    """log(time) where one was seen, else NaN."""
    finished: npt.NDArray[np.bool_]
    """Whether the result is visible; the others are pending."""
    fingerprints: npt.NDArray[np.int64]
    """A number per distinct fingerprint; -1 where none is known."""
    operators: npt.NDArray[np.int8]
    """Position in `OPERATORS`; -1 where another sampler proposed."""
    roots: npt.NDArray[np.intp]
    """Number of the first trial of the niche restart that each belongs to; -1 where it belongs to none."""
    slots: npt.NDArray[np.int16]
    """The niche restart's slot; -1 where there is none."""
    held: npt.NDArray[np.int16]
    """Position of the gene that the niche restart holds; -1 where there is none."""
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

    def stuck(self, progress: float, patience: int, share: int) -> bool:
        """Tell whether the best time, give or take `progress` in log(time), was reached long ago.

        Args:
            progress: difference in log(time) from which a better time counts as progress.
            patience: least number of trials without progress.
            share: where it is more, the trials so far over this.
        """
        if not self.timed.any():
            return False
        latest = int(self.numbers[self.finished][-1])
        reached = self.timed & (np.nan_to_num(self.values, nan=np.inf) <= np.nanmin(self.values) + progress)
        return latest - int(self.numbers[np.argmax(reached)]) >= max(patience, latest // share)

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
            self.roots[there],
            self.slots[there],
            self.held[there],
            self.lost[there] & visible,
        )


class Ledger:
    """Reads histories, remembering the finished trials of the latest one."""

    def __init__(self, genome: Genome) -> None:
        self._genome = genome
        self._history: History | None = None
        self._codes: dict[str, int] = {}
        self._done = self._arrays(range(0), [], {})
        self._taken = 0

    def read(self, history: History) -> Observations:
        """Return every trial of a history."""
        if history is not self._history:
            self._history, self._codes, self._done, self._taken = history, {}, self._arrays(range(0), [], {}), 0
        begin, end = len(self._done), history.told
        if end > begin:
            results = {result.number: result for result in history.results[self._taken :]}
            self._taken = len(history.results)
            fresh = self._arrays(range(begin, end), history.proposals[begin:end], results, history.lost)
            self._done = _joined(self._done, fresh)
        pending = range(end, len(history.proposals))
        return _joined(self._done, self._arrays(pending, history.proposals[end:], {}))

    def _arrays(
        self,
        numbers: range,
        proposals: Sequence[Proposal],
        results: Mapping[int, TrialResult],
        lost: Mapping[int, bool] = MappingProxyType({}),
    ) -> Observations:
        """Return some trials in number order: those without a result are pending, or were lost."""
        rows = self._genome.rows(proposal.config for proposal in proposals)
        made = [proposal.info for proposal in proposals]
        position = {gene.name: index for index, gene in enumerate(self._genome.genes)}
        found = [results.get(number) for number in numbers]
        values = [math.nan if one is None or one.value is None else one.value for one in found]
        codes = [-1 if one is None else self._code(one.fingerprint) for one in found]
        return Observations(
            np.array(numbers, dtype=np.intp),
            rows,
            self._genome.keys(rows),
            np.array(values, dtype=float),
            np.array([one is not None for one in found], dtype=bool),
            np.array(codes, dtype=np.int64),
            np.array([_operator(info) for info in made], dtype=np.int8),
            np.array([info.get("root", -1) for info in made], dtype=np.intp),
            np.array([info.get("slot", -1) for info in made], dtype=np.int16),
            np.array([position.get(info.get("held", ""), -1) for info in made], dtype=np.int16),
            np.array([lost.get(number, False) for number in numbers], dtype=bool),
        )

    def _code(self, fingerprint: str | None) -> int:
        return -1 if fingerprint is None else self._codes.setdefault(fingerprint, len(self._codes))


def _joined(one: Observations, other: Observations) -> Observations:
    def both(name: str) -> Any:
        return np.concatenate([getattr(one, name), getattr(other, name)])

    return Observations(*(both(name) for name in Observations.__dataclass_fields__))


def _operator(info: Mapping[str, Any]) -> int:
    name = info.get("operator")
    return OPERATORS.index(name) if name in OPERATORS else -1
