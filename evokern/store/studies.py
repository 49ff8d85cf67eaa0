"""Writer of studies, kernel sources and warm starts, and a recorded study as a table for samplers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from evokern.declaration.genes import Config
from evokern.declaration.space import Space
from evokern.device.recorded.recording import as_first_occurrence, chip_of_model, kernel_recorded, read_recording
from evokern.device.recorded.table import Table
from evokern.errors import StudyError
from evokern.files import is_file
from evokern.samplers import FurtherStudy, Prior
from evokern.store._files import explain_errors
from evokern.store._integrity import change_rows, convert_row, require_intact, write_row
from evokern.store._lock import WrittenFile, update_row
from evokern.store._proofs import now
from evokern.store._reader import Reader, open_readonly
from evokern.store.records import Row, StudyRecord, dumps, stored_entries
from evokern.store.writer import Session
from evokern.study.trial import Evaluation, Outcome


class Store(WrittenFile):
    """A database of studies that is open for writing; as a context manager, it closes the database."""

    def study(self, name: str) -> StudyRecord | None:
        """Return the study with the given name, or None.

        Raises:
            StoreError: if the row of any study is damaged.
        """
        with explain_errors(self.path):
            # Check all rows, because the search would start a new study if the name of this one was damaged.
            rows = require_intact(self.db, self.path, "evokern_studies")
        row = next((row for row in rows if row["name"] == name), None)
        return convert_row(self.path, "evokern_studies", row, StudyRecord.of) if row else None

    def has_trials(self, record: StudyRecord) -> bool:
        """Return whether a study has any trials."""
        with explain_errors(self.path):
            sql = "SELECT 1 FROM evokern_trials WHERE study = ? LIMIT 1"
            return self.db.execute(sql, [record.uuid]).fetchone() is not None

    def create(self, record: StudyRecord, sources: Mapping[str, str]) -> StudyRecord:
        """Write a new study and the kernel's source files; return the study's record with its UUID and date."""
        record = replace(record, uuid=str(uuid.uuid4()), created=now())
        with self.transaction():
            write_row(self.db, "evokern_studies", record.row())
            self._write_sources(record.kernel_digest, sources)
        return record

    def update(self, record: StudyRecord, sources: Mapping[str, str] | None = None) -> None:
        """Write the changed values of a study: budget, limit, accepted settings and kernel digest."""
        with self.transaction():
            update_row(self.db, self.path, "evokern_studies", record.uuid, record.row())
            self._write_sources(record.kernel_digest, sources or {})

    def _write_sources(self, digest: str, sources: Mapping[str, str]) -> None:
        for file, text in sources.items():
            row = {"digest": digest, "file": file, "text": text}
            write_row(self.db, "evokern_sources", row, replace=True)  # also repairs a damaged row

    def source(self, digest: str) -> dict[str, str]:
        """Return the stored kernel files that have a given digest, as texts by file name."""
        with explain_errors(self.path):
            rows = require_intact(self.db, self.path, "evokern_sources", "digest = ?", [digest])
            return {row["file"]: row["text"] for row in rows}

    def write_prior(self, record: StudyRecord, prior: Prior) -> None:
        """Store the warm start of a study."""
        places = [{value: index for index, value in enumerate(gene.values)} for gene in record.genes]
        studies = [(prior.distance, prior.entries), *((one.distance, one.entries) for one in prior.further)]
        entries = [
            [
                distance,
                [[[at[value] for at, value in zip(places, config.values(), strict=True)], log] for config, log in of],
            ]
            for distance, of in studies
        ]
        row = {"study": record.uuid, "source": prior.source, "used": dumps(prior.used), "ignored": dumps(prior.ignored)}
        with self.transaction():
            self.db.execute("DELETE FROM evokern_priors WHERE study = ?", [record.uuid])
            write_row(self.db, "evokern_priors", row | {"entries": dumps(entries)})

    def delete_prior(self, record: StudyRecord) -> None:
        """Delete the warm start of a study that has no trials; write nothing if there is no warm start."""
        if self.db.execute("SELECT 1 FROM evokern_priors WHERE study = ?", [record.uuid]).fetchone() is not None:
            with self.transaction():
                self.db.execute("DELETE FROM evokern_priors WHERE study = ?", [record.uuid])

    def prior(self, record: StudyRecord) -> Prior | None:
        """Return the warm start of a study, or None."""
        with explain_errors(self.path):
            # Check the rows of all studies, because damage can change a row's study and so hide this warm start.
            rows = [row for row in require_intact(self.db, self.path, "evokern_priors") if row["study"] == record.uuid]

        def prior_of(row: Row) -> Prior:
            def config(indices: Sequence[int]) -> Config:
                return Config({g.name: g.values[at] for g, at in zip(record.genes, indices, strict=True)})

            (_, distance, entries), *further = [
                (study, distance, tuple((config(indices), log) for indices, log in of))
                for study, distance, of in stored_entries(row["entries"])
            ]
            used, ignored = (tuple(json.loads(row[name])) for name in ("used", "ignored"))
            others = tuple(FurtherStudy(of, distance) for _, distance, of in further)
            return Prior(entries, row["source"], used, ignored, distance, others)

        return convert_row(self.path, "evokern_priors", rows[0], prior_of) if rows else None

    def next_free_name(self, name: str) -> str:
        """Return the new name that `set_aside` would choose: NAME.1, or the next free number."""
        with explain_errors(self.path):
            taken = {row[0] for row in self.db.execute("SELECT name FROM evokern_studies")}
            taken |= {row[0] for row in self.db.execute("SELECT study_name FROM studies")}
        number = next(n for n in range(1, len(taken) + 2) if f"{name}.{n}" not in taken)
        return f"{name}.{number}"

    def rename_old_study(self, name: str) -> str:
        """Rename a study to `next_free_name`, also in Optuna's tables; return the new name."""
        with self.transaction():
            new = self.next_free_name(name)
            (key,) = self.db.execute("SELECT uuid FROM evokern_studies WHERE name = ?", [name]).fetchone()
            change_rows(self.db, self.path, "evokern_studies", "uuid = ?", "name = ?", [new, key])
            self.db.execute("UPDATE studies SET study_name = ? WHERE study_name = ?", [new, name])
        return new

    def unfinished_session_start(self, record: StudyRecord) -> str:
        """Return the start time of a study's last session if that session never ended, else an empty string."""
        sql = "SELECT started, ended FROM evokern_sessions WHERE study = ? ORDER BY rowid DESC LIMIT 1"
        with explain_errors(self.path):
            row = self.db.execute(sql, [record.uuid]).fetchone()
        return str(row[0]) if row and row[1] is None else ""

    def session(self, record: StudyRecord, space: Space) -> Session:
        """Start a session of a study."""
        return Session(self, record, space)


