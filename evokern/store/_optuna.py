"""Writer of Optuna's tables in evokern's database, which `optuna-dashboard` reads but evokern's samplers do not.

Optuna creates the tables. This module writes their rows in the same transaction as evokern's rows. A trial therefore
needs one commit, and is in both sets of tables or in neither. Optuna's own storage would need seven commits (10 ms).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
from optuna.distributions import distribution_to_json
from optuna.trial import TrialState
from sqlite_utils import Database

from evokern.declaration.genes import Config
from evokern.declaration.space import Space
from evokern.errors import StoreError
from evokern.samplers import TrialResult
from evokern.samplers.optuna_view import constraint_attrs, distributions, state_of
from evokern.store._files import TIMEOUT_S

SCHEMA = (12, "v3.2.0.a")
"""Supported schema: Optuna's `version_info.schema_version` and `alembic_version.version_num`."""


def refuse_other_version(db: Database, path: Path) -> None:
    """Reject a file with tables of another Optuna version, before writing to it.

    Raises:
        StoreError: if the schema is not `SCHEMA`.
    """
    found = _schema(db)
    if found is not None and found != SCHEMA:
        raise StoreError(
            f"{path} has tables of another Optuna version ({found[1]}; this evokern writes {SCHEMA[1]}); upgrade "
            f"older tables with `optuna storage upgrade --storage {storage_url(path)}`, or upgrade evokern to read "
            "newer ones"
        )


def storage_url(path: Path) -> str:
    """Return the URL of a database for Optuna's commands, escaped for SQLAlchemy."""
    return f"sqlite:///{quote(str(path))}"


def require_tables(db: Database, path: Path) -> None:
    """Let Optuna create its tables if they are missing.

    Raises:
        StoreError: if the tables belong to another version of Optuna.
    """
    if _schema(db) == SCHEMA:
        return
    # Imported only for a new file, because Optuna's storage imports SQLAlchemy and Alembic (half a second).
    from optuna.storages import RDBStorage
    from sqlalchemy.pool import NullPool

    try:
        # A `creator` instead of a URL, because a file name may contain characters with a meaning in URLs, such as "?".
        storage = RDBStorage("sqlite://", engine_kwargs={"creator": lambda: _connect(path), "poolclass": NullPool})
    except RuntimeError as error:
        raise StoreError(
            f"{path} has tables of another Optuna version ({error}); upgrade them with `optuna storage upgrade "
            f"--storage {storage_url(path)}`"
        ) from error
    storage.remove_session()
    storage.engine.dispose()
    made = _schema(db)
    if made != SCHEMA:
        raise StoreError(
            f"Optuna {optuna.__version__} creates tables of version {made}, but this evokern writes {SCHEMA}; "
            "upgrade evokern or install optuna 5.0"
        )


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=TIMEOUT_S)


def _schema(db: Database) -> tuple[int, str] | None:
    if not {"version_info", "alembic_version"} <= set(db.table_names()):
        return None
    found = db.execute("SELECT schema_version, version_num FROM version_info, alembic_version").fetchone()
    return tuple(found) if found else None


METRIC_NAMES = "study:metric_names"
"""Key under which Optuna stores the names from `Study.set_metric_names`."""
OBJECTIVE = "log(time in µs)"
"""Name of the objective in Optuna's tables."""


