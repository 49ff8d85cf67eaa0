"""Selection of the candidate for `profile` and similar commands: kernel, configuration, problem and chip."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from evokern.analysis.candidates import chip_of, chosen_trial, declared_config
from evokern.analysis.check.folder import known_problems
from evokern.compile.build import Target, build
from evokern.compile.cache import default_cache
from evokern.compile.records import Built
from evokern.declaration.as_data.declared import check_functions
from evokern.declaration.feasibility import check
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.device.gpu.profile import LiveGpu, live_gpu
from evokern.device.opening import TARGET
from evokern.errors import DeviceError, KernelError, StudyError, UsageError
from evokern.files import is_file
from evokern.hardware.driver import probe
from evokern.hardware.profiles import Profile, chip, limits_for
from evokern.search.identity import problems_of, study_of
from evokern.search.stored_kernel import stored_kernel
from evokern.store import Reader, StudyRecord, open_readonly
from evokern.study.discovery import find_kernel, find_study, kernel_folders, kernel_of, study_files
from evokern.study.settings import Study
from evokern.study.trial import Trial


@dataclass(frozen=True)
class ProfileRequest:
    """Candidate to profile, as the user requested it."""

    name: str | None = None
    """Name or file of a study, or name or folder of a kernel; None selects the latest study."""
    db: Path = Path("evokern.db")
    """Database with results; it may be missing unless a trial is named."""
    trial: int | None = None
    """Number of a trial; None selects the champion."""
    changes: Mapping[str, str] | None = None
    """Gene values that replace those of the default candidate, or None."""
    problem: str | None = None
    """A problem; None selects the study's first problem."""
    device: str | None = None
    """`sim:CHIP` or `cuda:N`; None selects the study's GPU if this machine has it, else a simulation of its chip."""
    trust: bool = False
    """Whether to trust the kernel's code, which may be the copy in the database."""
    runs: bool = True
    """Whether the candidate runs, which needs the reference of a study that `evokern.tune` started."""


@dataclass(frozen=True)
class ProfileSubject:
    """A candidate for a problem on a chip."""

    title: str
    """Short description of the candidate."""
    kernel: Kernel
    """The kernel."""
    config: Config
    """The candidate."""
    problem: Problem
    """The problem."""
    chip: Profile
    """The chip with the study's resource limits."""
    study: Study
    """Study with the timing and simulation settings; default settings for a kernel without a study."""
    gpu: LiveGpu | None = None
    """The GPU, or None for a simulated chip."""
    record: StudyRecord | None = None
    """The stored study, or None."""
    trial: Trial | None = None
    """The candidate's trial, or None."""
    history: tuple[Trial, ...] = ()
    """All trials of the stored study."""
    remarks: tuple[str, ...] = ()
    """Notes about automatic choices."""

    def feasible(self, config: Config) -> bool:
        """Return whether a candidate is feasible for this problem on this chip."""
        return check(self.kernel, config, [self.problem], self.chip) is None

    def built(self) -> Built:
        """Compile the candidate for the chip.

        Raises:
            UsageError: the candidate is infeasible or does not compile.
        """
        violation = check(self.kernel, self.config, [self.problem], self.chip)
        if violation:
            raise UsageError(f"{self.title} cannot run at {self.problem} on {self.chip.model}: {violation}")
        built = build(self.kernel, self.config, [self.problem], Target(self.chip, default_cache()))
        if not isinstance(built, Built):
            raise UsageError(f"{self.title} cannot be built for {self.chip.model}: {built.outcome}: {built.reason}")
        return built


@contextmanager
def subject_of(request: ProfileRequest) -> Iterator[ProfileSubject]:
    """Return the requested candidate; the kernel folder may be a copy that exists only within the context.

    Raises:
        UsageError: the study, kernel, trial, gene, problem or chip does not exist.
    """
    if request.trial is not None and request.changes:
        raise UsageError("--trial and --set both choose a candidate; omit one of the two options")
    with tempfile.TemporaryDirectory(prefix="evokern-") as scratch:
        stored = _stored(request, Path(scratch))
        yield stored or _declared(request)


def _stored(request: ProfileRequest, scratch: Path) -> ProfileSubject | None:
    """Return a candidate of a stored study, or None if the name is a study file or a kernel."""
    if not is_file(request.db):
        if request.name is None or request.trial is not None:
            raise StudyError(
                f"there is no database {request.db} to read "
                f"{'a trial' if request.trial is not None else 'a study'} from; "
                "use --db FILE, or name a study or kernel without --trial, for example attention-s512"
            )
        return None
    with open_readonly(request.db) as reader:
        try:
            record = reader.study(request.name)
        except StudyError:
            if request.trial is not None or request.name is None:
                raise
            return None
        return _of_record(reader, record, request, scratch)


