"""Conversion of a recorded study to a table that any sampler can search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evokern.declaration.genes import Config
from evokern.device.recorded.recording import as_first_occurrence, chip_of_model, kernel_recorded, read_recording
from evokern.device.recorded.table import Table
from evokern.errors import StudyError
from evokern.files import is_file
from evokern.store._reader import Reader, open_readonly
from evokern.store.records import StudyRecord
from evokern.study.trial import Evaluation, Outcome

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
