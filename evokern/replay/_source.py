"""What a user names as a recording, as a table."""

from __future__ import annotations

from evokern.device.recorded import read_recording
from evokern.device.table import Table
from evokern.store import database_of, read_study_table


def read_source(source: str) -> Table:
    """Return a recording's table.

    Args:
        source: a recording's file, or `runs.db:study`.

    Raises:
        UsageError: it cannot be read.
    """
    database = database_of(source)
    return read_study_table(*database) if database else read_recording(source)
