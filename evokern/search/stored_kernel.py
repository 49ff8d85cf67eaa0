"""A kernel's code as a trial of a database ran it: its folder where that has the digest, else the copy that is kept.

The folder that a database names is somebody's word: nothing here trusts it, and its digest is compared before any of
its code runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evokern.declaration.kernel import Kernel
from evokern.declaration.kernel_files import files_digest, kernel_files, write_kernel_files
from evokern.errors import KernelError
from evokern.store import Reader, StudyRecord
from evokern.study.discovery import find_kernel, find_kernel_folder, load_kernel
from evokern.study.trust import why_distrusted
from evokern.wording import command


def stored_kernel(
    reader: Reader, record: StudyRecord, digest: str, scratch: Path, *, trust: bool, otherwise: str = ""
) -> Kernel:
    """Return the kernel as a trial ran it: its folder, or the copy that the database keeps.

    Args:
        reader: the open database.
        record: the trial's study.
        digest: SHA-256 over the kernel's files when the trial was proposed.
        scratch: an empty folder that the copy may be written to, which lives as long as the kernel is used.
        trust: run the copy's kernel.py where the folder is gone, changed, or not the user's own. The folder that the
            database names is never trusted for it.
        otherwise: what the user may do instead where the folder's code changed, for the message.

    Raises:
        KernelError: the folder is not what the trial ran, and the copy is missing or not trusted.
    """
    files = reader.source(digest)
    instead = ""
    try:
        folder = named_folder(record)
        if digest not in _digests(folder, files):  # before any of its code runs
            why, instead = f"the code of kernel {record.kernel} changed since that trial ran", otherwise
        elif foreign := why_distrusted(folder):
            why = f"the code of that trial lies in {folder}, {foreign}"
            instead = f"`{command('check', folder, '--trust')}` trusts that folder"
        else:
            kernel = find_kernel(str(folder))
            if kernel.digest() == digest:
                return kernel
            why = f"the code of kernel {record.kernel} is just being changed"
    except KernelError as error:
        why = str(error)
    if "kernel.py" not in files:
        raise KernelError(f"{why}; the database keeps no copy of the code either" + (f"; {instead}" if instead else ""))
    if not trust:
        what = f"{why}; --trust runs the kernel.py that the database keeps a copy of, and nothing of the folder"
        raise KernelError(what + (f"; {instead}" if instead else ""))
    contents = {name: text.encode() for name, text in files.items()}
    return load_kernel(write_kernel_files(scratch, record.kernel, contents))


def resumed_kernel(reader: Reader, record: StudyRecord, scratch: Path, *, trust: bool, go_on: bool) -> Kernel:
    """Return the kernel that a study goes on with.

    Args:
        reader: the open database.
        record: the study.
        scratch: as in `stored_kernel`; workers load the kernel from it.
        trust: as in `stored_kernel`.
        go_on: take the folder as it is now, where its code would run unasked.

    Raises:
        KernelError: as `stored_kernel`; or the folder's code would not run unasked.
    """
    tried = any(reader.outcomes(record).values())  # where nothing was, nothing can disagree
    if go_on or not tried:
        try:
            folder = named_folder(record)
        except KernelError:
            folder = None
        if folder is not None and not why_distrusted(folder):
            return find_kernel(str(folder))
    otherwise = "--go-on runs the folder's code as it is now and keeps the old results"
    return stored_kernel(reader, record, record.kernel_digest, scratch, trust=trust, otherwise=otherwise)


def named_folder(record: StudyRecord) -> Path:
    """Return the folder that a database names for a study's kernel; nothing of it is run.

    Raises:
        KernelError: there is none.
    """
    path = record.settings.get("path")
    return find_kernel_folder(str(record.settings.get("kernel", record.kernel)), Path(path).parent if path else None)


def _digests(folder: Path, kept: Mapping[str, str]) -> set[str]:
    """Return what a folder's digest may be, whichever of the kept files is its source; nothing of it is run."""
    sources = ["kernel.py", *(name for name in kept if "/" in name and not name.startswith(".."))]
    return {files_digest(kernel_files(folder, name)) for name in sources if (folder / name).is_file()}
