"""Whose code runs: a kernel folder's `kernel.py` is code, and only the user's own folders count as consent.

Below the working directory a folder runs where it, what lies between, and its files belong to the user (or root) and
nobody else may write them: `git` asks the same of a repository (safe.directory). The package's own folders run. Any
other is refused until its user trusts it once, and is then remembered with its owner.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from evokern.declaration.kernel_files import CODE
from evokern.errors import KernelError
from evokern.files import read_text
from evokern.ownership import why_foreign

PACKAGE = Path(__file__).resolve().parents[1]
PACKAGED = (PACKAGE / "_data" / "kernels", PACKAGE.parent / "kernels")
"""Folders with the kernels that come with evokern: in the wheel, and in a checkout."""


def why_distrusted(folder: Path) -> str:
    """Return why a folder's code may not run unasked, in a clause; empty where it may."""
    folder = folder.resolve()
    if any(folder.is_relative_to(root) for root in PACKAGED) or _remembered(folder):
        return ""
    here = Path.cwd().resolve()
    if not folder.is_relative_to(here):
        return "from outside the working directory"
    between = [folder, *folder.parents][: len(folder.parts) - len(here.parts) + 1]
    try:
        checked = [why_foreign(path, within=path != folder) for path in (*reversed(between), *_code(folder))]
    except OSError as error:
        return f"and {folder} cannot be looked at ({error.strerror})"
    return next(filter(None, checked), "")


def is_trusted(folder: Path) -> bool:
    """Tell whether a folder's code may run."""
    return not why_distrusted(folder)


def check_trusted(folder: Path) -> None:
    """Refuse a folder whose code may not run unasked.

    Raises:
        KernelError: it is somebody else's, or outside the working directory, and was not trusted yet.
    """
    if why := why_distrusted(folder):
        raise KernelError(f"{folder / 'kernel.py'} is code that would run, {why}; look at it, then say --trust once")


def check_elsewhere(folder: Path, files: Iterable[Path]) -> None:
    """Refuse headers that somebody else may write, of a folder that runs because it is the user's own.

    Raises:
        KernelError: one is somebody else's.
    """
    if any(folder.is_relative_to(root) for root in PACKAGED) or _remembered(folder):
        return
    for path in files:
        for place in (path.parent, path):
            if why := why_foreign(place):
                raise KernelError(f"{path} is code that the kernel {folder} includes, {why}; say --trust once")


def remember_trust(folder: Path) -> None:
    """Remember that the user trusts a folder's code, as long as it belongs to whom it belongs to now.

    Raises:
        KernelError: that cannot be written down.
    """
    if is_trusted(folder):
        return
    path = _trust_file()
    try:
        owner = folder.stat().st_uid
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            # In JSON a path is one line, whatever it is called.
            file.write(json.dumps([str(folder.resolve()), owner]) + "\n")
    except OSError as error:
        raise KernelError(f"cannot remember in {path} that {folder} is trusted: {error.strerror}") from error


def _remembered(folder: Path) -> bool:
    """Whether the user trusted a folder: a line of JSON with its owner, or the bare path that versions before wrote."""
    try:
        path = _trust_file()
        if any(why_foreign(place) for place in (path.parent, path)):
            return False
        lines = read_text(path).split("\n")
        owner = folder.stat().st_uid
    except (OSError, UnicodeDecodeError, RuntimeError):  # the last: no home is known
        return False
    return str(folder) in lines or json.dumps([str(folder), owner]) in lines


def _trust_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    # A relative one is invalid (XDG Base Directory Specification), and would be the working directory's.
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "evokern" / "trusted_folders"


def _code(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that are code, its `kernel.py` first."""
    for path in (folder / "kernel.py", *sorted(path for path in folder.iterdir() if path.suffix in CODE)):
        yield path
        if path.is_symlink() and path.exists():
            yield path.resolve()
