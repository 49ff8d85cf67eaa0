"""Optuna's tables in our file: the record that `optuna-dashboard` reads. No sampler of ours ever reads it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial
from sqlalchemy import event

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

    def __init__(self, storage: RDBStorage, name: str, attrs: dict[str, Any], space: Space) -> None:
        self._storage = storage
        self._distributions = distributions(space)
        try:
            self._study_id = storage.get_study_id_from_name(name)
        except KeyError:
            self._study_id = storage.create_new_study([StudyDirection.MINIMIZE], name)
            for key, value in attrs.items():
                storage.set_study_user_attr(self._study_id, key, value)
        trials = storage.get_all_trials(self._study_id, deepcopy=False)
        self._ids = [trial._trial_id for trial in trials]
        self._told = {trial.number for trial in trials if trial.state.is_finished()}

    def begin(self, number: int, config: Config) -> None:
        """Write a trial as running, with its parameters; does nothing where it stands already."""
        if number < len(self._ids):
            return
        template = create_trial(state=TrialState.RUNNING, params=dict(config), distributions=dict(self._distributions))
        template.datetime_start = datetime.now()
        trial_id = self._storage.create_new_trial(self._study_id, template)
        if number != len(self._ids):
            raise InternalError(f"trial {number} of the store is trial {len(self._ids)} of Optuna's tables")
        self._ids.append(trial_id)

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
