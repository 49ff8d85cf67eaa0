"""A study's candidates on a device again: which ones, the device they belong to, their evaluations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from evokern.analysis.stored import chosen_trial, declared_config
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.device import Device, Request, StartReport, Task
from evokern.device.opening import open_device
from evokern.errors import DeviceError, InternalError, StudyError
from evokern.search.identity import problems_of, study_of
from evokern.search.stored_kernel import stored_kernel
from evokern.store import Reader, StudyRecord
from evokern.study.settings import Study
from evokern.study.trial import Evaluation, Outcome, Trial
from evokern.wording import command

SILENT_S = 600.0
"""Seconds without an answer after which a device is given up."""


@dataclass(frozen=True)
class TrialUnderTest:
    """A study with one of its trials in focus."""

    record: StudyRecord
    """The study."""
    study: Study
    """Its settings."""
    kernel: Kernel
    """The kernel as the trial ran it."""
    problems: tuple[Problem, ...]
    """The problems."""
    trial: Trial
    """The trial in focus: the champion, or one that was named."""
    elites: tuple[Trial, ...]
    """The fastest measured trials with different programs that no verification refuted, the fastest first."""
    baseline: tuple[str, float] | None
    """Name and time in µs of what the user would run instead."""

    def task(self, *, strict: bool = False) -> Task:
        """Return what a device is started with: no racing, and with `strict` every kind of input and three runs."""
        study = replace(self.study, timing=replace(self.study.timing, race=0.0))
        if strict:
            kinds = dict.fromkeys((*self.study.gate.input_sets, "normal", "large", "equal_rows", "denormal", "edges"))
            study = replace(study, gate=replace(self.study.gate, input_sets=tuple(kinds), runs=max(3, study.gate.runs)))
        return Task(self.kernel, self.problems, study, secret=self.record.secret)


@contextmanager
def subject(
    reader: Reader, name: str | None, number: int | None, *, elites: int, trust: bool
) -> Iterator[TrialUnderTest]:
    """Find a study's candidates; the kernel's folder may be a copy that lives as long as the context.

    Raises:
        UsageError: there is no such study or trial, none was measured, or the kernel is gone.
    """
    record = reader.study(name)
    if record.device.startswith("replay:"):
        raise StudyError(
            f"study {record.name} was played from a recording, which has no kernel to run; `evokern show` and "
            "`evokern report` work"
        )
    found = chosen_trial(reader, record, number)
    study = study_of(record)
    with TemporaryDirectory(prefix="evokern-") as scratch:
        kernel = stored_kernel(reader, record, found.kernel_digest, Path(scratch), trust=trust)
        problems = problems_of(study, kernel)
        others = _elites(reader, record, elites)
        for trial in (found.trial, *others):
            declared_config(kernel, record, trial)
        yield TrialUnderTest(record, study, kernel, problems, found.trial, others, reader.baseline(record))


def _elites(reader: Reader, record: StudyRecord, most: int) -> tuple[Trial, ...]:
    refuted = reader.refuted(record)
    measured = [t for t in reader.trials(record) if t.outcome is Outcome.MEASURED and t.number not in refuted]
    measured.sort(key=lambda t: (t.evaluation.time_us or 0.0, t.number))
    distinct: dict[str, Trial] = {}
    for trial in measured:
        distinct.setdefault(trial.evaluation.fingerprint or str(trial.number), trial)
    return tuple(distinct.values())[:most]


def device_for(record: StudyRecord, name: str | None) -> Device:
    """Return the device that a study's candidates run on, not started.

    Args:
        record: the study.
        name: what the user asked for; None takes the study's.

    Raises:
        DeviceError: it is not there; the message says what still works.
    """
    if name is None and record.device.startswith("sim:"):
        return open_device(record.device)
    remedy = f"`{command('show', record.name)}` and `{command('report', record.name)}` need no device"
    try:
        device = open_device(name or "cuda:0")
    except DeviceError as error:
        raise DeviceError(
            f"study {record.name} ran on {record.device}, which is not here ({error}); --device sim:CHIP checks its "
            f"candidates on a simulated one, {remedy}"
        ) from error
    if name is None and device.identity != record.device:
        raise DeviceError(
            f"study {record.name} ran on {record.device}, and this is {device.identity}: name a device with --device; "
            f"{remedy}"
        )
    return device


@contextmanager
def started(device: Device, task: Task) -> Iterator[StartReport]:
    """Start a device, and close it at the end.

    Raises:
        UsageError: the device, the compiler or the workload cannot work.
    """
    try:
        yield device.start(task)
    finally:
        device.close()


def evaluate(device: Device, configs: Sequence[Config]) -> list[Evaluation]:
    """Evaluate candidates on a started device; equal programs come back as duplicates with the same time.

    Raises:
        InternalError: the device does not answer.
    """
    answers: dict[int, Evaluation] = {}
    for number, config in enumerate(configs):
        device.submit(Request(number, config))
    last = time.monotonic()
    while len(answers) < len(configs):
        for answer in device.poll(1.0):
            answers[answer.number], last = answer.evaluation, time.monotonic()
        if time.monotonic() - last > SILENT_S:
            raise InternalError(f"{device.identity} did not answer for {SILENT_S:g} s")
    return [answers[number] for number in range(len(configs))]
