"""What `profile` found of a study's trials: counters of the hardware or of a simulated chip, and the verdict."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evokern.store._addition import addition, now
from evokern.store._integrity import write_row
from evokern.store.records import Row, StudyRecord, dumps


@dataclass(frozen=True)
class ProfileRecord:
    """One profile of a trial."""

    trial: int
    """The trial."""
    problem: str
    """The problem."""
    source: str
    """`ncu` or `simulated`."""
    device: str
    """Model of the GPU, or `sim:l4`."""
    created: str
    """When, in ISO 8601."""
    result: Mapping[str, Any]
    """What the command's `--json` prints, source lines apart."""

    @classmethod
    def of(cls, row: Row) -> ProfileRecord:
        """Return the record that a row holds."""
        return cls(
            row["trial"], row["problem"], row["source"], row["device"], row["created"], json.loads(row["result"])
        )


def add_profile(path: Path, study: StudyRecord, trial: int, result: Mapping[str, Any]) -> None:
    """Keep a profile with its trial.

    Args:
        path: the database.
        study: the trial's study.
        trial: the trial's number.
        result: what the command's `--json` prints; source lines, most of its size, are left out.

    Raises:
        StoreError: the database cannot be written, or a search has it.
    """
    launches = [{key: value for key, value in launch.items() if key != "lines"} for launch in result["launches"]]
    row = {"uuid": str(uuid.uuid4()), "study": study.uuid, "trial": trial, "created": now()}
    row |= {name: result[name] for name in ("problem", "source", "device")}
    with addition(path) as database:
        write_row(database, "evokern_profiles", {**row, "result": dumps({**result, "launches": launches})})
