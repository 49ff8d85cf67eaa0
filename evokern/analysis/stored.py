"""A trial of a database as something that can be built again: which one, its configuration, its chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel
from evokern.errors import SpaceError, StudyError
from evokern.hardware.profiles import CHIPS, Profile, chip
from evokern.store import Reader, SessionRecord, StudyRecord, TrialRecord
from evokern.study.trial import Trial
from evokern.wording import command


def chosen_trial(reader: Reader, record: StudyRecord, trial: int | None) -> TrialRecord:
    """Return a trial by number, or the champion.

    Raises:
        StudyError: there is no such trial, or no measured one.
    """
    if trial is not None:
        return reader.trial(record, trial)
    best = reader.best(record)
    if best is None:
        raise StudyError(
            f"study {record.name} has no measured trial yet "
            f"(`{command('show', record.name, '--db', reader.path)}` tells what became of the others); let it search "
            f"longer with `{command('resume', record.name, '--extend', '10m', '--db', reader.path)}`, or name a trial "
            "with --trial"
        )
    return reader.trial(record, best.number)


def declared_config(kernel: Kernel, record: StudyRecord, trial: Trial) -> Config:
    """Return a trial's configuration, whose values go into compiler options and source, as the kernel declares it.

    Raises:
        StudyError: a value that the database has for a gene is none of the kernel's.
    """
    try:
        return kernel.space.canonical(trial.config)
    except SpaceError as error:
        raise StudyError(f"trial {trial.number} of {record.name} is no candidate of {kernel.name}: {error}") from error


def chip_of(device: str, sessions: Sequence[SessionRecord]) -> Profile:
    """Return the chip that a study's device is, or stands for.

    Args:
        device: the study's device: a model such as `NVIDIA H200`, or `sim:l4`.
        sessions: the study's sessions, whose environment tells the chip that a recording was made on, and the compute
            capability of one not listed.

    Raises:
        StudyError: nothing is known of the chip.
    """
    kind, _, rest = device.partition(":")
    if kind == "sim":
        return chip(rest)
    named = [device, *(str(session.environment.get("chip", "")) for session in reversed(sessions))]
    for model in named:
        for profile in CHIPS.values():
            if profile.model.lower() == model.lower():
                return profile
    for session in reversed(sessions):
        capability = session.environment.get("compute_capability")
        if capability:
            numbers = [int(part) for part in str(capability).strip("[]() ").replace(",", ".").split(".")[:2]]
            near = [p for p in CHIPS.values() if p.compute_capability <= (numbers[0], numbers[1])]
            base = max(near, key=lambda p: p.compute_capability) if near else CHIPS["a100"]
            return replace(base, model=device, compute_capability=(numbers[0], numbers[1]))
    raise StudyError(f"the chip of {device!r} is not known: {', '.join(p.model for p in CHIPS.values())} are")