_MAGIC = b"SQLite format 3\x00"


def database_of(source: str | Path) -> tuple[Path, str | None] | None:
    """Return the database and the study name from a source such as `runs.db:study`; None if it is not a database.

    Args:
        source: recording as given by the user: `runs.db:study`, `runs.db` or another file.
    """
    text = str(source)
    head, colon, study = text.rpartition(":")
    for path, name in ((Path(text), None), (Path(head), study or None)):
        if (name is None or colon) and is_file(path):
            with path.open("rb") as file:
                return (path, name) if file.read(len(_MAGIC)) == _MAGIC else None
    return None


def open_recording(source: str) -> Table:
    """Return a recording as a table.

    Args:
        source: a file that `evokern.device.recorded.recording` reads, or a study in a database (`runs.db:study`).

    Raises:
        UsageError: if the recording cannot be read.
    """
    database = database_of(source)
    return read_study_table(*database) if database else read_recording(source)


def read_study_table(path: Path, study: str | None) -> Table:
    """Return a study of a database as a table.

    Args:
        path: the database.
        study: name of the study; None for the study that was searched last.

    Raises:
        StoreError: if the database cannot be read.
        StudyError: if the study does not exist or has no measured trial.
    """
    with open_readonly(path) as reader:
        return study_table(reader, reader.study(study))


def study_table(reader: Reader, record: StudyRecord) -> Table:
    """Return a recorded study as a table.

    A candidate is infeasible in the table if the study did not try it, lost it, or found it infeasible.

    Raises:
        StudyError: if the study has no measured trial.
    """
    answers: dict[Config, Evaluation] = {}
    visited: set[Config] = set()
    for trial in (t for t in reader.trials(record) if t.outcome is not Outcome.LOST):
        visited.add(trial.config)
        if trial.outcome is not Outcome.INFEASIBLE:
            answers.setdefault(trial.config, as_first_occurrence(trial.evaluation))
    if not any(answer.outcome is Outcome.MEASURED for answer in answers.values()):
        raise StudyError(
            f"study {record.name} of {reader.path} has no measured trial to replay; resume it until a trial is measured"
        )
    baseline = reader.baseline(record)
    seconds = {config: answer.compile_s + answer.device_s for config, answer in answers.items()}
    chip, baseline_us = chip_of_model(record.device), baseline[1] if baseline else None
    kernel = kernel_recorded(record.kernel, record.device)
    found = Table(record.name, record.genes, answers, chip, baseline_us, seconds, record.predicted, kernel)
    return replace(found, visited=len(visited), searched_by=record.sampler)
