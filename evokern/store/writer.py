"""The one writer of a database: a search's studies, sessions and trials.

Every step is one transaction, in our tables and Optuna's, that is on disk when the call returns; `Session.transaction`
makes several steps one. A trial stands in the file before it is evaluated. Its outcome stands in our table as soon as
it is known, and in Optuna's once every trial before it is known, so an interruption can leave Optuna's half open: it
is closed on resume.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from evokern.declaration.space import Config, Space
from evokern.device.contract import StartReport
from evokern.errors import StoreError
from evokern.measurement.roofline import Rates
from evokern.samplers import Prior, TrialResult
from evokern.store._addition import now
from evokern.store._files import FOLD_S, check_place, connect, explained, fold_in, refuse_foreign, remove
from evokern.store._integrity import change_rows, damage, require_sound, required, select, sound, write_row
from evokern.store._lock import Lock, rescue
from evokern.store._proofs import ProofRecord, insert_proof
from evokern.store._schema import migrations, refuse_newer
from evokern.store.records import Row, StudyRecord, dumps, evaluation_row, proposal_of, sample_rows, trial_of
from evokern.study.trial import Proposal, Trial
from evokern.version import __version__

CHECKED_BYTES = 512 * 2**20
"""Files up to this size are checked for corruption on opening (about a second for the largest)."""


class Store:
    """A database open for writing; a context manager that folds the write-ahead log in when it closes."""

    def __init__(self, path: str | Path) -> None:
        """Open or create a database and take its lock.

        Raises:
            StoreError: the place or the file is unusable, or another search has it; nothing was changed.
        """
        self.path = Path(path)
        check_place(self.path)
        self._lock = Lock(self.path)
        self._made = self._lock.made
        self._rescued: Path | None = None
        self._folded: bool | None = None
        try:
            with explained(self.path):
                self._open()
        except BaseException:
            if self._made:
                remove(self.path)
            self._lock.release()
            raise

    def _open(self) -> None:
        # Writing needs Optuna, which takes a while to import; commands that only read do without.
        from evokern.store._optuna import quiet, refuse_other_version, require_tables

        quiet()
        refuse_foreign(self.path)
        connection = connect(self.path)
        try:
            self.db = Database(connection)
            refuse_newer(self.db, self.path)
            if self.path.stat().st_size <= CHECKED_BYTES:
                verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if verdict != "ok":
                    raise StoreError(
                        f"{self.path} is corrupt ({verdict}); restore a copy or save what can be saved with "
                        f"`sqlite3 {self.path} .recover`"
                    )
            refuse_other_version(self.db, self.path)
            migrations.apply(self.db)
            require_tables(self.db, self.path)
            fold_in(connection, 0.0)  # what a killed search, or a reader that outlasted one, left behind
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def close(self, *, failed: bool = False) -> None:
        """Fold the write-ahead log in and let go of the file; safe to call twice.

        Args:
            failed: something went wrong; a file that was made for it and holds no study is then removed again.
        """
        empty = False
        try:
            empty = failed and self._made and not self.db.execute("SELECT 1 FROM evokern_studies LIMIT 1").fetchone()
            if self._rescued is None:
                fold_in(self.db.conn, FOLD_S if self._folded is None and not failed else 0.0)
            else:
                rescue(self.db.conn, self.path, self._rescued)  # with what was written after it was noticed
            self.db.conn.close()
        except Exception:  # closing must not hide what went wrong before; the log is folded in by the next opening
            pass
        if empty:
            remove(self.path)
        self._lock.release()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all that is done inside to the disk at once, or nothing of it.

        Raises:
            StoreError: the database cannot be written; or it was removed, moved or replaced since it was opened, and
                what this connection holds was written beside it.
        """
        outermost = not self.db.conn.in_transaction
        with explained(self.path), self.db.atomic():
            yield
        if outermost and self._rescued is None and self._lock.displaced():
            with explained(self.path):
                self._rescued = rescue(self.db.conn, self.path)
            raise StoreError(
                f"{self.path} was removed, moved or replaced while it was searched; all that was found is in "
                f"{self._rescued}: put it where it should be (`mv {self._rescued} {self.path}`), and run the same "
                "command again"
            )

    def fold_in(self) -> str:
        """Write what the write-ahead log holds into the database; returns what keeps it from that, empty if nothing."""
        with explained(self.path):
            self._folded = fold_in(self.db.conn, FOLD_S)
        log = Path(f"{self.path}-wal")
        if self._folded or not log.exists():
            return ""
        return (
            f"another program reads {self.path}, so that {log.stat().st_size / 2**20:.1f} MB stay in {log} until it "
            "has ended: copy the two files together, or close it and run any command on the study"
        )

    def study(self, name: str) -> StudyRecord | None:
        """Return a study by name, or None.

        Raises:
            StoreError: its row, or that of another study, is damaged.
        """
        with explained(self.path):
            # All of them: where a name is damaged, the study would be begun anew.
            rows = require_sound(self.db, self.path, "evokern_studies")
        row = next((row for row in rows if row["name"] == name), None)
        return required(self.path, "evokern_studies", row, StudyRecord.of) if row else None

    def has_trials(self, record: StudyRecord) -> bool:
        """Tell whether anything of a study was tried."""
        with explained(self.path):
            sql = "SELECT 1 FROM evokern_trials WHERE study = ? LIMIT 1"
            return self.db.execute(sql, [record.uuid]).fetchone() is not None

    def create(self, record: StudyRecord, sources: Mapping[str, str]) -> StudyRecord:
        """Write a new study and the kernel's source files; returns it with its identity and date."""
        record = replace(record, uuid=str(uuid.uuid4()), created=now())
        with self.transaction():
            write_row(self.db, "evokern_studies", record.row())
            self._write_sources(record.kernel_digest, sources)
        return record

    def update(self, record: StudyRecord, sources: Mapping[str, str] | None = None) -> None:
        """Write what may change of a study: budget, limit, settings that its user let pass, the kernel's digest."""
        with self.transaction():
            _update(self.db, self.path, "evokern_studies", record.uuid, record.row())
            self._write_sources(record.kernel_digest, sources or {})

    def _write_sources(self, digest: str, sources: Mapping[str, str]) -> None:
        for file, text in sources.items():
            row = {"digest": digest, "file": file, "text": text}
            write_row(self.db, "evokern_sources", row, replace=True)  # which mends a damaged one

    def source(self, digest: str) -> dict[str, str]:
        """Return the kernel's files, name → text, that a digest stands for."""
        with explained(self.path):
            rows = require_sound(self.db, self.path, "evokern_sources", "digest = ?", [digest])
            return {row["file"]: row["text"] for row in rows}

    def keep_prior(self, record: StudyRecord, prior: Prior) -> None:
        """Keep the warm start that a study begins with."""
        places = [{value: index for index, value in enumerate(gene.values)} for gene in record.genes]
        entries = [
            [[place[value] for place, value in zip(places, config.values(), strict=True)], log]
            for config, log in prior.entries
        ]
        row = {"study": record.uuid, "source": prior.source, "used": dumps(prior.used), "ignored": dumps(prior.ignored)}
        with self.transaction():
            self.db.execute("DELETE FROM evokern_priors WHERE study = ?", [record.uuid])
            write_row(self.db, "evokern_priors", row | {"entries": dumps(entries)})

    def prior(self, record: StudyRecord) -> Prior | None:
        """Return the warm start that a study began with, None where it began without."""
        with explained(self.path):
            rows = require_sound(self.db, self.path, "evokern_priors", "study = ?", [record.uuid])

        def prior_of(row: Row) -> Prior:
            entries = tuple(
                (Config({g.name: g.values[i] for g, i in zip(record.genes, indices, strict=True)}), log)
                for indices, log in json.loads(row["entries"])
            )
            return Prior(entries, row["source"], tuple(json.loads(row["used"])), tuple(json.loads(row["ignored"])))

        return required(self.path, "evokern_priors", rows[0], prior_of) if rows else None

    def set_aside(self, name: str) -> str:
        """Rename a study NAME.1, or the next number that is free, here and in Optuna's tables; returns the new name."""
        with self.transaction():
            taken = {row[0] for row in self.db.execute("SELECT name FROM evokern_studies")}
            taken |= {row[0] for row in self.db.execute("SELECT study_name FROM studies")}
            number = next(n for n in range(1, len(taken) + 2) if f"{name}.{n}" not in taken)
            new = f"{name}.{number}"
            (key,) = self.db.execute("SELECT uuid FROM evokern_studies WHERE name = ?", [name]).fetchone()
            change_rows(self.db, self.path, "evokern_studies", "uuid = ?", "name = ?", [new, key])
            self.db.execute("UPDATE studies SET study_name = ? WHERE study_name = ?", [new, name])
        return new

    def killed_session(self, record: StudyRecord) -> str:
        """Return when the last session of a study began, if it did not end; empty where it did, or there is none."""
        sql = "SELECT started, ended FROM evokern_sessions WHERE study = ? ORDER BY rowid DESC LIMIT 1"
        with explained(self.path):
            row = self.db.execute(sql, [record.uuid]).fetchone()
        return str(row[0]) if row and row[1] is None else ""

    def session(self, record: StudyRecord, space: Space) -> Session:
        """Begin a session of a study."""
        return Session(self, record, space)


