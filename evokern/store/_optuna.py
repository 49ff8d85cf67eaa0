"""Optuna's tables in our file: the record that `optuna-dashboard` reads. No sampler of ours ever reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import distribution_to_json
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import TrialState
from sqlalchemy import event
from sqlite_utils import Database

from evokern.errors import InternalError
from evokern.samplers import Result
from evokern.samplers._base import distributions
from evokern.space import Config, Space
from evokern.store._files import TIMEOUT_S, apply_pragmas


def open_storage(path: Path) -> RDBStorage:
    """Open Optuna's storage on a file, with the same write-ahead log and durability as our own connection."""
    storage = RDBStorage(
        f"sqlite:///{path.resolve()}", engine_kwargs={"connect_args": {"timeout": TIMEOUT_S}}, skip_table_creation=False
    )

    def durable(connection: Any, _record: Any) -> None:
        apply_pragmas(connection)

    event.listen(storage.engine, "connect", durable)
    storage.engine.dispose()  # connections opened while the tables were made do not have the pragmas
    return storage


def close_storage(storage: RDBStorage) -> None:
    """Close every connection of a storage."""
    storage.remove_session()
    storage.engine.dispose()


class OptunaStudy:
    """One study's trials in Optuna's tables, told in number order; everything here may be repeated harmlessly."""

    def __init__(self, storage: RDBStorage, db: Database, name: str, attrs: dict[str, Any], space: Space) -> None:
        self._storage = storage
        self._db = db
        self._distributions = [
            (name, distribution, distribution_to_json(distribution))
            for name, distribution in distributions(space).items()
        ]
        try:
            self._study_id = storage.get_study_id_from_name(name)
        except KeyError:
            self._study_id = storage.create_new_study([StudyDirection.MINIMIZE], name)
            for key, value in attrs.items():
                storage.set_study_user_attr(self._study_id, key, value)
        # Through Optuna's own objects this takes seconds for thousands of trials.
        sql = "SELECT trial_id, state FROM trials WHERE study_id = ? ORDER BY trial_id"
        rows = db.execute(sql, [self._study_id]).fetchall()
        self._ids = [trial_id for trial_id, _ in rows]
        self._told = {number for number, (_, state) in enumerate(rows) if state not in ("RUNNING", "WAITING")}
        sql = "SELECT trial_id, count(*) FROM trial_params JOIN trials USING (trial_id) WHERE study_id = ? GROUP BY 1"
        counts = dict(db.execute(sql, [self._study_id]).fetchall())
        whole = len(self._distributions)
        self._complete = {number for number, trial_id in enumerate(self._ids) if counts.get(trial_id) == whole}

    def begin(self, number: int, config: Config, *, control: bool = False) -> None:
        """Write a trial as running, with its parameters; does nothing where it stands already.

        Args:
            number: trial number.
            config: its configuration.
            control: whether the study's control drew it; user attribute `control`.
        """
        if number in self._complete:
            return
        if number >= len(self._ids):
            self._ids.append(self._storage.create_new_trial(self._study_id))
        if number >= len(self._ids):
            raise InternalError(f"trial {number} of the store comes after {len(self._ids)} of Optuna's tables")
        if control:
            self._storage.set_trial_user_attr(self._ids[number], "control", True)
        # Optuna's own call looks the trial and the parameter's history up for each parameter: 10 ms a trial with a
        # dozen genes, against 0.1 ms here.
        rows = [
            (self._ids[number], name, distribution.to_internal_repr(config[name]), text)
            for name, distribution, text in self._distributions
        ]
        with self._db.atomic():
            self._db.conn.executemany(
                "INSERT OR IGNORE INTO trial_params (trial_id, param_name, param_value, distribution_json) "
                "VALUES (?, ?, ?, ?)",
                rows,
            )
        self._complete.add(number)

    def tell(self, result: Result) -> None:
        """Write a trial's end; does nothing where it stands already."""
        if result.number in self._told:
            return
        trial_id = self._ids[result.number]
        attrs = optuna_attrs(result)
        for key, value in attrs.items():
            self._storage.set_trial_system_attr(trial_id, key, value)
        if result.state is TrialState.PRUNED and result.value is not None:
            self._storage.set_trial_intermediate_value(trial_id, 0, result.value)
        self._storage.set_trial_user_attr(trial_id, "outcome", result.outcome.value)
        values = None if result.value is None else [result.value]
        self._storage.set_trial_state_values(trial_id, result.state, values)
        self._told.add(result.number)


def optuna_attrs(result: Result) -> dict[str, float]:
    """Return the system attributes in which Optuna keeps `Trial.set_constraint`."""
    return {f"constraints:{key}": amount for key, amount in result.constraints.items()}


def quiet() -> None:
    """Keep Optuna's messages about each study and trial away from the user."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
