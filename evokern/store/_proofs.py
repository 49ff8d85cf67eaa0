"""Stored results of verification, ablation and head-to-head timing of a study's trials."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from evokern.store._addition import now, short_transaction
from evokern.store._integrity import write_row
from evokern.store.records import Row, StudyRecord, dumps

HEAD_TO_HEAD = "in turn"
"""Kind of records with head-to-head times of a trial and a baseline (`evokern.search.baseline_comparison`)."""

ALGEBRA = "algebra"
"""Kind of records with a comparison in exact arithmetic by `evokern prove`; `verify` stores its own as a stage."""

NEIGHBOURS = "neighbours"
"""Kind of records with infeasible one-gene changes of a champion (`evokern.search.neighbours`)."""

REMEASURED = "remeasured"
"""Kind of records of a trial that another GPU measured again, because the times of its own GPU drifted
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
