"""What the sampler sees of a study, as arrays: rows, values, failures, what is pending.

Reading a finished trial again would cost more than the model, so the leading run of finished trials is kept as arrays;
a study's finished trials never change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from optuna import Study
from optuna.trial import FrozenTrial, TrialState

from evokern.samplers._base import PROPOSAL_ATTR
from evokern.samplers.evo._features import Floats
from evokern.samplers.evo._genome import Genome, Keys, Rows

OPERATORS: Final = ("neighbour", "mutation", "crossover", "immigrant", "prior", "default", "cover")
"""What makes a proposal: change of one gene, of a few, a mix of two elites, a draw from the whole space; or, in the
first generation, a warm start, the default candidate, values not yet shown."""


@dataclass(frozen=True)
class Observations:
    """Every trial before the one that is proposed, in number order."""

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
    prints: npt.NDArray[np.int64]
    """A number per distinct fingerprint; -1 where none is known."""
    operators: npt.NDArray[np.int8]
    """Position in `OPERATORS`; -1 where another sampler proposed."""
    roots: npt.NDArray[np.intp]
    """Number of the first trial of the excursion that each belongs to; -1 where it belongs to none."""
    slots: npt.NDArray[np.int16]
    """The excursion's slot; -1 where there is none."""
    held: npt.NDArray[np.int16]
    """Position of the gene that the excursion holds; -1 where there is none."""

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

    def before(self, number: int, latest_result: int) -> Observations:
        """Return what was known before trial `number`, when results up to trial `latest_result` were visible."""
        there = self.numbers < number
        told = self.numbers[there] <= latest_result
        return Observations(
            self.numbers[there],
            self.rows[there],
            self.keys[there],
            np.where(told, self.values[there], np.nan),
            self.finished[there] & told,
            np.where(told, self.prints[there], -1),
            self.operators[there],
            self.roots[there],
            self.slots[there],
            self.held[there],
        )


class Ledger:
    """Reads studies, remembering the finished trials of the latest one."""

    def __init__(self, genome: Genome) -> None:
        self._genome = genome
        self._study: tuple[int, int] | None = None
        self._codes: dict[str, int] = {}
        self._done = self._arrays([])
        self._read = 0

    def read(self, study: Study, number: int) -> Observations:
        """Return every trial of a study before trial `number` that has its parameters."""
        identity = (id(study._storage), study._study_id)
        if identity != self._study:
            self._study, self._codes, self._done, self._read = identity, {}, self._arrays([]), 0
        trials = study.get_trials(deepcopy=False)
        end = self._read
        while end < len(trials) and trials[end].state.is_finished():
            end += 1
        if end > self._read:
            fresh = [trial for trial in trials[self._read : end] if trial.params]
            self._done = _joined(self._done, self._arrays(fresh))
            self._read = end
        rest = [trial for trial in trials[end:] if trial.params and trial.number != number]
        return _joined(self._done, self._arrays(rest))

    def _arrays(self, trials: list[FrozenTrial]) -> Observations:
        rows = self._genome.rows(trial.params for trial in trials)
        made = [trial.system_attrs.get(PROPOSAL_ATTR, {}) for trial in trials]
        position = {gene.name: index for index, gene in enumerate(self._genome.genes)}
        return Observations(
            np.array([trial.number for trial in trials], dtype=np.intp),
            rows,
            self._genome.keys(rows),
            np.array([_value(trial) for trial in trials], dtype=float),
            np.array([trial.state.is_finished() for trial in trials], dtype=bool),
            np.array([self._code(trial.user_attrs.get("fingerprint")) for trial in trials], dtype=np.int64),
            np.array([_operator(proposal) for proposal in made], dtype=np.int8),
            np.array([proposal.get("root", -1) for proposal in made], dtype=np.intp),
            np.array([proposal.get("slot", -1) for proposal in made], dtype=np.int16),
            np.array([position.get(proposal.get("held"), -1) for proposal in made], dtype=np.int16),
        )

    def _code(self, fingerprint: str | None) -> int:
        return -1 if fingerprint is None else self._codes.setdefault(fingerprint, len(self._codes))


def _joined(one: Observations, other: Observations) -> Observations:
    def both(name: str) -> Any:
        return np.concatenate([getattr(one, name), getattr(other, name)])

    return Observations(*(both(name) for name in Observations.__dataclass_fields__))


def _operator(proposal: dict[str, Any]) -> int:
    name = proposal.get("operator")
    return OPERATORS.index(name) if name in OPERATORS else -1


def _value(trial: FrozenTrial) -> float:
    if trial.state is TrialState.COMPLETE and trial.values:
        return float(trial.values[0])
    if trial.state is TrialState.PRUNED and trial.intermediate_values:
        # A slow candidate: what was seen before racing stopped it.
        return float(trial.intermediate_values[max(trial.intermediate_values)])
    return float("nan")
