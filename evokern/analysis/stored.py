"""A trial of a database as something that can be built again: which one, its kernel's code as it ran, its chip."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from evokern.declaration.kernel import Kernel
from evokern.declaration.kernel_files import files_digest, kernel_files
from evokern.declaration.space import Config
from evokern.errors import KernelError, SpaceError, StudyError
from evokern.hardware.profiles import CHIPS, Profile, chip
from evokern.store import Reader, SessionRecord, StudyRecord, TrialRecord
from evokern.study.discovery import find_kernel, find_kernel_folder, load_kernel
from evokern.study.trial import Trial
from evokern.study.trust import why_distrusted
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
            f"(`{command('show', record.name, '--db', reader.path)}` tells what became of the "
            "others); name a trial with --trial"
        )
    return reader.trial(record, best.number)


def stored_kernel(reader: Reader, record: StudyRecord, digest: str, scratch: Path, *, trust: bool) -> Kernel:
    """Return the kernel as a trial ran it: its folder, or the copy that the database keeps.

    Args:
        reader: the open database.
        record: the trial's study.
        digest: SHA-256 over the kernel's files when the trial was proposed.
        scratch: an empty folder that the copy may be written to, which lives as long as the kernel is used.
        trust: run the copy's kernel.py where the folder is gone, changed, or not the user's own. The folder that the
            database names is never trusted for it.

    Raises:
        KernelError: the folder is not what the trial ran, and the copy is missing or not trusted.
    """
    wanted = str(record.settings.get("kernel", record.kernel))
    path = record.settings.get("path")
    files = reader.source(digest)
    try:
        folder = find_kernel_folder(wanted, Path(path).parent if path else None)
        if digest not in _digests(folder, files):  # before any of its code runs
            why = f"the code of kernel {record.kernel} changed since that trial ran"
        elif foreign := why_distrusted(folder):
            why = f"the code of that trial lies in {folder}, {foreign}"
        else:
            kernel = find_kernel(str(folder))
            if kernel.digest() == digest:
                return kernel
            why = f"the code of kernel {record.kernel} is just being changed"
    except KernelError as error:
        why = str(error)
    if "kernel.py" not in files:
        raise KernelError(f"{why}; the database keeps no copy of the code either")
    if not trust:
        raise KernelError(f"{why}; --trust runs the kernel.py that the database keeps a copy of")
    return load_kernel(_write_copy(files, scratch, record.kernel))


def _digests(folder: Path, kept: Mapping[str, str]) -> set[str]:
    """Return what a folder's digest may be, whichever of the kept files is its source; nothing of it is run."""
    sources = ["kernel.py", *(name for name in kept if "/" in name and not name.startswith(".."))]
    return {files_digest(kernel_files(folder, name)) for name in sources if (folder / name).is_file()}


def declared_config(kernel: Kernel, record: StudyRecord, trial: Trial) -> Config:
    """Return a trial's configuration, whose values go into compiler options and source, as the kernel declares it.

    Raises:
        StudyError: a value that the database has for a gene is none of the kernel's.
    """
    try:
        return kernel.space.canonical(trial.config)
    except SpaceError as error:
        raise StudyError(f"trial {trial.number} of {record.name} is no candidate of {kernel.name}: {error}") from error


def _write_copy(files: Mapping[str, str], scratch: Path, kernel: str) -> Path:
    """Write a kernel's files as the database keeps them; headers beside its folder go beside it. Returns the folder.

    Raises:
        KernelError: a file's name leads out of `scratch`.
    """
    root = Path(os.path.normpath(scratch))
    folder = root / kernel
    for name, text in files.items():
        path = Path(os.path.normpath(folder / name))
        if root not in path.parents:
            raise KernelError(
                f"the database keeps a copy of {name!r}, a file far from its kernel's folder: not written"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def chip_of(device: str, sessions: Sequence[SessionRecord]) -> Profile:
    """Return the chip that a study's device is, or stands for.

    Args:
        device: the study's device: a model such as `NVIDIA H200`, or `sim:l4`.
        sessions: the study's sessions, whose environment tells the compute capability of a chip not listed.

    Raises:
        StudyError: nothing is known of the chip.
    """
    kind, _, rest = device.partition(":")
    if kind == "sim":
        return chip(rest)
    for profile in CHIPS.values():
        if profile.model.lower() == device.lower():
            return profile
    for session in reversed(sessions):
        capability = session.environment.get("compute_capability")
        if capability:
            numbers = [int(part) for part in str(capability).strip("[]() ").replace(",", ".").split(".")[:2]]
            near = [p for p in CHIPS.values() if p.compute_capability <= (numbers[0], numbers[1])]
            base = max(near, key=lambda p: p.compute_capability) if near else CHIPS["a100"]
            return replace(base, model=device, compute_capability=(numbers[0], numbers[1]))
    raise StudyError(f"the chip of {device!r} is not known: {', '.join(p.model for p in CHIPS.values())} are")
