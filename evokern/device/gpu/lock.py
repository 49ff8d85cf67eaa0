"""Lock that allows one search per GPU of a machine, released when its holder exits.

The lock is on a file named after the GPU's UUID. The file is in a folder shared by all users and jobs, independent of
TMPDIR: everybody can create files there, but nobody can remove another user's file. The first search creates the empty
file. Everybody can open it for reading, which suffices for `flock` (flock(2)), but nobody else can write to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

from evokern.errors import DeviceError
from evokern.escaping import visible

PLACES = (Path("/run/lock"), Path("/dev/shm"), Path("/tmp"))
"""Candidate folders for the locks of all users. `/run/lock` keeps its files (FHS 3.0, 5.9). A user's files in
`/dev/shm` may be removed at logout, and old files in `/tmp` at any time (logind.conf(5), tmpfiles.d(5))."""
_SHARED = 0o1777
"""Required mode of the folder: everybody can write to it, and the sticky bit protects the files of other users."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags that follow no link and do not block on a pipe."""


class GpuLock:
    """Exclusive right to time candidates on a GPU."""

    def __init__(self, uuid: str, name: str, directory: Path | None = None) -> None:
        """Take the lock on the GPU.

        Args:
            uuid: UUID of the GPU.
            name: name of the GPU for messages.
            directory: folder for lock files, for tests.

        Raises:
            DeviceError: another search holds the lock (the message names it), or no folder is suitable.
        """
        path = (directory or lock_folder()) / f"evokern-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"
        self._descriptor = _opened(path)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _holder(os.fstat(self._descriptor))
            os.close(self._descriptor)
            raise DeviceError(
                f"{name} is in use by {holder}; two searches would disturb each other's times. "
                "Wait for it to end, or choose another GPU with --device cuda:N"
            ) from None
        turn, turn_lock = tempfile.mkstemp(prefix="evokern-turn-")
        os.close(turn)
        self.turn_lock = Path(turn_lock)
        """File whose lock the holder's workers take one at a time."""
        self._end = weakref.finalize(self, _release, self._descriptor, self.turn_lock)

    def release(self) -> None:
        """Release the lock; can be called twice."""
        self._end()


def _release(descriptor: int, turn_lock: Path) -> None:
    os.close(descriptor)
    with contextlib.suppress(OSError):
        turn_lock.unlink()


def lock_folder(places: Sequence[Path] = PLACES) -> Path:
    """Return the lock folder of all users: the first folder owned by root with the required mode.

    The condition is the same for every user, so all choose the same folder.

    Raises:
        DeviceError: no folder is suitable.
    """
    for place in places:
        with contextlib.suppress(OSError):
            state = place.stat()
            if stat.S_ISDIR(state.st_mode) and state.st_uid == 0 and stat.S_IMODE(state.st_mode) & _SHARED == _SHARED:
                return place
    raise DeviceError(
        f"none of {', '.join(map(str, places))} is suitable for the lock that allows one search per GPU: the "
        f"folder must belong to root and have mode 1777. Run as root: chmod 1777 {places[-1]}"
    )


def _opened(path: Path) -> int:
    """Open a lock file; create it if it is missing.

    Raises:
        DeviceError: the file is not a regular file or cannot be opened; the message names its owner.
    """
    for _ in range(10):  # retries if another process creates or removes the file meanwhile
        with contextlib.suppress(FileNotFoundError):
            return _plain(_open(path, _OPEN), path)
        with contextlib.suppress(FileExistsError):
            # O_EXCL, because in a sticky folder Linux refuses O_CREAT on an existing file (fs.protected_regular).
            descriptor = _open(path, _OPEN | os.O_CREAT | os.O_EXCL)
            os.fchmod(descriptor, 0o644)  # independent of the umask, because others must open it
            return descriptor
    raise DeviceError(f"cannot open the GPU lock {path}: another process keeps creating and removing this file")


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags, 0o644)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        why = "it is a link" if path.is_symlink() else error.strerror
        raise DeviceError(f"cannot open the GPU lock {path}: {why}; ask {_owned(path)} to remove the file") from error


def _plain(descriptor: int, path: Path) -> int:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise DeviceError(
        f"cannot open the GPU lock {path}: it is not a regular file; ask {_owned(path)} to remove the file"
    )


def _owned(path: Path) -> str:
    try:
        return f"its owner (user {path.lstat().st_uid})"
    except OSError:
        return "its owner"


def _holder(state: os.stat_result) -> str:
    """Return the process that holds the lock on a file (proc_locks(5)) and its command line."""
    device = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}"
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        lines = []
    # Fields: number, FLOCK, ADVISORY, WRITE, process, device:inode. Some file systems report another device than stat.
    found = [line for line in lines if line[1:2] == ["FLOCK"] and line[5].rpartition(":")[2] == str(state.st_ino)]
    found = [line for line in found if line[5].startswith(device)] or found
    if not found or not found[0][4].isdecimal() or found[0][4] == "0":  # the process is in another container
        return "another process"
    try:
        words = Path("/proc", found[0][4], "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    return f"process {found[0][4]} ({visible(' '.join(words).strip())[:200] or 'unknown'})"
