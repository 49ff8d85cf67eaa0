"""Trials of a study as a pandas data frame."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from evokern.errors import UsageError
from evokern.store import interval_us
from evokern.study.trial import Trial

if TYPE_CHECKING:
    import pandas


def trials_dataframe(trials: Iterable[Trial], genes: Sequence[str]) -> pandas.DataFrame:
    """Return a data frame with one row per trial (see `StudyResults.trials_dataframe`).

    Args:
        trials: the trials.
        genes: names of the genes, in declaration order.

    Raises:
        UsageError: pandas is not installed.
    """
    pandas = notebook_library("pandas", "trials_dataframe")
    rows = [_row(trial, genes) for trial in trials]
    return pandas.DataFrame({column: [row[column] for row in rows] for column in _columns(genes)}).astype(
        {"time_us": float, "ci95_low_us": float, "ci95_high_us": float, "occupancy": float}
    )


def notebook_library(name: str, method: str) -> Any:
    """Import a library of the extra `evokern[notebook]`.

    Args:
        name: name of the library.
        method: method that needs it, for the message.

    Raises:
        UsageError: the library is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        top = name.partition(".")[0]
        raise UsageError(
            f"{method} needs {top}, which is not installed; run `pip install 'evokern[notebook]'` or "
            f"`pip install {top}`, or use `.trials` instead"
        ) from error


def _columns(genes: Sequence[str]) -> list[str]:
    return [
        *("number", "outcome", "time_us", *(f"params_{name}" for name in genes)),
        *("ci95_low_us", "ci95_high_us", "reason", "control", "seconds", "compile_s", "device_s"),
        *("registers", "spill_bytes", "shared_bytes", "occupancy", "fingerprint"),
    ]


def _row(trial: Trial, genes: Sequence[str]) -> dict[str, Any]:
    evaluation = trial.evaluation
    used = evaluation.resources
    low, high = interval_us(evaluation) or (None, None)
    return {
        "number": trial.number,
        "outcome": trial.outcome.value,
        "time_us": evaluation.time_us,
        **{f"params_{name}": trial.config.get(name) for name in genes},
        "ci95_low_us": low,
        "ci95_high_us": high,
        "reason": evaluation.reason,
        "control": trial.control,
        "seconds": trial.seconds,
        "compile_s": evaluation.compile_s,
        "device_s": evaluation.device_s,
        "registers": max((launch.registers for launch in used), default=None),
        "spill_bytes": max((launch.spill_bytes for launch in used), default=None),
        "shared_bytes": max(
            (launch.static_shared_bytes + launch.dynamic_shared_bytes for launch in used), default=None
        ),
        "occupancy": min((launch.occupancy for launch in used), default=None),
        "fingerprint": evaluation.fingerprint,
    }
