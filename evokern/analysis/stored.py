"""Preparation of a stored trial for a new build: its selection, configuration and chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel
from evokern.errors import RefutedError, SpaceError, StudyError
from evokern.hardware.profiles import CHIPS, Profile, chip
from evokern.store import Reader, SessionRecord, StudyRecord, TrialRecord
from evokern.study.trial import Outcome, Trial
from evokern.wording import command


def chosen_trial(reader: Reader, record: StudyRecord, trial: int | None) -> TrialRecord:
    """Return a trial by number, or the champion.

    Raises:
        StudyError: the trial does not exist, or the study has no measured trial.
    """
    if trial is not None:
        return reader.trial(record, trial)
    best = reader.best(record)
    if best is None and (refuted := reader.refuted(record)):
        raise RefutedError(
            f"every measured trial of study {record.name} failed its verification ({len(refuted)} refuted); "
            f"`{command('show', record.name, '--db', reader.path)}` shows the reasons; choose a trial by its number"
        )
    if best is None:
        longer = f"search longer with `{command('resume', record.name, '--extend', '10m', '--db', reader.path)}`"
        ended = any(Outcome(outcome).evaluated for outcome, count in reader.outcomes(record).items() if count)
        raise StudyError(
            f"study {record.name} has no measured trial yet "
            f"(`{command('show', record.name, '--db', reader.path)}` shows how its trials ended); "
            f"{'correct the kernel or its declaration' if ended else longer}, or choose a trial by its number"
        )
    return reader.trial(record, best.number)


def declared_config(kernel: Kernel, record: StudyRecord, trial: Trial) -> Config:
    """Return a trial's configuration, validated against the kernel, because its values enter compiler options.

    Raises:
        StudyError: the kernel does not declare a stored gene value.
    """
    try:
        return kernel.space.canonical(trial.config)
    except SpaceError as error:
        raise StudyError(
            f"trial {trial.number} of {record.name} is not a candidate of {kernel.name}: {error}"
        ) from error


def chip_of(device: str, sessions: Sequence[SessionRecord]) -> Profile:
    """Return the profile of a study's chip.

    Args:
        device: the study's device: a model such as `NVIDIA H200`, or `sim:l4`.
        sessions: the study's sessions. Their environment names the chip of a recording, and the compute capability of
            an unlisted chip.

    Raises:
        StudyError: the chip is unknown.
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
    raise StudyError(
        f"the chip of {device!r} is unknown; the known chips are {', '.join(p.model for p in CHIPS.values())}"
    )
