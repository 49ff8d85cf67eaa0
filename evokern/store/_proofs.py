"""What verification and ablation found, kept with the study: for the report, and for the champion's time in `show`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from evokern.store._addition import addition, now
from evokern.store._integrity import write_row
from evokern.store.records import Row, StudyRecord, dumps

IN_TURN = "in turn"
"""Kind of the record of a trial and a baseline that were measured in turn (`evokern.search.in_turn`)."""

NEIGHBOURS = "neighbours"
"""Kind of the record of changes of one gene that a champion does not allow (`evokern.search.neighbours`)."""

REMEASURED = "remeasured"
"""Kind of the record of a trial that another GPU measured again, since its own had drifted
(`evokern.device.contract.Remeasures`)."""


@dataclass(frozen=True)
class ProofRecord:
    """One verification or ablation."""

    kind: str
    """`verify`, `ablate`, `undone` for a verification that came to nothing, `in turn`, `neighbours`, `remeasured`."""
    trial: int
    """The trial it is about."""
    created: str
    """When, in ISO 8601."""
    result: Mapping[str, Any]
    """What the command's `--json` prints."""

    @property
    def passed(self) -> bool:
        """Whether no stage failed."""
        return all(stage.get("state") != "failed" for stage in self.result.get("stages", {}).values())

    @classmethod
    def of(cls, row: Row) -> ProofRecord:
        """Return the record that a row holds."""
        return cls(row["kind"], row["trial"], row["created"], json.loads(row["result"]))


def insert_proof(database: Database, study: StudyRecord, kind: str, trial: int, result: Mapping[str, Any]) -> None:
    """Write a result into an open database."""
    row = {"uuid": str(uuid.uuid4()), "study": study.uuid, "kind": kind, "trial": trial, "created": now()}
    write_row(database, "evokern_proofs", {**row, "result": dumps(result)})


def add_proof(path: Path, study: StudyRecord, kind: str, trial: int, result: Mapping[str, Any]) -> None:
    """Keep a result with its study.

    Raises:
        StoreError: the database cannot be written, or a search has it.
    """
    with addition(path) as database:
        insert_proof(database, study, kind, trial, result)
