"""Fork servers that fork further ones: what one process of a machine has imported, a later one need not import again.

A server that may be shared listens, once its imports are over, on a socket in a folder of the user's, whose name says
what it has imported, in which environment. Whoever needs the same sends it the end of a control socket and a log, and
gets a server of its own: a copy of that process, which shares its memory, and outlives it.

Either end takes nothing from another user. What is read from the folder is a hint: where nobody there answers, a server
is started as without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evokern.ownership import why_foreign, why_foreign_state

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a socket's other end (unix(7), `struct ucred`)."""
_PROCESS = struct.Struct("i")
_MOST_BYTES = 1 << 20
"""Of a request: Linux sends no more than a few hundred KiB at a time."""
_ANSWER_S = 2.0
"""Seconds in which a server forks another: it may be among busy workers."""
_REQUEST_S = 0.1
"""Seconds that a server waits for what was asked; its own workers wait meanwhile."""
_OWN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OLDPWD", "PWD", "SHLVL", "_")
"""Variables that no import reads; the copy gets its own, and of those that begin with `RAY_`, too."""
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class ServerRequest:
    """What a further server is to be."""

    settings: Mapping[str, Any]
    """Its directory, environment, and the process that it works for."""
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
        self._mutex = threading.Lock()

    def kill(self) -> None:
        """End it."""
        with self._mutex, contextlib.suppress(ProcessLookupError):
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it has ended; nobody but its parent learns how.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        handle = self._handle
        if handle < 0:
            return
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if not poll.poll(None if timeout is None else 1000 * timeout):
            raise subprocess.TimeoutExpired("fork server", timeout or 0.0)
        with self._mutex:  # whoever else waited may have closed it
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1


def meeting_place(preload: Sequence[str], version: str, environment: Mapping[str, str]) -> Path | None:
    """Return the folder where servers alike listen; None where nobody can.

    Args:
        preload: what they import.
        version: of the modules that may change while a machine runs.
        environment: their variables.
    """
    above = Path(tempfile.gettempdir())
    try:
        os.close(os.pidfd_open(os.getpid()))
        if why_foreign(above, within=True):
            return None
        alike = json.dumps(
            [
                _machine(),
                [sys.executable, sys.version, sys.path, list(preload), version],
                sorted((name, value) for name, value in environment.items() if not _is_own(name)),
                [sorted(os.sched_getaffinity(0)), os.nice(0), _umask(), [resource.getrlimit(one) for one in _LIMITS]],
            ]
        )
    except (OSError, AttributeError):  # an old kernel, or a Python made for one, has no pidfd_open
        return None
    return above / f"evokern-servers-{os.getuid()}" / hashlib.sha256(alike.encode()).hexdigest()[:16]


def listening(folder: Path) -> socket.socket | None:
    """Return a socket on which this process hears requests; None where the folder takes none."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        for path in (folder.parent, folder):
            path.mkdir(mode=0o700, exist_ok=True)
        with _opened(folder) as place:
            name = str(os.getpid())
            listener.bind(f"/proc/self/fd/{place}/.{name}")
            listener.listen()
            os.rename(f".{name}", name, src_dir_fd=place, dst_dir_fd=place)  # who finds it is heard
    except OSError:
        listener.close()
        return None
    return listener


def leave(folder: Path, process: int) -> None:
    """Remove a process's socket from a folder, and with the last one the folder."""
    with contextlib.suppress(OSError):
        with _opened(folder) as place:
            _remove_socket(place, str(process))
        folder.rmdir()


def accepted(listener: socket.socket) -> tuple[socket.socket, ServerRequest] | None:
    """Take up one request; returns where to answer it; None where it is none, or none of this user's."""
    descriptors: list[int] = []
    with contextlib.ExitStack() as stack:
        try:
            asking = stack.enter_context(listener.accept()[0])
            asking.settimeout(_REQUEST_S)
            if _other_end(asking)[1] == os.getuid():
                message, descriptors, _, _ = socket.recv_fds(asking, _MOST_BYTES, 2)
                control, log = descriptors
                request = ServerRequest(dict(json.loads(message)), control, log)
                stack.pop_all()
                return asking, request
        except (OSError, ValueError, TypeError):
            for one in descriptors:
                os.close(one)
    return None


def answer(asking: socket.socket) -> bool:
    """Tell who asked for a server that this process is it; returns whether anybody still waits for it."""
    with asking, contextlib.suppress(OSError):
        asking.send(_PROCESS.pack(os.getpid()))
        return True
    return False


def borrow(folder: Path, settings: Mapping[str, Any], log: int) -> tuple[Borrowed, socket.socket] | None:
    """Return a server that one of a folder's forked, and its control socket; None where none of them can.

    Args:
        folder: as `meeting_place` returns it.
        settings: what it is to be.
        log: the file that it prints to.
    """
    message = json.dumps(dict(settings)).encode()
    with contextlib.suppress(OSError), _opened(folder) as place:
        for name in sorted(filter(str.isdecimal, os.listdir(place))):  # noqa: PTH208 (an open folder)
            found = _asked_of(place, name, message, log)
            if found is not None:
                return found
    return None


def _asked_of(place: int, name: str, message: bytes, log: int) -> tuple[Borrowed, socket.socket] | None:
    """Ask one server of an open folder.

    Each is asked for the end of another control socket: one that forks when nobody waits any more closes it unheard.
    """
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as stack, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        stack.enter_context(control)
        asked.settimeout(_ANSWER_S)
        try:
            asked.connect(f"/proc/self/fd/{place}/{name}")
            process, user, _ = _other_end(asked)
            if user == os.getuid() and _beside_us(process):
                socket.send_fds(asked, [message], [theirs.fileno(), log])
                server = Borrowed(*_PROCESS.unpack(asked.recv(_PROCESS.size)))
                stack.pop_all()
                return server, control
        except ConnectionRefusedError:  # left by one that was killed
            _remove_socket(place, name)
        except (OSError, struct.error):
            pass
    return None


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a folder that is this user's alone, whatever lies there now; by its number a name fits into a socket's.

    Raises:
        OSError: it is not there, a link, or others may write it.
    """
    with contextlib.ExitStack() as stack:
        at = None
        for path in (folder.parent, folder):
            at = os.open(path if at is None else path.name, _FOLDER, dir_fd=at)
            stack.callback(os.close, at)
            why = why_foreign_state(os.fstat(at), path)
            if why:
                raise PermissionError(why)
        assert at is not None
        yield at


def _remove_socket(place: int, name: str) -> None:
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=place)


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


def _is_own(variable: str) -> bool:
    return variable.startswith("RAY_") or variable in _OWN_VARIABLES


def _machine() -> str:
    """Return what tells this machine, as long as it runs, from others that share its files."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _umask() -> str:
    """Return the mask of new files; to ask the system for it is to change it."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in lines if line.startswith("Umask:")), "")