class OptunaStudy:
    """Trials of one study in Optuna's tables, written in number order; every method can be repeated safely.

    The caller must have an open transaction on the same connection.
    """

    def __init__(self, db: Database, name: str, attrs: dict[str, Any], space: Space) -> None:
        self._execute = db.conn.execute
        self._executemany = db.conn.executemany
        self._distributions = [
            (name, distribution, distribution_to_json(distribution))
            for name, distribution in distributions(space).items()
        ]
        self._study_id = self._find(name) or self._create(name, attrs)
        sql = "INSERT OR IGNORE INTO study_system_attributes (study_id, key, value_json) VALUES (?, ?, ?)"
        self._execute(sql, [self._study_id, METRIC_NAMES, json.dumps([OBJECTIVE])])
        sql = "SELECT trial_id, state FROM trials WHERE study_id = ? ORDER BY trial_id"
        rows = self._execute(sql, [self._study_id]).fetchall()
        self._ids: list[int] = [trial_id for trial_id, _ in rows]
        self._reported = {number for number, (_, state) in enumerate(rows) if state not in ("RUNNING", "WAITING")}
        sql = "SELECT trial_id, count(*) FROM trial_params JOIN trials USING (trial_id) WHERE study_id = ? GROUP BY 1"
        counts = dict(self._execute(sql, [self._study_id]).fetchall())
        whole = len(self._distributions)
        self._complete = {number for number, trial_id in enumerate(self._ids) if counts.get(trial_id) == whole}

    def _find(self, name: str) -> int | None:
        found = self._execute("SELECT study_id FROM studies WHERE study_name = ?", [name]).fetchone()
        return int(found[0]) if found else None

    def _create(self, name: str, attrs: dict[str, Any]) -> int:
        study_id = self._execute("INSERT INTO studies (study_name) VALUES (?)", [name]).lastrowid
        assert study_id is not None  # SQLite assigns the row id
        sql = "INSERT INTO study_directions (direction, study_id, objective) VALUES ('MINIMIZE', ?, 0)"
        self._execute(sql, [study_id])
        sql = "INSERT INTO study_user_attributes (study_id, key, value_json) VALUES (?, ?, ?)"
        self._executemany(sql, [(study_id, key, json.dumps(value)) for key, value in attrs.items()])
        return study_id

    def begin(self, number: int, config: Config, *, control: bool = False) -> None:
        """Write a running trial with its parameters; do nothing if it was already written.

        Args:
            number: trial number.
            config: configuration of the trial.
            control: whether the study's control proposed the trial; stored as the user attribute `control`.
        """
        if number in self._complete:
            return
        if number > len(self._ids):
            raise StoreError(
                f"the database is damaged: Optuna's tables contain {len(self._ids)} trials of this study, but "
                f"evokern's contain at least {number}; restore a backup or choose another file with --db"
            )
        if number == len(self._ids):
            sql = "INSERT INTO trials (number, study_id, state, datetime_start) VALUES (?, ?, 'RUNNING', ?)"
            trial_id = self._execute(sql, [number, self._study_id, _now()]).lastrowid
            assert trial_id is not None
            self._ids.append(trial_id)
        rows = [
            (self._ids[number], name, distribution.to_internal_repr(config[name]), text)
            for name, distribution, text in self._distributions
        ]
        sql = "INSERT OR IGNORE INTO trial_params (trial_id, param_name, param_value, distribution_json) "
        self._executemany(sql + "VALUES (?, ?, ?, ?)", rows)
        if control:
            self._set_user_attr(self._ids[number], "control", True)
        self._complete.add(number)

    def resume(self) -> None:
        """Set trials that `suspend` marked as waiting back to running."""
        sql = "UPDATE trials SET state = 'RUNNING' WHERE study_id = ? AND state = 'WAITING'"
        self._execute(sql, [self._study_id])

    def running(self) -> list[int]:
        """Return the numbers of the trials whose results have not been written yet."""
        return [number for number in range(len(self._ids)) if number not in self._reported]

    def suspend(self, results: Iterable[TrialResult]) -> None:
        """Write the given results and mark all other running trials as waiting.

        Args:
            results: results of recorded trials that follow an unrecorded trial.
        """
        for result in results:
            self.tell(result)
        sql = "UPDATE trials SET state = 'WAITING' WHERE study_id = ? AND state = 'RUNNING'"
        self._execute(sql, [self._study_id])

    def tell(self, result: TrialResult) -> None:
        """Write the result of a trial; do nothing if it was already written."""
        if result.number in self._reported:
            return
        trial_id, state = self._ids[result.number], state_of(result)
        attrs = [(trial_id, key, json.dumps(value)) for key, value in constraint_attrs(result).items()]
        sql = "INSERT OR REPLACE INTO trial_system_attributes (trial_id, key, value_json) VALUES (?, ?, ?)"
        self._executemany(sql, attrs)
        self._set_user_attr(trial_id, "outcome", result.outcome.value)
        if result.value is not None:
            if state is TrialState.PRUNED:
                sql = "INSERT OR REPLACE INTO trial_intermediate_values "
                sql += "(trial_id, step, intermediate_value, intermediate_value_type) VALUES (?, 0, ?, 'FINITE')"
                self._execute(sql, [trial_id, result.value])
            sql = "INSERT OR REPLACE INTO trial_values (trial_id, objective, value, value_type) "
            self._execute(sql + "VALUES (?, 0, ?, 'FINITE')", [trial_id, result.value])
        sql = "UPDATE trials SET state = ?, datetime_complete = ? WHERE trial_id = ?"
        self._execute(sql, [state.name, _now(), trial_id])
        self._reported.add(result.number)

    def _set_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        sql = "INSERT OR REPLACE INTO trial_user_attributes (trial_id, key, value_json) VALUES (?, ?, ?)"
        self._execute(sql, [trial_id, key, json.dumps(value)])


def _now() -> str:
    """Return the current time in Optuna's format: UTC without a time zone, with a resolution of one microsecond."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def hide_optuna_messages() -> None:
    """Hide Optuna's messages about each study and trial."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
