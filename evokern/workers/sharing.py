"""Fork servers that fork further ones: what one process of a machine has imported, another one need not import again.

A server that may be shared listens, once its imports are over, on a socket in a folder of the user's, whose name says
what it has imported, in which environment. Whoever needs the same sends it the end of a control socket and a log, and
gets a server of its own: a copy of that process, which shares its memory and outlives it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evokern.ownership import why_foreign

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a socket's other end (unix(7), `struct ucred`)."""
_PROCESS = struct.Struct("i")
_MOST_BYTES = 1 << 20
"""Of a request: Linux sends no more than a few hundred KiB at a time."""
_ANSWER_S = 2.0
"""Seconds in which a server forks another: it may be among busy workers."""
_OWN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OLDPWD", "PWD", "SHLVL", "_")
"""Variables that no import reads; the copy gets its own, and of those that begin with `RAY_`, too."""


@dataclass(frozen=True)
class ServerRequest:
    """What a further server is to be."""

    settings: Mapping[str, Any]
    """Its search path, directory, environment, and the process that it works for."""
    control: int
    """Its end of the control socket."""
    log: int
    """The file that it prints to."""


class Borrowed:
    """A server that another one forked, as `subprocess.Popen` would show it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        """Its process."""
        self._handle = os.pidfd_open(pid)

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it has ended; nobody but its parent learns how.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        if not select.select([self._handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("fork server", timeout or 0.0)


def meeting_place(preload: Sequence[str], version: str, environment: Mapping[str, str]) -> Path | None:
    """Return the folder where servers alike listen, made where it is not there; None where nobody can.

    Args:
        preload: what they import.
        version: of the modules that may change while a machine runs.
        environment: their variables.
    """
    read = {
        name: value
        for name, value in sorted(environment.items())
        if not name.startswith("RAY_") and name not in _OWN_VARIABLES
    }
    alike = json.dumps([sys.executable, sys.version, sys.path, list(preload), version, read])
    home = Path(tempfile.gettempdir()) / f"evokern-servers-{os.getuid()}"
    folder = home / hashlib.sha256(alike.encode()).hexdigest()[:16]
    try:
        for path in (home, folder):
            path.mkdir(mode=0o700, exist_ok=True)
            if why_foreign(path):
                return None
    except OSError:
        return None
    return folder


def listening(folder: Path) -> socket.socket | None:
    """Return a socket on which this process hears requests; None where the folder takes none."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _short(folder) as place:
            listener.bind(f"{place}/{os.getpid()}")
        listener.listen()
    except OSError:
        listener.close()
        return None
    return listener


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Give a folder a name that fits into a socket's, which has 107 bytes (unix(7))."""
    handle = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def leave(folder: Path, process: int) -> None:
    """Remove a process's socket from a folder, and with the last one the folder."""
    with contextlib.suppress(OSError):
        (folder / str(process)).unlink(missing_ok=True)
        folder.rmdir()


def accepted(listener: socket.socket) -> tuple[socket.socket, ServerRequest] | None:
    """Take up one request; returns where to answer it; None where it is none of this user's."""
    with contextlib.ExitStack() as stack:
        try:
            asking = stack.enter_context(listener.accept()[0])
            asking.settimeout(_ANSWER_S)
            if _other_end(asking)[1] != os.getuid():
                return None
            message, descriptors, _, _ = socket.recv_fds(asking, _MOST_BYTES, 2)
            control, log = descriptors
            request = ServerRequest(json.loads(message), control, log)
        except (OSError, ValueError):
            return None
        stack.pop_all()
    return asking, request


def answer(asking: socket.socket) -> None:
    """Tell who asked for a server that this process is it."""
    with asking, contextlib.suppress(OSError):
        asking.send(_PROCESS.pack(os.getpid()))


def borrow(folder: Path, request: ServerRequest) -> Borrowed | None:
    """Return a server that one of a folder's forked; None where none of them can.

    Args:
        folder: as `meeting_place` returns it.
        request: what it is to be.
    """
    message = json.dumps(dict(request.settings)).encode()
    with contextlib.suppress(OSError), _short(folder) as place:
        for path in sorted(folder.iterdir()):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
                asked.settimeout(_ANSWER_S)
                try:
                    asked.connect(f"{place}/{path.name}")
                    process, user, _ = _other_end(asked)
                    if user != os.getuid() or not _beside_us(process):
                        continue
                    socket.send_fds(asked, [message], [request.control, request.log])
                    return Borrowed(*_PROCESS.unpack(asked.recv(_PROCESS.size)))
                except ConnectionRefusedError:  # left by one that was killed
                    path.unlink(missing_ok=True)
                except (OSError, struct.error):
                    continue
    return None


def _other_end(connected: socket.socket) -> tuple[int, int, int]:
    """Return process, user and group of a socket's other end; process 0 where it is in a namespace of its own."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, group = _CREDENTIALS.unpack(found)
    return process, user, group


def _beside_us(process: int) -> bool:
    """Tell whether a process sees the same files and is counted with this one: not of another container, or job."""
    try:
        for name in ("mnt", "pid", "net"):
            if Path(f"/proc/{process}/ns/{name}").readlink() != Path(f"/proc/self/ns/{name}").readlink():
                return False
        return Path(f"/proc/{process}/cgroup").read_bytes() == Path("/proc/self/cgroup").read_bytes()
    except OSError:
        return False
