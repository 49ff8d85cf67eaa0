"""One search per GPU: a lock that its holder's death releases, for all users of a machine, and who holds it.

The lock is on a file named by the GPU's UUID, in a folder that all users and all jobs share, whatever their TMPDIR: one
where everybody may write and nobody may remove another's file. Whoever comes first makes the file, with nothing in it;
everybody may open it to read, which is all that `flock` asks (flock(2)), and nobody else may write it.
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
"""Where locks of all users may lie. What is in `/run/lock` stays (FHS 3.0, 5.9); a user's files in `/dev/shm` may go
when the user logs out, and old ones in `/tmp` at any time (logind.conf(5), tmpfiles.d(5))."""
_SHARED = 0o1777
"""Mode of such a folder: everybody may write, and its sticky bit keeps others from removing or replacing a file."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""No link is followed, and a pipe of that name keeps nobody waiting."""


class GpuLock:
    """The right to time candidates on a GPU."""

    def __init__(self, uuid: str, name: str, directory: Path | None = None) -> None:
        """Take the lock.

        Args:
            uuid: the GPU's own identity.
            name: what the user calls it, for messages.
            directory: where lock files are, for tests.

        Raises:
            DeviceError: another search has it; the message says which. Or there is no place for locks.
        """
        path = (directory or lock_folder()) / f"evokern-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"
        self._descriptor = _opened(path)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _holder(os.fstat(self._descriptor))
            os.close(self._descriptor)
            raise DeviceError(
                f"{name} is being searched on already, by {holder}; two searches would disturb each other's times: "
                "wait for it, or choose another GPU with --device cuda:N"
            ) from None
        turn, turn_lock = tempfile.mkstemp(prefix="evokern-turn-")
        os.close(turn)
        self.turn_lock = Path(turn_lock)
        """File of the holder's own, whose lock its workers take in turn."""
        self._end = weakref.finalize(self, _release, self._descriptor, self.turn_lock)

    def release(self) -> None:
        """Give it back; safe to call twice."""
        self._end()


def _release(descriptor: int, turn_lock: Path) -> None:
    os.close(descriptor)
    with contextlib.suppress(OSError):
        turn_lock.unlink()


def lock_folder(places: Sequence[Path] = PLACES) -> Path:
    """Return the folder for locks of all users: the first that is root's and has the mode of such a folder.

    What decides is the same for every user, so that all take the same one.

    Raises:
        DeviceError: there is none.
    """
    for place in places:
        with contextlib.suppress(OSError):
            state = place.stat()
            if stat.S_ISDIR(state.st_mode) and state.st_uid == 0 and stat.S_IMODE(state.st_mode) & _SHARED == _SHARED:
                return place
    raise DeviceError(
        f"none of {', '.join(map(str, places))} can hold the lock that keeps two users off one GPU: it takes a folder "
        f"of root's with mode 1777; `chmod 1777 {places[-1]}` as root"
    )


def _opened(path: Path) -> int:
    """Open a lock file, and make it where there is none.

    Raises:
        DeviceError: it is no plain file, or cannot be opened; the message says whose it is.
    """
    for _ in range(10):  # until nobody makes or removes it in between
        with contextlib.suppress(FileNotFoundError):
            return _plain(_open(path, _OPEN), path)
        with contextlib.suppress(FileExistsError):
            # Not made by opening the one that is there: in a sticky folder Linux refuses that (fs.protected_regular).
            descriptor = _open(path, _OPEN | os.O_CREAT | os.O_EXCL)
            os.fchmod(descriptor, 0o644)  # whatever the umask: others must open it
            return descriptor
    raise DeviceError(f"cannot open the GPU's lock {path}: somebody keeps making and removing it")


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags, 0o644)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        why = "it is a link" if path.is_symlink() else error.strerror
        raise DeviceError(f"cannot open the GPU's lock {path}: {why}; {_owned(path)} may remove it") from error


def _plain(descriptor: int, path: Path) -> int:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise DeviceError(f"cannot open the GPU's lock {path}: it is no file; {_owned(path)} may remove it")


def _owned(path: Path) -> str:
    try:
        return f"its owner, user {path.lstat().st_uid},"
    except OSError:
        return "its owner"


def _holder(state: os.stat_result) -> str:
    """Return who holds the lock on a file, as the kernel tells it (proc_locks(5)), and what that process runs."""
    device = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}"
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        lines = []
    # Number, FLOCK, ADVISORY, WRITE, process, device:inode, …; of some file systems the device is another than stat's.
    found = [line for line in lines if line[1:2] == ["FLOCK"] and line[5].rpartition(":")[2] == str(state.st_ino)]
    found = [line for line in found if line[5].startswith(device)] or found
    if not found or not found[0][4].isdecimal() or found[0][4] == "0":  # of another container
        return "another process"
    try:
        words = Path("/proc", found[0][4], "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    return f"process {found[0][4]} ({visible(' '.join(words).strip())[:200] or 'unknown'})"