class Session:
    """One run of a search on one study: what it proposes, learns and lasts goes to disk at once."""

    def __init__(self, store: Store, study: StudyRecord, space: Space) -> None:
        from evokern.store._optuna import OptunaStudy  # only now: see `Store._open`

        self._store = store
        self._db = store.db
        self.study = study
        """The study."""
        self.uuid = str(uuid.uuid4())
        """Identity of this session."""
        self._trials: dict[int, str] = {}
        with store.transaction():
            row = {"uuid": self.uuid, "study": study.uuid, "started": now(), "elapsed_s": 0.0, "pid": os.getpid()}
            row |= {"host": socket.gethostname(), "command": _command(), "evokern_version": __version__}
            write_row(self._db, "evokern_sessions", row)
            attrs = {"evokern_uuid": study.uuid, "kernel": study.kernel, "device": study.device}
            self._optuna = OptunaStudy(self._db, study.name, attrs, space)
            total = "SELECT coalesce(sum(elapsed_s), 0) FROM evokern_sessions WHERE study = ?"
            self.before_s = float(self._db.execute(total, [study.uuid]).fetchone()[0])
            """Study time of all earlier sessions, seconds."""

    def recorded_trials(self) -> tuple[list[Proposal], list[Trial]]:
        """Return every proposal of earlier sessions, by trial number, and the trials that are recorded (samples apart).

        A proposal without its trial was interrupted.

        Raises:
            StoreError: one of them is damaged or missing.
        """
        proposals: list[Proposal] = []
        trials: list[Trial] = []
        path, table = self._store.path, "evokern_trials"
        with explained(path):
            for row in select(self._db, table, order="study, number"):
                if not sound(row):  # of another study as well: which one it is of may be what is damaged
                    raise damage(path, table, row, "a search would learn from it")
                if row["study"] != self.study.uuid:
                    continue
                if row["number"] != len(proposals):
                    missing = f"trial {len(proposals)} of study {self.study.name} is missing"
                    raise StoreError(f"{path} is damaged: {missing}; restore a copy, or name another file with --db")
                self._trials[row["number"]] = row["uuid"]
                proposals.append(required(path, table, row, proposal_of))
                if row["outcome"]:
                    trials.append(required(path, table, row, trial_of))
        return proposals, trials

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all that is done inside to the disk at once, or nothing of it; after an error a session only ends."""
        with self._store.transaction():
            yield

    def adopt(self, proposals: Sequence[Proposal], results: Sequence[TrialResult]) -> None:
        """Give Optuna's tables what an interruption kept from them.

        Args:
            proposals: every proposal of `recorded_trials`.
            results: results of the trials that are recorded, up to the first that is not.
        """
        with self.transaction():
            self._optuna.resume()
            for number, proposal in enumerate(proposals):
                self._optuna.begin(number, proposal.config, control=proposal.control)
            for result in results:
                self._optuna.tell(result)

    def began(self, report: StartReport) -> None:
        """Write what the device found when it opened."""
        values = {
            "environment": dumps(report.environment),
            "baselines": dumps([asdict(baseline) for baseline in report.baselines]),
            "notes": dumps(report.notes),
        }
        with self.transaction():
            self._update("evokern_sessions", self.uuid, values)

    def rated(self, rates: Rates) -> None:
        """Write how fast the device copies and multiplies, beside the rest of its environment."""
        changes = "environment = json_set(coalesce(environment, '{}'), '$.rates', json(?))"
        with self.transaction():
            self._change_session(changes, dumps(asdict(rates)))

    def propose(self, number: int, proposal: Proposal, elapsed_s: float) -> None:
        """Write a proposal, before it is evaluated, here and in Optuna's tables.

        Args:
            number: trial number.
            proposal: what was proposed.
            elapsed_s: seconds of this session.
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
        """Write a trial's outcome and evidence.

        Args:
            trial: the finished trial.
            elapsed_s: seconds of this session.
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
        """Write evidence that came after trials were recorded; in our rows only, since it changes no result.

        Args:
            trials: recorded trials with all their evidence.
        """
        with self.transaction():
            for trial in trials:
                values = {"evidence": dumps(trial.evaluation.evidence), "reason": trial.evaluation.reason}
                self._update("evokern_trials", self._trials[trial.number], values)

    def proved(self, trial: int, result: Mapping[str, Any]) -> None:
        """Write what the verification of a trial found."""
        with self.transaction():
            insert_proof(self._db, self.study, "verify", trial, result)

    def not_proved(self, trial: int, why: str) -> None:
        """Write why the verification of a trial came to nothing."""
        with self.transaction():
            insert_proof(self._db, self.study, "undone", trial, {"why": why})

    def proofs(self) -> list[ProofRecord]:
        """Return what verifications of this study found, the first one first."""
        with explained(self._store.path):
            where, table = "study = ? AND kind = ?", "evokern_proofs"
            rows = require_sound(self._db, self._store.path, table, where, [self.study.uuid, "verify"])
            return [required(self._store.path, table, row, ProofRecord.of) for row in rows]

    def write_result(self, result: TrialResult) -> None:
        """Write the end of a recorded trial into Optuna's tables."""
        with self.transaction():
            self._optuna.tell(result)

    def record_duration(self, elapsed_s: float) -> None:
        """Write how long this session has lasted."""
        with self.transaction():
            self._elapsed(elapsed_s)

    def _elapsed(self, elapsed_s: float) -> None:
        self._change_session("elapsed_s = ?", elapsed_s)

    def _reject(self, constraint: str, count: int) -> None:
        """Add to the proposals that a constraint turned away."""
        table, values = "evokern_rejections", {"study": self.study.uuid, "constraint_name": constraint}
        where = "study = ? AND constraint_name = ?"
        before = require_sound(self._db, self._store.path, table, where, list(values.values()))
        total = count + (before[0]["count"] if before else 0)
        write_row(self._db, table, {**values, "count": total}, replace=True)

    def _update(self, table: str, key: str, values: Mapping[str, Any]) -> None:
        _update(self._db, self._store.path, table, key, values)

    def _change_session(self, changes: str, value: object) -> None:
        change_rows(self._db, self._store.path, "evokern_sessions", "uuid = ?", changes, [value, self.uuid])

    def ended(self, elapsed_s: float, reason: str) -> None:
        """Write how this session ended; Optuna's tables then have no running trial."""
        with self.transaction():
            running = self._optuna.running()
            recorded = f"study = ? AND outcome IS NOT NULL AND number IN ({', '.join(map(str, running))})"
            rows = self._db["evokern_trials"].rows_where(recorded, [self.study.uuid], "number")
            self._optuna.suspend(TrialResult.of(trial_of(row)) for row in rows)
            self._elapsed(elapsed_s)
            self._update("evokern_sessions", self.uuid, {"ended": now(), "end_reason": reason})


def _command() -> str:
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _update(db: Database, path: Path, table: str, key: str, values: Mapping[str, Any]) -> None:
    changes = ", ".join(f"{name} = ?" for name in values)
    change_rows(db, path, table, "uuid = ?", changes, [*values.values(), key])