def _of_record(reader: Reader, record: StudyRecord, request: ProfileRequest, scratch: Path) -> ProfileSubject:
    if record.device.startswith("replay:"):
        raise StudyError(
            f"study {record.name} was replayed from a recording, which has no kernel; choose a study with a kernel"
        )
    study, sessions, trial = study_of(record), reader.sessions(record), None
    if request.changes:
        otherwise = "to profile the current code, use the kernel's folder instead of the study"
        kernel = stored_kernel(reader, record, record.kernel_digest, scratch, trust=request.trust, otherwise=otherwise)
        if request.runs:
            check_functions(kernel)
        config, title = _changed(kernel, request), f"a candidate of {record.name}"
    else:
        found = chosen_trial(reader, record, request.trial)
        kernel = stored_kernel(reader, record, found.kernel_digest, scratch, trust=request.trust)
        config, trial = declared_config(kernel, record, found.trial), found.trial
        title = f"trial {found.trial.number} of {record.name}"
        if request.runs:
            check_functions(kernel)
        title += " (the champion)" if request.trial is None else f" ({found.trial.evaluation.reason})"
    device, remarks = request.device, [*kernel.space.without_effect(config, request.changes or {})]
    if device is None and not record.device.startswith("sim:"):
        here = [gpu.index for gpu in probe().gpus if gpu.model == record.device]
        device = f"cuda:{here[0]}" if here else None
        if not here:
            remarks.append(f"the study ran on {record.device}, which this machine lacks; this profile is simulated")
    gpu, base = _device(device) if device else (None, chip_of(record.device, sessions))
    problem = _problem(study, kernel, request)
    return ProfileSubject(
        title, kernel, config, problem, limits_for(base, study.limits), study, gpu, record, trial,
        tuple(reader.trials(record)), tuple(remarks),
    )  # fmt: skip


def _declared(request: ProfileRequest) -> ProfileSubject:
    """Return a candidate of a study file or a kernel."""
    name = request.name or ""
    if name in study_files() or name.endswith(".toml"):
        study = find_study(name)
        kernel = kernel_of(study, trust=request.trust)
        problem = _problem(study, kernel, request)
        device, title = request.device or study.device, f"{study.name}"
    else:
        kernel = _kernel(name, request.trust)
        known = (kernel.problem(request.problem),) if request.problem else known_problems(kernel)[:1]
        if not known:
            raise KernelError(f"no problem of {kernel.name} is known; set a problem with --problem")
        problem, device, title = known[0], request.device or "auto", kernel.name
        study = Study(kernel.name, kernel.name, (dict(problem),))
    config = _changed(kernel, request)
    title = f"{'a' if request.changes else 'the default'} candidate of {title}"
    remarks = [*kernel.space.without_effect(config, request.changes or {})]
    if device == "auto":
        device = "cuda:0" if probe().gpus else f"sim:{TARGET}"
        remarks.append(f"--device not given; using {device}")
    gpu, base = _device(device)
    return ProfileSubject(
        title, kernel, config, problem, limits_for(base, study.limits), study, gpu, remarks=tuple(remarks)
    )


def _kernel(name: str, trust: bool) -> Kernel:
    try:
        return find_kernel(name, trust=trust)
    except KernelError as error:
        if "there is no kernel" not in str(error):
            raise
        known = ", ".join([*study_files(), *kernel_folders()])
        raise StudyError(f"there is no study or kernel {name!r}; known: {known}") from None


def _changed(kernel: Kernel, request: ProfileRequest) -> Config:
    return kernel.space.with_changes(kernel.space.default(), request.changes or {})


def _problem(study: Study, kernel: Kernel, request: ProfileRequest) -> Problem:
    wanted = study if request.problem is None else replace(study, problems=(request.problem,))
    return problems_of(wanted, kernel)[0]


def _device(device: str) -> tuple[LiveGpu | None, Profile]:
    """Return the GPU (None for a simulated chip) and the chip's profile."""
    kind, _, name = device.strip().partition(":")
    match kind.lower():
        case "sim":
            return None, chip(name or TARGET)
        case "auto" | "cuda" if not name or name.isdecimal():
            gpu = live_gpu(int(name or 0))
            return gpu, gpu.profile
    raise DeviceError(f"device {device!r} has no counters; use a GPU (cuda:N) or a simulated chip, for example sim:l4")
