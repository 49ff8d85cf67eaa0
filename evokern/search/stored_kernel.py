"""Load the version of a kernel that a stored trial ran: from its folder if the digest matches, else from the database.

The folder that a database names is not trusted, and its digest is compared before any of its code runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from evokern.compile.device_code import split_options
from evokern.declaration.as_data.changes import newest_texts
from evokern.declaration.as_data.declared import check_functions, content_of, data_of
from evokern.declaration.bounds.strict import judged_in
from evokern.declaration.kernel import Kernel
from evokern.declaration.kernel_files import (
    OUTSIDE,
    KernelContent,
    changed_since,
    kernel_files,
    stored_outside,
    write_kernel_files,
)
from evokern.errors import CodeChangedError, KernelError
from evokern.ownership import who_else_can_modify
from evokern.store import Reader, StudyRecord
from evokern.study.discovery import distrust_reason, find_kernel, find_kernel_folder, load_kernel
from evokern.wording import command


def stored_kernel(
    reader: Reader, record: StudyRecord, digest: str, scratch: Path, *, trust: bool, otherwise: str = ""
) -> Kernel:
    """Return the version of the kernel that a trial ran, from its folder or from the copy in the database.

    Args:
        reader: the open database.
        record: the trial's study.
        digest: SHA-256 of the kernel's files when the trial was proposed.
        scratch: empty folder for the copy; must exist as long as the kernel is used.
        trust: run the copy's kernel.py if the folder is missing, changed, or not trusted. The folder that the database
            names is never trusted.
        otherwise: alternative to name in the message if the folder's code changed.

    Raises:
        KernelError: the folder's code differs from the trial's, and the stored copy is missing or not trusted.
    """
    kernel = _stored_kernel(reader, record, digest, scratch, trust=trust, otherwise=otherwise)
    return judged_in(kernel, record.settings.get("gate", {}).get("precision", "declared"))


def _stored_kernel(
    reader: Reader, record: StudyRecord, digest: str, scratch: Path, *, trust: bool, otherwise: str
) -> Kernel:
    files = reader.source(digest)
    if data_of(files) is not None:
        files = dict(newest_texts(files, reader.source(record.kernel_digest)))
        if not trust and (why := who_else_can_modify(reader.path)):
            raise KernelError(f"the code of that trial is in {reader.path}, {why}; inspect it, then pass --trust")
        kernel = load_kernel(scratch, content_of(files, scratch))
        if rejected := split_options(kernel.options)[1]:
            raise KernelError(f"the stored compiler options {', '.join(rejected)} are not for NVRTC; search again")
        return kernel
    outside, instead = stored_outside(files), ""
    try:
        folder = named_folder(record)
        if changed := [name for name, (known, _) in outside.items() if changed_since(known, folder / name)]:
            listed = ", ".join(os.path.normpath(folder / name) for name in changed)
            raise CodeChangedError(
                f"{listed} changed since that trial ran, and the "
                "database has no copy of headers outside the kernel's folder; restore what changed, or search again "
                "with --fresh" + (f"; {otherwise}" if otherwise else "")
            )
        if digest not in _digests(folder, files):  # before any of its code runs
            why, instead = f"the code of kernel {record.kernel} changed since that trial ran", otherwise
        elif foreign := distrust_reason(folder):
            why = f"the code of that trial is in {folder}, {foreign}"
            instead = f"to trust that folder, run `{command('check', folder, '--trust')}`"
        else:
            kernel = find_kernel(str(folder))
            if kernel.digest() == digest:
                return kernel
            why = f"the code of kernel {record.kernel} is being changed"
    except CodeChangedError:
        raise
    except KernelError as error:
        why = str(error)
    if "kernel.py" not in files:
        raise KernelError(f"{why}; the database has no copy of the code" + (f"; {instead}" if instead else ""))
    if not trust:
        what = f"{why}; to run the database's copy of kernel.py instead of the folder, use --trust"
        raise KernelError(what + (f"; {instead}" if instead else ""))
    contents = {name: text.encode() for name, text in files.items() if not name.startswith(OUTSIDE)}
    kernel = load_kernel(write_kernel_files(scratch, record.kernel, contents), keep=True)
    now = kernel.read_content().outside
    if missing := [name for name, (known, _) in outside.items() if now.get(name) != known]:
        raise KernelError(
            f"{why}; the database's copy cannot run either, because it does not contain {missing[0]}, a header outside "
            f"the kernel's folder; restore {missing[0]} as it was when that trial ran"
        )
    return kernel


def resumed_kernel(reader: Reader, record: StudyRecord, scratch: Path, *, trust: bool, allow_changes: bool) -> Kernel:
    """Return the kernel for resuming a study.

    Args:
        reader: the open database.
        record: the study.
        scratch: as in `stored_kernel`; workers load the kernel from it.
        trust: as in `stored_kernel`.
        allow_changes: use the folder's current code if it is trusted.

    Raises:
        KernelError: as in `stored_kernel`, or the folder's code is not trusted.
    """
    if data_of(reader.source(record.kernel_digest)) is not None:
        kernel = stored_kernel(reader, record, record.kernel_digest, scratch, trust=trust)
        check_functions(kernel)
        return kernel
    tried = any(reader.outcomes(record).values())  # without trials there is nothing to contradict
    if allow_changes or not tried:
        try:
            folder = named_folder(record)
        except KernelError:
            folder = None
        if folder is not None and not distrust_reason(folder):
            return find_kernel(str(folder))
    otherwise = "to run the folder's current code and keep the old results, use --allow-changes"
    return _stored_kernel(reader, record, record.kernel_digest, scratch, trust=trust, otherwise=otherwise)


def named_folder(record: StudyRecord) -> Path:
    """Return the folder that a database names for a study's kernel, without running its code.

    Raises:
        KernelError: there is no such folder.
    """
    path = record.settings.get("path")
    return find_kernel_folder(str(record.settings.get("kernel", record.kernel)), Path(path).parent if path else None)


def _digests(folder: Path, kept: Mapping[str, str]) -> set[str]:
    """Return the digests that a folder may have: one for each stored file that may be the kernel's source."""
    sources = ["kernel.py", *(name for name in kept if "/" in name and not name.startswith(("..", OUTSIDE)))]
    outside = {name: digest for name, (digest, _) in stored_outside(kept).items()}  # changed ones were refused before
    found = (kernel_files(folder, name) for name in sources if (folder / name).is_file())
    return {KernelContent(files, outside).digest() for files in found}
