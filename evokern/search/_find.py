"""What is searched: study, device, kernel, space. The device is opened first, so that its processes begin to import.

Nothing here imports Optuna: a live device's workers import torch for seconds, and the search's own imports pass beside
them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evokern.device import Device
from evokern.device._open import open_device
from evokern.device.table import TableDevice
from evokern.discovery import find_study, kernel_of
from evokern.errors import StudyError
from evokern.feasibility import feasible_space
from evokern.kernel import Kernel
from evokern.profiles import limits_for
from evokern.search._identity import Subject, problems_of
from evokern.store import database_of, open_recording
from evokern.study import Study


def find(study: str | Path | Study, device: str | Device | None, kernel: Kernel | None, *, trust: bool) -> Subject:
    """Find study, device, kernel and space.

    Raises:
        UsageError: one of them is unknown or unsound.
    """
    found = study if isinstance(study, Study) else find_study(str(study))
    chosen = found.device if device is None else device
    if isinstance(chosen, str):
        found = replace(found, device=chosen)
        opened = _open(chosen)
    else:
        opened = chosen
    try:
        if isinstance(opened, TableDevice):
            table = opened.table
            if found.genes or found.limits:
                raise StudyError(f"study {found.name} narrows genes or limits; {opened.identity} is searched as it is")
            played = table.kernel()
            return Subject(found, played, (played.problem({}),), table.space(), opened, table)
        loaded = kernel or kernel_of(found, trust=trust)
        problems = problems_of(found, loaded)
        chip = limits_for(opened.profile, found.limits)
        return Subject(found, loaded, problems, feasible_space(loaded, problems, chip, found.genes), opened)
    except BaseException:
        opened.close()
        raise


def _open(name: str) -> Device:
    """Return the device that a name means; `replay:runs.db:study` is a study of a database."""
    kind, _, source = name.strip().partition(":")
    recorded = kind.lower() == "replay" and database_of(source) is not None
    return TableDevice(open_recording(source)) if recorded else open_device(name)
