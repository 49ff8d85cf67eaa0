"""A recorded study as a table, so that other samplers, or the same one again, can be searched over it."""

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
    """Return the database and the study that `runs.db:study` or `runs.db` names; None where it is no database.

    Args:
        source: what a user gave as a recording.
    """
    text = str(source)
    head, colon, study = text.rpartition(":")
    for path, name in ((Path(text), None), (Path(head), study or None)):
        if (name is None or colon) and is_file(path):
            with path.open("rb") as file:
                return (path, name) if file.read(len(_MAGIC)) == _MAGIC else None
    return None


def open_recording(source: str) -> Table:
    """Return what a user names as a recording, as a table.

    Args:
        source: a file that `evokern.device.recorded.recording` reads, or a study of a database, `runs.db:study`.

    Raises:
        UsageError: it cannot be read.
    """
    database = database_of(source)
    return read_study_table(*database) if database else read_recording(source)


def read_study_table(path: Path, study: str | None) -> Table:
    """Return a study of a database as a table.

    Args:
        path: the database.
        study: the study's name; None takes the one searched last.

    Raises:
        StoreError: the database cannot be read.
        StudyError: there is no such study, or it measured nothing.
    """
    with open_readonly(path) as reader:
        return study_table(reader, reader.study(study))


def study_table(reader: Reader, record: StudyRecord) -> Table:
    """Return a recorded study as a table: what it did not try or lost is not feasible, what was infeasible is left out.

    Raises:
        StudyError: it measured nothing.
    """
    answers: dict[Config, Evaluation] = {}
    visited: set[Config] = set()
    for trial in (t for t in reader.trials(record) if t.outcome is not Outcome.LOST):
        visited.add(trial.config)
        if trial.outcome is not Outcome.INFEASIBLE:
            answers.setdefault(trial.config, as_first_occurrence(trial.evaluation))
    if not any(answer.outcome is Outcome.MEASURED for answer in answers.values()):
        raise StudyError(f"study {record.name} of {reader.path} has no measured trial to replay; search it further")
    baseline = reader.baseline(record)
    seconds = {config: answer.compile_s + answer.device_s for config, answer in answers.items()}
    chip, baseline_us = chip_of_model(record.device), baseline[1] if baseline else None
    kernel = kernel_recorded(record.kernel, record.device)
    found = Table(record.name, record.genes, answers, chip, baseline_us, seconds, record.predicted, kernel)
    return replace(found, visited=len(visited), searched_by=record.sampler)
