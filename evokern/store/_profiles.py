"""Stored results of `evokern profile`: counters of the GPU or of a simulated chip, and the verdict."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evokern.store._addition import now, short_transaction
from evokern.store._integrity import write_row
from evokern.store.records import Row, StudyRecord, dumps


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
