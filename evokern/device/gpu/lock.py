"""One search per GPU: a lock that its holder's death releases, and that says who holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from evokern.errors import DeviceError


class GpuLock:
    """The right to time candidates on a GPU."""

    def __init__(self, uuid: str, name: str, directory: Path | None = None) -> None:
        """Take the lock.

        Args:
            uuid: the GPU's own identity.
            name: what the user calls it, for messages.
            directory: where lock files are, for tests.

        Raises:
            DeviceError: another search has it; the message says which.
        """
        path = (directory or Path(tempfile.gettempdir())) / f"evokern-{uuid}.lock"
        self.turn_lock = path.with_suffix(".turn")
        """File whose lock the holder's own workers take in turn."""
        for shared in (path, self.turn_lock):
            with contextlib.suppress(PermissionError):
                # Other users of the machine take the same locks.
                shared.touch()
                shared.chmod(0o666)
        try:
            self._file: IO[str] = path.open("r+")
        except OSError as error:
            raise DeviceError(f"cannot open the GPU's lock {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise DeviceError(
                f"{name} is being searched on already, by {holder}; two searches would disturb each other's times: "
                "wait for it, or choose another GPU with --device cuda:N"
            ) from None
        self._file.truncate(0)
        command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200]
        self._file.write(f"process {os.getpid()} ({command}) since {time.strftime('%H:%M:%S')}\n")
        self._file.flush()

    def release(self) -> None:
        """Give it back; safe to call twice."""
        self._file.close()
