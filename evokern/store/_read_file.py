"""A database that is open for reading: rows become records, and damaged rows are reported and omitted.

Reading never writes to the file and never imports a kernel folder. It works while a search writes.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sqlite_utils import Database

from evokern.errors import MAX_INTEGER, StoreError, StudyError, suggestion
from evokern.store._files import close_reading, connect_readonly, explain_errors, refuse_foreign
from evokern.store._integrity import (
    COLUMN,
    IntactRows,
    convert_row,
    damaged_row_error,
    is_intact,
    require_intact,
    select,
    select_numbered,
)
from evokern.store._proofs import ProfileRecord, ProofRecord
from evokern.store._schema import refuse_newer
from evokern.store.records import Row, SessionRecord, StudyRecord, TrialRecord, trial_of
from evokern.study.trial import Trial
from evokern.wording import command, count_noun

_MOST_VALUES = 500
"""Maximum number of values bound to one statement; SQLite before 3.32 accepts 999 (sqlite.org/limits.html)."""


@dataclass(frozen=True)
class TrialStatus:
    """Status of a trial: its outcome and time, without its configuration and evidence."""

    number: int
    """Number of the trial."""
    outcome: str | None
    """Outcome, or None while the trial is in flight."""
    time_us: float
    """Time in µs; infinite if the trial has none."""
    timed: bool
    """Whether the trial was timed; a slow trial that was timed passed the gate (`Evaluation.passed_gate`)."""


class ReadFile:
    """A database that is open for reading; as a context manager, it closes the database."""

    def __init__(self, path: Path) -> None:
        """Open a database.

        Raises:
            StoreError: if the file does not exist or this version cannot read it as an evokern database.
        """
        self.path = path
        self._known: tuple[int, dict[str, list[TrialStatus]]] | None = None
        with explain_errors(path):
            connection = connect_readonly(path)
        try:
            with explain_errors(path):
                self._db = Database(connection)
                self._rows = IntactRows(self._db, path)
                self._rows.check_pages()
                refuse_newer(self._db, path)
                found = self._db["evokern_studies"].exists()
            if not found:
                refuse_foreign(path)
                raise StoreError(
                    f"{path} contains no evokern study; start one with `{command('search', '--db', path)}`"
                )
        except BaseException:
            close_reading(connection)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; repeated calls have no effect."""
        close_reading(self._db.conn)

    @property
    def damaged(self) -> tuple[str, ...]:
        """Reports of the damaged rows that were found and omitted so far; each was also logged as a warning."""
        return tuple(self._rows.reports)

    def studies(self) -> list[StudyRecord]:
        """Return all studies, starting with the one that was searched last."""
        sessions = self._rows.read("evokern_sessions", lambda row: str(row["study"]))
        searched = {study: number for number, study in enumerate(sessions)}
        found = self._rows.read("evokern_studies", StudyRecord.of, order="rowid DESC")
        return sorted(found, key=lambda study: -searched.get(study.uuid, -1))

    def study(self, name: str | None = None) -> StudyRecord:
        """Return the study with the given name; for None, return the study that was searched last.

        Raises:
            StudyError: if the database does not contain the study.
        """
        studies = self.studies()
        lost = [report for report in self.damaged if report.startswith("study ")]
        if name is None and studies and not lost:
            return studies[0]
        wanted = Path(name).stem if name and name.endswith(".toml") else name
        for study in studies:
            if study.name == wanted:
                return study
        if lost:
            known = ", ".join(study.name for study in studies)
            raise StoreError(
                f"{self.path}: {lost[0]}; {f'choose one of: {known}' if known else 'the file has no other study'}"
            )
        if not studies:
            raise StudyError(
                f"{self.path} contains no study yet; start one with `{command('search', '--db', self.path)}`"
            )
        raise StudyError(
            f"{self.path} contains no study {wanted!r}: {suggestion(str(wanted), [s.name for s in studies])}"
        )

    def sessions(self, study: StudyRecord) -> list[SessionRecord]:
        """Return the sessions of a study, oldest first."""
        return list(self._rows.read_where("evokern_sessions", SessionRecord.of, {"study": study.uuid}))

    def trials(self, study: StudyRecord, *, samples: bool = False) -> Iterator[Trial]:
        """Yield the recorded trials of a study in number order.

        Args:
            study: the study.
            samples: also read all timing samples, which make up most of the file.
        """
        taken: dict[str, dict[int, list[float]]] = defaultdict(dict)
        if samples:
            mine = "trial IN (SELECT uuid FROM evokern_trials WHERE study = ?)"
            for trial, problem, values in self._rows.read("evokern_samples", _samples_of, mine, [study.uuid]):
                taken[trial][problem] = values
        version = self.version()
        if self._known is not None and self._known[0] == version:
            self.trial_statuses(study)  # reports rows whose study cannot be determined
            where = "study = ? AND outcome IS NOT NULL"
            yield from self._rows.read(
                "evokern_trials", lambda row: trial_of(row, taken.get(row["uuid"])), where, [study.uuid], "number"
            )
            return

        # The same pass collects the `trial_statuses`, because digest and conversion dominate the cost of a row.
        def both(row: Row) -> tuple[str, TrialStatus, Trial | None]:
            wanted = row["study"] == study.uuid and row["outcome"] is not None
            trial = trial_of(row, taken.get(row["uuid"])) if wanted else None
            return *_status_of(row, whole=wanted), trial

        found: dict[str, list[TrialStatus]] = defaultdict(list)
        trials = []
        for uuid, status, made in self._rows.read("evokern_trials", both, order="study, number"):
            found[uuid].append(status)
            trials += [made] if made is not None else []
        self._known = version, found
        self.trial_statuses(study)
        yield from trials

    def count(self, study: StudyRecord) -> int:
        """Return the number of a study's trials, including unfinished and damaged trials, without reading rows."""
        with explain_errors(self.path):
            found = self._db.execute("SELECT count(*) FROM evokern_trials WHERE study = ?", [study.uuid])
            return int(found.fetchone()[0])

    def proposed_s(self, study: StudyRecord, *, in_flight: bool = False) -> dict[int, float]:
        """Return the study time in seconds at which each trial was proposed, by trial number.

        By default, only recorded trials are included; trials in flight are optional.
        """
        where = "study = ?" if in_flight else "study = ? AND outcome IS NOT NULL"
        return dict(self._rows.read("evokern_trials", _proposed_of, where, [study.uuid], "number"))

    def version(self) -> int:
        """Return a number that changes when another connection writes (SQLite's `PRAGMA data_version`)."""
        with explain_errors(self.path):
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def trials_since(self, study: StudyRecord, row: int) -> tuple[list[tuple[int, Trial]], int]:
        """Return the trials recorded from a row on, as (row, trial) pairs, and the row at which the next call starts.

        A search inserts the row of a trial at its proposal, and completes the row when the trial ends. The next call
        must therefore start at the first row that was incomplete. The method uses one short read transaction, because
        a long transaction would let the write-ahead log grow.

        Args:
            study: the study.
            row: first row to read, from an earlier call; 0 reads all rows.
        """
        with explain_errors(self.path):
            rows = list(select_numbered(self._db, "evokern_trials", "rowid >= ? AND study = ?", [row, study.uuid]))
        trials = []
        first_open = None
        for number, values in rows:
            if values["outcome"] is None:
                first_open = number if first_open is None else first_open
            elif (trial := self._rows.record("evokern_trials", values, trial_of)) is not None:
                trials.append((number, trial))
        after = rows[-1][0] + 1 if rows else row
        return trials, after if first_open is None else first_open

    def samples(self, study: StudyRecord, numbers: Iterable[int]) -> dict[int, tuple[float, ...]]:
        """Return the samples in µs on the study's first problem by trial number; trials without samples are omitted."""
        wanted = sorted(set(numbers))
        found: dict[int, tuple[float, ...]] = {}
        for begin in range(0, len(wanted), _MOST_VALUES):
            some = wanted[begin : begin + _MOST_VALUES]
            marks = ", ".join("?" * len(some))
            mine = f"study = ? AND number IN ({marks})"
            with explain_errors(self.path):
                rows = select(self._db, "evokern_trials", mine, [study.uuid, *some])
                named = {str(row["uuid"]): int(row["number"]) for row in rows}
            where = f"problem = 0 AND trial IN ({', '.join('?' * len(named))})"
            for trial, _, values in self._rows.read("evokern_samples", _samples_of, where, list(named)):
                found[named[trial]] = tuple(values)
        return found

    def trial_statuses(self, study: StudyRecord) -> list[TrialStatus]:
        """Return the states of a study's undamaged trials in number order; report damaged and missing trials."""
        version = self.version()
        if self._known is None or self._known[0] != version:
            found: dict[str, list[TrialStatus]] = defaultdict(list)
            # Read the trials of every study, because damage can change a row's study.
            for uuid, status in self._rows.read("evokern_trials", _status_of, order="study, number"):
                found[uuid].append(status)
            self._known = version, found
        mine = self._known[1][study.uuid]
        numbers = {one.number for one in mine}
        missing = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
        if missing and not any(report.startswith("trial ") for report in self._rows.reports):
            which = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
            self._rows.tell(f"{count_noun(len(missing), 'trial')} of study {study.name!r} missing: {which}")
        return mine

    def trial(self, study: StudyRecord, number: int) -> TrialRecord:
        """Return one recorded trial with its samples.

        Raises:
            StudyError: if the study does not contain the trial, or the trial is not finished.
        """
        with explain_errors(self.path):
            number = min(number, MAX_INTEGER)  # larger numbers do not occur and would overflow SQLite's integers
            where = "study = ? AND number = ?"
            row = next(select(self._db, "evokern_trials", where, [study.uuid, number]), None)
            if row is not None and not is_intact(row):
                raise damaged_row_error(self.path, "evokern_trials", row)
            if row is None or row["outcome"] is None:
                query = "SELECT max(number) FROM evokern_trials WHERE study = ? AND outcome IS NOT NULL"
                last = self._db.execute(query, [study.uuid])
                known = last.fetchone()[0]
                span = "the study has no trials yet" if known is None else f"choose a number from 0 to {known}"
                if row:
                    raise StudyError(
                        f"trial {number} of study {study.name} has no result yet: no search has finished it; resume "
                        "the study, or wait if a search is running"
                    )
                self.trial_statuses(study)  # reports damaged rows, which may include this trial
                raise StudyError(f"trial {number} is not in study {study.name}; {span}")
        read = self._rows.read("evokern_samples", _samples_of, "trial = ?", [row["uuid"]])
        samples = {problem: values for _, problem, values in read}
        trial = convert_row(self.path, "evokern_trials", row, lambda row: trial_of(row, samples))
        return TrialRecord(trial, row["uuid"], row["kernel_digest"])

    def damaged_sources(self, study: StudyRecord, trial: Trial) -> list[str]:
        """Return the names of a trial's stored source files that are damaged, and report each of them."""
        ran = "digest = (SELECT kernel_digest FROM evokern_trials WHERE study = ? AND number = ?)"
        with explain_errors(self.path):
            rows = list(select(self._db, "evokern_sources", ran, [study.uuid, trial.number]))
        return [str(row["file"]) for row in rows if self._rows.record("evokern_sources", row, _file_of) is None]

    def proofs(self, study: StudyRecord, kind: str) -> list[ProofRecord]:
        """Return a study's stored results of one kind (see `ProofRecord.kind`), oldest first."""
        with explain_errors(self.path):
            if not self._db["evokern_proofs"].exists():
                return []
        return list(self._rows.read_where("evokern_proofs", ProofRecord.of, {"study": study.uuid, "kind": kind}))

    def profiles(self, study: StudyRecord, trial: int) -> list[ProfileRecord]:
        """Return the stored profiles of a trial, oldest first."""
        with explain_errors(self.path):
            if not self._db["evokern_profiles"].exists():
                return []
        return list(self._rows.read_where("evokern_profiles", ProfileRecord.of, {"study": study.uuid, "trial": trial}))

    def rejections(self, study: StudyRecord) -> dict[str, int]:
        """Return the number of rejected proposals by constraint, largest number first."""
        order = "count DESC, constraint_name"
        return dict(self._rows.read_where("evokern_rejections", _rejection_of, {"study": study.uuid}, order))

    def source(self, digest: str, *, shown: bool = False) -> dict[str, str]:
        """Return the stored kernel files that have a given digest, as texts by file name.

        Args:
            digest: SHA-256 digest of the files.
            shown: whether to report and omit damaged files instead of raising an error; only for displaying the files.

        Raises:
            StoreError: if a file is damaged and `shown` is False.
        """
        where, table = "digest = ?", "evokern_sources"
        if shown:
            return dict(self._rows.read(table, _file_of, where, [digest]))
        with explain_errors(self.path):
            return dict(_file_of(row) for row in require_intact(self._db, self.path, table, where, [digest]))


def _status_of(row: Row, *, whole: bool = False) -> tuple[str, TrialStatus]:
    if not whole and row.get(COLUMN) is None and row["outcome"] is not None:
        trial_of(row)  # a row without a digest is checked by converting it
    time_us = math.inf if row["time_us"] is None else row["time_us"]
    return row["study"], TrialStatus(row["number"], row["outcome"], time_us, row["timings"] not in (None, "[]"))


def _samples_of(row: Row) -> tuple[str, int, list[float]]:
    return row["trial"], row["problem"], json.loads(row["samples_us"])


def _proposed_of(row: Row) -> tuple[int, float]:
    return row["number"], float(row["proposed_s"])


def _rejection_of(row: Row) -> tuple[str, int]:
    return row["constraint_name"], row["count"]


def _file_of(row: Row) -> tuple[str, str]:
    return row["file"], row["text"]
