"""Writer of trials: stores a session's proposals, results and duration in evokern's and Optuna's tables.

A trial is stored before it is evaluated. Its outcome is stored in evokern's table at once, and in Optuna's table when
all earlier trials have ended. After an interruption, Optuna's table can therefore be incomplete; resuming completes it.
"""

from __future__ import annotations

import os
import socket
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evokern.declaration.space import Space
from evokern.device.contract import StartReport
from evokern.errors import StoreError
from evokern.measurement.roofline import Rates
from evokern.samplers import TrialResult
from evokern.store._files import explain_errors
from evokern.store._integrity import (
    change_rows,
    convert_row,
    damaged_row_error,
    is_intact,
    require_intact,
    select,
    write_row,
)
from evokern.store._lock import WrittenFile, update_row
from evokern.store._proofs import HEAD_TO_HEAD, NEIGHBOURS, REMEASURED, ProofRecord, insert_proof, now
from evokern.store.records import (
    SessionRecord,
    StudyRecord,
    dumps,
    evaluation_row,
    fastest_baseline,
    proposal_of,
    sample_rows,
    trial_of,
)
from evokern.study.trial import Proposal, Trial
from evokern.version import __version__


class Session:
    """One session of a search on one study; every change is committed to disk immediately."""

    def __init__(self, store: WrittenFile, study: StudyRecord, space: Space) -> None:
        from evokern.store._optuna import OptunaStudy  # slow import, see `WrittenFile._open`

        self._store = store
        self._db = store.db
        self.study = study
        """Record of the study."""
        self.db = store.path
        """Path of the database."""
        self.uuid = str(uuid.uuid4())
        """Identity of this session."""
        self._trials: dict[int, str] = {}
        self.of_earlier_code: set[int] = set()
        """Trials that ran other kernel code than the study's current code, after `recorded_trials`."""
        with store.transaction():
            row = {"uuid": self.uuid, "study": study.uuid, "started": now(), "elapsed_s": 0.0, "pid": os.getpid()}
            row |= {"host": socket.gethostname(), "command": _command(), "evokern_version": __version__}
            write_row(self._db, "evokern_sessions", row)
            attrs = {"evokern_uuid": study.uuid, "kernel": study.kernel, "device": study.device}
            self._optuna = OptunaStudy(self._db, study.name, attrs, space)
            total = "SELECT coalesce(sum(elapsed_s), 0) FROM evokern_sessions WHERE study = ?"
            self.before_s = float(self._db.execute(total, [study.uuid]).fetchone()[0])
            """Total duration of all earlier sessions, in seconds."""

    def recorded_trials(self) -> tuple[list[Proposal], list[Trial]]:
        """Return all proposals of earlier sessions by trial number, and their recorded trials without samples.

        If a proposal has no recorded trial, its evaluation was interrupted.

        Raises:
            StoreError: if a trial is damaged or missing.
        """
        proposals: list[Proposal] = []
        trials: list[Trial] = []
        path, table = self._store.path, "evokern_trials"
        with explain_errors(path):
            for row in select(self._db, table, order="study, number"):
                if not is_intact(row):  # also for other studies, because damage can change a row's study
                    raise damaged_row_error(path, table, row, "its content changed on disk and the search would use it")
                if row["study"] != self.study.uuid:
                    continue
                if row["number"] != len(proposals):
                    missing = f"trial {len(proposals)} of study {self.study.name} is missing"
                    raise StoreError(f"{path} is damaged: {missing}; restore a backup or choose another file with --db")
                self._trials[row["number"]] = row["uuid"]
                if row["kernel_digest"] != self.study.kernel_digest:
                    self.of_earlier_code.add(row["number"])
                proposals.append(convert_row(path, table, row, proposal_of))
                if row["outcome"]:
                    trials.append(convert_row(path, table, row, trial_of))
        return proposals, trials

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Return a context that commits all changes or none; after an error, only `ended` may be called."""
        with self._store.transaction():
            yield

    def complete_optuna_rows(self, proposals: Sequence[Proposal], results: Sequence[TrialResult]) -> None:
        """Add the rows that are missing from Optuna's tables because of an interruption.

        Args:
            proposals: all proposals from `recorded_trials`.
            results: results of the recorded trials before the first unrecorded trial.
        """
        with self.transaction():
            self._optuna.resume()
            for number, proposal in enumerate(proposals):
                self._optuna.begin(number, proposal.config, control=proposal.control)
            for result in results:
                self._optuna.tell(result)

    def write_start_report(self, report: StartReport) -> None:
        """Write the start report of the device."""
        fastest = fastest_baseline(report.baselines)
        values = {
            "environment": dumps(report.environment),
            "baselines": dumps([asdict(baseline) for baseline in report.baselines]),
            "notes": dumps(report.notes),
            "baseline_us": fastest[1] if fastest else None,
        }
        with self.transaction():
            self._update("evokern_sessions", self.uuid, values)

    def write_rates(self, rates: Rates) -> None:
        """Add the measured copy and compute rates of the device to the session's stored environment."""
        changes = "environment = json_set(coalesce(environment, '{}'), '$.rates', json(?))"
        with self.transaction():
            self._change_session(changes, dumps(asdict(rates)))

    def propose(self, number: int, proposal: Proposal, elapsed_s: float) -> None:
        """Write a proposal to evokern's and Optuna's tables before its evaluation.

        Args:
            number: trial number.
            proposal: the proposal.
            elapsed_s: time since the start of this session, in seconds.
        """
        trial = str(uuid.uuid4())
        values = {
            "uuid": trial,
            "study": self.study.uuid,
            "number": number,
            "config": proposal.config.key,
            "proposal": dumps(proposal.info),
            "leavings": dumps(proposal.sampler_state),
            "rejections": dumps(proposal.rejections),
            "control": int(proposal.control),
            "kernel_digest": self.study.kernel_digest,
            "session": self.uuid,
            "proposed_s": self.before_s + elapsed_s,
        }
        with self.transaction():
            write_row(self._db, "evokern_trials", values)
            for name, count in proposal.rejections.items():
                self._reject(name, count)
            self._optuna.begin(number, proposal.config, control=proposal.control)
        self._trials[number] = trial

    def record(self, trial: Trial, elapsed_s: float) -> None:
        """Write the outcome and the evidence of a trial.

        Args:
            trial: the finished trial.
            elapsed_s: time since the start of this session, in seconds.
        """
        values = evaluation_row(trial.evaluation) | {"seconds": trial.seconds, "session": self.uuid}
        samples = sample_rows(self._trials[trial.number], trial.evaluation)
        with self.transaction():
            self._update("evokern_trials", self._trials[trial.number], values)
            for uuid_, problem, samples_us in samples:
                row = {"trial": uuid_, "problem": problem, "samples_us": samples_us}
                write_row(self._db, "evokern_samples", row, replace=True)
            self._elapsed(elapsed_s)

    def annotate(self, trials: Sequence[Trial]) -> None:
        """Update the evidence of recorded trials; Optuna's tables stay the same, because the results do not change.

        Args:
            trials: recorded trials with all their evidence.
        """
        with self.transaction():
            for trial in trials:
                values = {"evidence": dumps(trial.evaluation.evidence), "reason": trial.evaluation.reason}
                self._update("evokern_trials", self._trials[trial.number], values)

    def write_verification(self, trial: int, result: Mapping[str, Any]) -> None:
        """Write the result of a trial's verification."""
        with self.transaction():
            insert_proof(self._db, self.study, "verify", trial, result)

    def write_head_to_head(self, trial: int, result: Mapping[str, Any]) -> None:
        """Write the head-to-head times of a trial and a baseline."""
        with self.transaction():
            insert_proof(self._db, self.study, HEAD_TO_HEAD, trial, result)

    def remeasured(self, found: Mapping[int, Mapping[str, Any]]) -> None:
        """Write the results of trials that another GPU measured again, by trial number."""
        with self.transaction():
            for trial, result in found.items():
                insert_proof(self._db, self.study, REMEASURED, trial, result)

    def write_infeasible_neighbours(self, trial: int, infeasible: Sequence[Mapping[str, Any]]) -> None:
        """Write the infeasible one-gene changes of a champion."""
        with self.transaction():
            insert_proof(self._db, self.study, NEIGHBOURS, trial, {"infeasible": list(infeasible)})

    def write_unfinished_verification(self, trial: int, why: str) -> None:
        """Write the reason why a verification ended without a result."""
        with self.transaction():
            insert_proof(self._db, self.study, "undone", trial, {"why": why})

    def proofs(self) -> list[ProofRecord]:
        """Return the verifications of this study, oldest first."""
        return self._proofs("verify")

    def verification_stopped(self, trial: int) -> str:
        """Return why a trial's latest verification has no result; empty if it has a result or never ran."""
        if any(proof.trial == trial for proof in self.proofs()):
            return ""
        undone = [proof for proof in self._proofs("undone") if proof.trial == trial]
        return str(undone[-1].result["why"]) if undone else ""

    def _proofs(self, kind: str) -> list[ProofRecord]:
        with explain_errors(self._store.path):
            where, table = "study = ? AND kind = ?", "evokern_proofs"
            rows = require_intact(self._db, self._store.path, table, where, [self.study.uuid, kind])
            return [convert_row(self._store.path, table, row, ProofRecord.of) for row in rows]

    def first_environment(self, key: str) -> Any:
        """Return the environment value with a key from the first session of this study that has it, or None."""
        with explain_errors(self._store.path):
            table = "evokern_sessions"
            rows = require_intact(self._db, self._store.path, table, "study = ?", [self.study.uuid])
            sessions = [convert_row(self._store.path, table, row, SessionRecord.of) for row in rows]
            sessions.sort(key=lambda session: session.started)
            return next((one.environment[key] for one in sessions if key in one.environment), None)

    def write_result(self, result: TrialResult) -> None:
        """Write the result of a recorded trial to Optuna's tables."""
        with self.transaction():
            self._optuna.tell(result)

    def record_duration(self, elapsed_s: float) -> None:
        """Write the current duration of this session."""
        with self.transaction():
            self._elapsed(elapsed_s)

    def _elapsed(self, elapsed_s: float) -> None:
        self._change_session("elapsed_s = ?", elapsed_s)

    def _reject(self, constraint: str, count: int) -> None:
        """Increase the number of proposals rejected by a constraint."""
        table, values = "evokern_rejections", {"study": self.study.uuid, "constraint_name": constraint}
        where = "study = ? AND constraint_name = ?"
        before = require_intact(self._db, self._store.path, table, where, list(values.values()))
        total = count + (before[0]["count"] if before else 0)
        write_row(self._db, table, {**values, "count": total}, replace=True)

    def _update(self, table: str, key: str, values: Mapping[str, Any]) -> None:
        update_row(self._db, self._store.path, table, key, values)

    def _change_session(self, changes: str, value: object) -> None:
        change_rows(self._db, self._store.path, "evokern_sessions", "uuid = ?", changes, [value, self.uuid])

    def ended(self, elapsed_s: float, reason: str) -> None:
        """Record the end of this session, and mark running trials in Optuna's tables as waiting."""
        with self.transaction():
            running = self._optuna.running()
            recorded = f"study = ? AND outcome IS NOT NULL AND number IN ({', '.join(map(str, running))})"
            rows = self._db["evokern_trials"].rows_where(recorded, [self.study.uuid], "number")
            self._optuna.suspend(TrialResult.of(trial_of(row)) for row in rows)
            self._elapsed(elapsed_s)
            self._update("evokern_sessions", self.uuid, {"ended": now(), "end_reason": reason})


def _command() -> str:
    words = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return words.encode(errors="backslashreplace").decode()  # a path need not be UTF-8
