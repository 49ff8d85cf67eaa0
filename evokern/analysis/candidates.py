"""Stored candidates for a new build or evaluation: selection, configuration, chip and device."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from evokern.declaration.as_data.declared import check_functions
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.device import Device, Request, StartReport, Task
from evokern.device.opening import open_device
from evokern.errors import DeviceError, InternalError, RefutedError, SpaceError, StudyError
from evokern.hardware.profiles import CHIPS, Profile, chip
from evokern.search.identity import problems_of, study_of
from evokern.search.stored_kernel import stored_kernel
from evokern.store import Reader, SessionRecord, StudyRecord, TrialRecord
from evokern.study.settings import GateSettings, Study
from evokern.study.trial import Evaluation, Outcome, Trial
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


RESULT_TIMEOUT_S = 600.0
"""Time in seconds without a result after which a device counts as failed."""


@dataclass(frozen=True)
class TrialUnderTest:
    """A trial under test, with the data of its study."""

    record: StudyRecord
    """The stored study."""
    study: Study
    """The study's settings."""
    kernel: Kernel
    """The kernel in the version that the trial used."""
    problems: tuple[Problem, ...]
    """The study's problems."""
    trial: Trial
    """The trial under test: the champion or the requested trial."""
    elites: tuple[Trial, ...]
    """Fastest measured trials with different programs, fastest first; refuted trials are omitted."""
    baseline: tuple[str, float] | None
    """Name of the baseline and its time in µs, or None."""

    def task(self, *, strict: bool = False) -> Task:
        """Return the evaluation task without racing; `strict` uses all permitted input sets and at least three runs."""
        study = replace(self.study, timing=replace(self.study.timing, race=0.0))
        if strict:
            # `GateSettings` keeps only normal inputs if the study is restricted to them.
            kinds = dict.fromkeys((*self.study.gate.input_sets, *GateSettings().input_sets))
            study = replace(study, gate=replace(self.study.gate, input_sets=tuple(kinds), runs=max(3, study.gate.runs)))
        # A strict check draws other inputs than the search.
        secret = self.record.secret and self.record.secret ^ int(strict)
        return Task(self.kernel, self.problems, study, secret=secret)


@contextmanager
def trial_under_test(
    reader: Reader, name: str | None, number: int | None, *, elites: int, trust: bool
) -> Iterator[TrialUnderTest]:
    """Return a trial under test; the kernel folder may be a copy that exists only within the context.

    Raises:
        UsageError: the study or trial does not exist, no trial was measured, or the kernel is missing.
    """
    record = reader.study(name)
    if record.device.startswith("replay:"):
        raise StudyError(
            f"study {record.name} was replayed from a recording, which has no kernel to run; use `evokern show` or "
            "`evokern report`"
        )
    found = chosen_trial(reader, record, number)
    study = study_of(record)
    with TemporaryDirectory(prefix="evokern-") as scratch:
        kernel = stored_kernel(reader, record, found.kernel_digest, Path(scratch), trust=trust)
        check_functions(kernel)
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
    """Return the device for a study's candidates, without starting the device.

    Args:
        record: the study.
        name: the requested device; None for the study's device.

    Raises:
        DeviceError: the device is not available; the message lists alternatives.
    """
    if name is None and record.device.startswith("sim:"):
        return open_device(record.device)
    remedy = f"`{command('show', record.name)}` and `{command('report', record.name)}` need no device"
    try:
        device = open_device(name or "cuda:0")
    except DeviceError as error:
        raise DeviceError(
            f"study {record.name} ran on {record.device}, which is not available ({error}); use --device sim:CHIP to "
            f"check its candidates on a simulated chip; {remedy}"
        ) from error
    if name is None and device.identity != record.device:
        raise DeviceError(
            f"study {record.name} ran on {record.device}, but the current device is {device.identity}; choose a device "
            f"with --device; {remedy}"
        )
    return device


@contextmanager
def running_device(device: Device, task: Task) -> Iterator[StartReport]:
    """Start a device, and close it when the context ends.

    Raises:
        UsageError: the device, the compiler or the workload does not work.
    """
    try:
        yield device.start(task)
    finally:
        device.close()


def evaluate(device: Device, configs: Sequence[Config]) -> list[Evaluation]:
    """Evaluate candidates on a started device; equal programs become duplicates with the same time.

    Raises:
        InternalError: the device returns no result for `RESULT_TIMEOUT_S` seconds.
    """
    answers: dict[int, Evaluation] = {}
    for number, config in enumerate(configs):
        device.submit(Request(number, config))
    last = time.monotonic()
    while len(answers) < len(configs):
        for answer in device.poll(1.0):
            answers[answer.number], last = answer.evaluation, time.monotonic()
        if time.monotonic() - last > RESULT_TIMEOUT_S:
            raise InternalError(f"{device.identity} returned no result for {RESULT_TIMEOUT_S:g} s")
    return [answers[number] for number in range(len(configs))]
