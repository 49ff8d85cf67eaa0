"""Sharing of fork servers between processes on one machine, so that each set of modules is imported only once.

After its imports, a shared server listens on a socket in a private folder of the user. The folder name is a hash of the
imports and the environment. Another process that needs the same imports sends a control socket and a log file. The
shared server then forks a server for that process, which shares memory with the first server and can outlive it.

Both sides reject other users. If no server in the folder replies, the process starts its own server.
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

from evokern.ownership import who_else_can_modify, why_foreign_state

_CREDENTIALS = struct.Struct("3i")
"""Format of the process, user and group of a socket's peer (unix(7), `struct ucred`)."""
_PROCESS = struct.Struct("i")
_MOST_BYTES = 1 << 20
"""Maximum size of a request in bytes; Linux sends at most a few hundred KiB at a time."""
_ANSWER_S = 2.0
"""Seconds to wait for a server to fork; busy workers may delay it."""
_REQUEST_S = 0.1
"""Seconds that a server waits for the content of a request; requests for its own workers wait during this time."""
_OWN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OLDPWD", "PWD", "SHLVL", "_")
"""Environment variables that imports do not read, in addition to `RAY_*`; a forked server gets its own values."""
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class ServerRequest:
    """Request for a forked server."""

    settings: Mapping[str, Any]
    """Working directory, environment and process id of the requesting process."""
    control: int
    """File descriptor of the server's end of the control socket."""
    log: int
    """File descriptor for the server's output."""


class SharedServer:
    """Server that another server forked, with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        """Process id of the server."""
        self._handle = os.pidfd_open(pid)
        self._mutex = threading.Lock()

    def kill(self) -> None:
        """Kill the server."""
        with self._mutex, contextlib.suppress(ProcessLookupError):
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the server has ended; its exit status is unknown, because this process is not its parent.

        Raises:
            subprocess.TimeoutExpired: if the server does not end in time.
        """
        handle = self._handle
        if handle < 0:
            return
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if not poll.poll(None if timeout is None else 1000 * timeout):
            raise subprocess.TimeoutExpired("fork server", timeout or 0.0)
        with self._mutex:  # another thread may have closed the handle
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1


def sharing_folder(preload: Sequence[str], version: str, environment: Mapping[str, str]) -> Path | None:
    """Return the folder for servers with the same imports and environment, or None if sharing is impossible.

    Args:
        preload: modules that the servers import.
        version: version of those modules that may change while the machine is running.
        environment: environment variables of the servers.
    """
    above = Path(tempfile.gettempdir())
    try:
        os.close(os.pidfd_open(os.getpid()))
        if who_else_can_modify(above, within=True):
            return None
        alike = json.dumps(
            [
                _machine(),
                [sys.executable, sys.version, sys.path, list(preload), version],
                sorted((name, value) for name, value in environment.items() if not _is_own(name)),
                [sorted(os.sched_getaffinity(0)), os.nice(0), _umask(), [resource.getrlimit(one) for one in _LIMITS]],
            ]
        )
    except (OSError, AttributeError):  # an old kernel, or a Python built for one, has no pidfd_open
        return None
    return above / f"evokern-servers-{os.getuid()}" / hashlib.sha256(alike.encode()).hexdigest()[:16]


def open_listener(folder: Path) -> socket.socket | None:
    """Create a socket for requests in a folder, or return None if that is impossible."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        for path in (folder.parent, folder):
            path.mkdir(mode=0o700, exist_ok=True)
        with _opened(folder) as place:
            name = str(os.getpid())
            listener.bind(f"/proc/self/fd/{place}/.{name}")
            listener.listen()
            os.rename(f".{name}", name, src_dir_fd=place, dst_dir_fd=place)  # visible only once it listens
    except OSError:
        listener.close()
        return None
    return listener


def leave(folder: Path, process: int) -> None:
    """Remove the socket of a process from a folder, and remove the folder if it is then empty."""
    with contextlib.suppress(OSError):
        with _opened(folder) as place:
            _remove_socket(place, str(process))
        folder.rmdir()


def accept_request(listener: socket.socket) -> tuple[socket.socket, ServerRequest] | None:
    """Accept a request and return its socket and content, or None if it is invalid or from another user."""
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


def confirm(asking: socket.socket) -> bool:
    """Send this process's id to the requesting process; return whether that process is still waiting."""
    with asking, contextlib.suppress(OSError):
        asking.send(_PROCESS.pack(os.getpid()))
        return True
    return False


def request_server(folder: Path, settings: Mapping[str, Any], log: int) -> tuple[SharedServer, socket.socket] | None:
    """Request a new server from the servers in a folder; return it and its control socket, or None if none replies.

    Args:
        folder: folder from `sharing_folder`.
        settings: settings of the new server.
        log: file descriptor for its output.
    """
    message = json.dumps(dict(settings)).encode()
    with contextlib.suppress(OSError), _opened(folder) as place:
        for name in sorted(filter(str.isdecimal, os.listdir(place))):  # noqa: PTH208 (an open folder)
            found = _asked_of(place, name, message, log)
            if found is not None:
                return found
    return None


def _asked_of(place: int, name: str, message: bytes, log: int) -> tuple[SharedServer, socket.socket] | None:
    """Request a new server from one server in an open folder.

    Each request has its own control socket, so a server that forks too late has no connection to this process.
    """
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as stack, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        stack.enter_context(control)
        connection.settimeout(_ANSWER_S)
        try:
            connection.connect(f"/proc/self/fd/{place}/{name}")
            process, user, _ = _other_end(connection)
            if user == os.getuid() and _in_same_container(process):
                socket.send_fds(connection, [message], [theirs.fileno(), log])
                server = SharedServer(*_PROCESS.unpack(connection.recv(_PROCESS.size)))
                stack.pop_all()
                return server, control
        except ConnectionRefusedError:  # the socket of a killed server
            _remove_socket(place, name)
        except (OSError, struct.error):
            pass
    return None


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a private folder of the user as a descriptor, which keeps socket paths short and cannot be replaced.

    Raises:
        OSError: if the folder does not exist, is a link, or can be written to by other users.
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
    """Return the process, user and group of a socket's peer; the process is 0 if it is in another namespace."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, group = _CREDENTIALS.unpack(found)
    return process, user, group


def _in_same_container(process: int) -> bool:
    """Return whether a process is in the same namespaces and the same cgroup as this one."""
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
    """Return the boot id, which distinguishes this machine from others with the same file system."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _umask() -> str:
    """Return the file mode creation mask, read from /proc because umask(2) would change it."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in lines if line.startswith("Umask:")), "")
