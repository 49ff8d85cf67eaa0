"""Decide which kernel folders may run, because `kernel.py` is code and loading a kernel executes it.

A folder below the working directory may run if only the user and root can write to it. The same must be true of its
files and of its parents up to the working directory (compare git's safe.directory). The package's own folders may run.
The user must trust any other folder once; that decision is stored together with the folder's owner.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from evokern.declaration.kernel_files import CODE
from evokern.errors import KernelError
from evokern.files import read_text
from evokern.ownership import who_else_can_modify

PACKAGE = Path(__file__).resolve().parents[1]
PACKAGED = (PACKAGE / "_data" / "kernels", PACKAGE.parent / "kernels")
"""Folders of the packaged kernels: in the wheel, and in a checkout."""


def distrust_reason(folder: Path) -> str:
    """Return a clause that states why a folder's code is not trusted; empty if it is trusted."""
    folder = folder.resolve()
    if any(folder.is_relative_to(root) for root in PACKAGED) or _remembered(folder):
        return ""
    here = Path.cwd().resolve()
    if not folder.is_relative_to(here):
        return "outside the working directory"
    between = [folder, *folder.parents][: len(folder.parts) - len(here.parts) + 1]
    try:
        checked = [who_else_can_modify(path, within=path != folder) for path in (*reversed(between), *_code(folder))]
    except OSError as error:
        return f"and {folder} cannot be read ({error.strerror})"
    return next(filter(None, checked), "")


def is_trusted(folder: Path) -> bool:
    """Return whether a folder's code is trusted."""
    return not distrust_reason(folder)


def check_trusted(folder: Path) -> None:
    """Reject a folder whose code is not trusted.

    Raises:
        KernelError: the folder belongs to another user or is outside the working directory, and is not trusted.
    """
    if why := distrust_reason(folder):
        raise KernelError(f"{folder / 'kernel.py'} is untrusted code, {why}; inspect it, then pass --trust once")


def check_elsewhere(folder: Path, files: Iterable[Path]) -> None:
    """Reject headers that other users can write to, if the folder is trusted only because it belongs to the user.

    Raises:
        KernelError: another user can write to a header.
    """
    if any(folder.is_relative_to(root) for root in PACKAGED) or _remembered(folder):
        return
    for path in files:
        for place in (path.parent, path):
            if why := who_else_can_modify(place):
                raise KernelError(f"{path} is included by kernel {folder}, {why}; inspect it, then pass --trust once")


def remember_trust(folder: Path) -> None:
    """Record that the user trusts a folder's code; the record is valid until the folder's owner changes.

    Raises:
        KernelError: the trust file cannot be written.
    """
    if is_trusted(folder):
        return
    path = _trust_file()
    try:
        owner = folder.stat().st_uid
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            # JSON keeps any path on one line.
            file.write(json.dumps([str(folder.resolve()), owner]) + "\n")
    except OSError as error:
        raise KernelError(f"cannot remember in {path} that {folder} is trusted: {error.strerror}") from error


def _remembered(folder: Path) -> bool:
    """Return whether the file of trusted folders lists a folder with its current owner, or in the older format."""
    try:
        path = _trust_file()
        if any(who_else_can_modify(place) for place in (path.parent, path)):
            return False
        lines = read_text(path).split("\n")
        owner = folder.stat().st_uid
    except (OSError, UnicodeDecodeError, RuntimeError):  # RuntimeError: the home folder is unknown
        return False
    return str(folder) in lines or json.dumps([str(folder), owner]) in lines


def _trust_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    # A relative path is invalid (XDG Base Directory Specification) and would be in the working directory.
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "evokern" / "trusted_folders"


def _code(folder: Path) -> Iterator[Path]:
    """Yield the code files of a folder, starting with `kernel.py`."""
    for path in (folder / "kernel.py", *sorted(path for path in folder.iterdir() if path.suffix in CODE)):
        yield path
        if path.is_symlink() and path.exists():
            yield path.resolve()
