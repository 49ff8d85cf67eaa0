"""What the sampler sees of a study, as arrays: rows, values, failures, what is pending.

Reading a finished trial again would cost more than the model, so rows and results are remembered by trial number; a
study's finished trials never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna import Study
from optuna.trial import FrozenTrial, TrialState

from evokern.samplers._base import PROPOSAL_ATTR
from evokern.samplers.evo._features import Floats
from evokern.samplers.evo._genome import Genome, Keys, Rows


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
    fingerprints: tuple[str | None, ...]
    """Identity of machine code and launch, where known."""
    proposals: tuple[Mapping[str, Any], ...]
    """What the sampler left with each trial."""

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
            tuple(self.fingerprints[i] if told[at] else None for at, i in enumerate(np.flatnonzero(there))),
            tuple(self.proposals[i] for i in np.flatnonzero(there)),
        )


@dataclass(frozen=True)
class _Seen:
    row: list[int]
    finished: bool
    value: float
    fingerprint: str | None
    proposal: Mapping[str, Any]


class Ledger:
    """Reads studies, remembering the finished trials of the latest one."""

    def __init__(self, genome: Genome) -> None:
        self._genome = genome
        self._study: tuple[int, int] | None = None
        self._seen: dict[int, _Seen] = {}

    def read(self, study: Study, number: int) -> Observations:
        """Return every trial of a study before trial `number` that has its parameters."""
        identity = (id(study._storage), study._study_id)
        if identity != self._study:
            self._study, self._seen = identity, {}
        entries: list[tuple[int, _Seen]] = []
        for trial in study.get_trials(deepcopy=False):
            if trial.number == number or not trial.params:
                continue
            seen = self._seen.get(trial.number)
            if seen is None or not seen.finished:
                seen = self._seen[trial.number] = self._look(trial, seen)
            entries.append((trial.number, seen))
        rows = np.array([seen.row for _, seen in entries], dtype=np.int16).reshape(-1, len(self._genome))
        return Observations(
            np.array([n for n, _ in entries], dtype=np.intp),
            rows,
            self._genome.keys(rows),
            np.array([seen.value for _, seen in entries], dtype=float),
            np.array([seen.finished for _, seen in entries], dtype=bool),
            tuple(seen.fingerprint for _, seen in entries),
            tuple(seen.proposal for _, seen in entries),
        )

    def _look(self, trial: FrozenTrial, before: _Seen | None) -> _Seen:
        row = before.row if before else self._genome.row(trial.params)
        return _Seen(
            row,
            trial.state.is_finished(),
            _value(trial),
            trial.user_attrs.get("fingerprint"),
            trial.system_attrs.get(PROPOSAL_ATTR, {}),
        )


def _value(trial: FrozenTrial) -> float:
    if trial.state is TrialState.COMPLETE and trial.values:
        return float(trial.values[0])
    if trial.state is TrialState.PRUNED and trial.intermediate_values:
        # A slow candidate: what was seen before racing stopped it.
        return float(trial.intermediate_values[max(trial.intermediate_values)])
    return float("nan")
