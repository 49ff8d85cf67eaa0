"""Short write access to a database outside a search: open, migrate, write, checkpoint and close it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlite_utils import Database

from evokern.store._files import CHECKPOINT_WAIT_S, check_location, checkpoint, connect, explain_errors, refuse_foreign
from evokern.store._lock import Lock
from evokern.store._schema import migrations, refuse_newer


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
