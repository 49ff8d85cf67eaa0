"""Stored results of profiles, verification, ablation and head-to-head timing, and the short write that adds one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from evokern.store._files import CHECKPOINT_WAIT_S, check_location, checkpoint, connect, explain_errors, refuse_foreign
from evokern.store._integrity import write_row
from evokern.store._lock import Lock
from evokern.store._schema import migrations, refuse_newer
from evokern.store.records import Row, StudyRecord, dumps


def now() -> str:
    """Return the current UTC time in ISO 8601 format, with a resolution of one second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def short_transaction(path: Path) -> Iterator[Database]:
    """Open a database for one transaction, which is committed to disk when the context ends.

    Raises:
        StoreError: if the database cannot be written or a search is using it.
    """
    check_location(path)
    lock = Lock(path)
    try:
        with explain_errors(path):
            refuse_foreign(path)
            connection = connect(path)
            try:
                database = Database(connection)
                refuse_newer(database, path)
                migrations.apply(database)
                with database.atomic():
                    yield database
                checkpoint(connection, CHECKPOINT_WAIT_S)
            finally:
                connection.close()
    finally:
        lock.release()


HEAD_TO_HEAD = "in turn"
"""Kind of records with head-to-head times of a trial and a baseline (`evokern.search.baseline_comparison`)."""

ALGEBRA = "algebra"
"""Kind of records with a comparison in exact arithmetic by `evokern prove`; `verify` stores its own as a stage."""

NEIGHBOURS = "neighbours"
"""Kind of records with infeasible one-gene changes of a champion (`evokern.search.neighbours`)."""

REMEASURED = "remeasured"
"""Kind of records of a trial that another GPU measured again, because the first GPU's times drifted
(`evokern.device.contract.Remeasures`)."""


@dataclass(frozen=True)
class ProofRecord:
    """One stored result about a trial, such as a verification."""

    kind: str
    """Kind: `verify`, `ablate`, `undone` (a verification without a result), `in turn`, `neighbours`, `algebra` or
    `remeasured`."""
    trial: int
    """Number of the trial."""
    created: str
    """Time of creation in ISO 8601."""
    result: Mapping[str, Any]
    """Result as a JSON object; for `verify` and `ablate`, the output of `--json`."""

    @property
    def passed(self) -> bool:
        """Whether a verification passed, that is, none of its stages failed."""
        return all(stage.get("state") != "failed" for stage in self.result.get("stages", {}).values())

    @classmethod
    def of(cls, row: Row) -> ProofRecord:
        """Create the record from a row."""
        return cls(row["kind"], row["trial"], row["created"], json.loads(row["result"]))


def insert_proof(database: Database, study: StudyRecord, kind: str, trial: int, result: Mapping[str, Any]) -> None:
    """Write a result to an open database."""
    row = {"uuid": str(uuid.uuid4()), "study": study.uuid, "kind": kind, "trial": trial, "created": now()}
    write_row(database, "evokern_proofs", {**row, "result": dumps(result)})


def add_proof(path: Path, study: StudyRecord, kind: str, trial: int, result: Mapping[str, Any]) -> None:
    """Store a result about a trial of a study.

    Raises:
        StoreError: if the database cannot be written or a search is using it.
    """
    with short_transaction(path) as database:
        insert_proof(database, study, kind, trial, result)


@dataclass(frozen=True)
class ProfileRecord:
    """One profile of a trial."""

    trial: int
    """Number of the trial."""
    problem: str
    """Key of the problem."""
    source: str
    """Source of the counters: `ncu` or `simulated`."""
    device: str
    """GPU model, or a simulated chip such as `sim:l4`."""
    created: str
    """Time of creation in ISO 8601."""
    result: Mapping[str, Any]
    """Output of `profile --json`, without source lines."""

    @classmethod
    def of(cls, row: Row) -> ProfileRecord:
        """Create the record from a row."""
        return cls(
            row["trial"], row["problem"], row["source"], row["device"], row["created"], json.loads(row["result"])
        )


def add_profile(path: Path, study: StudyRecord, trial: int, result: Mapping[str, Any]) -> None:
    """Store a profile of a trial.

    Args:
        path: the database.
        study: the study of the trial.
        trial: number of the trial.
        result: output of `profile --json`; the source lines, which are most of its size, are not stored.

    Raises:
        StoreError: if the database cannot be written or a search is using it.
    """
    launches = [{key: value for key, value in launch.items() if key != "lines"} for launch in result["launches"]]
    row = {"uuid": str(uuid.uuid4()), "study": study.uuid, "trial": trial, "created": now()}
    row |= {name: result[name] for name in ("problem", "source", "device")}
    with short_transaction(path) as database:
        write_row(database, "evokern_profiles", {**row, "result": dumps({**result, "launches": launches})})
