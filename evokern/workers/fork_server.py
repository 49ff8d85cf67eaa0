"""Parent side of the fork server: a process with preloaded modules that forks and kills workers on request.

`evokern.workers.process` contains the server side; `evokern.workers.pool` uses this module.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection as mp_connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from evokern.errors import DeviceError
from evokern.workers import sharing
from evokern.workers.process import COMMAND, NOTICE, FreeHandler

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])['path']; from evokern.workers.process import main; main()"
)

_LOG_BYTES = 1 << 20

RELEASE_S = 5.0
"""Seconds to wait for the end of each killed worker before the next device uses the server."""
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1"} | dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
"""Environment variables that limit NumPy and torch to one thread. There is one worker for each core, so more threads
would only wait for each other. The libraries read the variables at import."""


FAULT_SIGNALS = frozenset(
    signal.Signals[name] for name in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS")
)
"""Signals that a process causes itself (signal(7)). Other signals have an external cause: the system sends SIGKILL when
memory runs out; a user or a scheduler sends SIGTERM and SIGHUP."""


@dataclass(frozen=True)
class Death:
    """The way in which a worker ended, and the cause."""

    description: str
    """Description: `killed by SIGSEGV`, `exit code 1`, `gone`, or `ended with its fork server, which was …`."""
    own: bool
    """Whether the process caused its own end by a fault or an exit, so that its job may be the cause."""
    peak_bytes: int | None = None
    """Peak memory of the worker in bytes; None if its end was not reported."""
    server: int = 0
    """Number (from 1) of the fork server that ended together with the worker; 0 if only the worker ended."""


_kept: list[ForkServer] | None = None
"""Servers that wait for their next use; None outside `keeping_servers`."""


@contextlib.contextmanager
def keeping_servers() -> Iterator[None]:
    """Let devices of this process use fork servers and idle workers one after another.

    Imports take seconds, and so do the context of a GPU and the first calls of its libraries.
    """
    global _kept
    if _kept is not None:
        yield
        return
    _kept = []
    try:
        yield
    finally:
        servers, _kept = _kept, None
        for server in servers:
            server.close()


SpawnedWorker = tuple[int, Connection, Any]
"""Ticket, connection and log file of a worker."""


class ForkServer:
    """A process with preloaded modules that forks workers on request."""

    def __init__(self, preload: Sequence[str] = (), shared: str | None = None) -> None:
        """Start the process.

        Args:
            preload: modules to import, and functions to call, as `module:function`.
            shared: version of the preloaded modules. A server can be forked from another process's server if modules
                and version are the same. None makes the server private.
        """
        self._preload = tuple(preload)
        self._environment = os.environ | _ENVIRONMENT
        self._folder = sharing.sharing_folder(self._preload, shared, self._environment) if shared else None
        self._tickets = 0
        self._notices: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._ended: set[int] = set()
        self._falls: list[tuple[int, str]] = []
        self._idle: list[tuple[str, SpawnedWorker]] = []
        self._directory = _working_directory()
        self._launch()

    @classmethod
    def kept(cls, preload: Sequence[str]) -> ForkServer:
        """Return a released server with the same modules, environment and working directory, or a new one."""
        here = (tuple(preload), _chosen(os.environ | _ENVIRONMENT), _working_directory())
        for server in _kept or ():
            if (server._preload, _chosen(server._environment), server._directory) == here:
                assert _kept is not None
                _kept.remove(server)
                server._collect()
                if server._alive:
                    return server
                server.close()
                break
        return cls(preload)

    def release(self) -> None:
        """Keep the server for its next use inside `keeping_servers`, otherwise end it; its workers must be killed."""
        if _kept is None:
            self.close()
            return
        self._collect()
        idle = {worker[0] for _, worker in self._idle}
        for kind, ticket in list(self._notices):
            if kind == b"P" and ticket not in idle:
                self.death(ticket, RELEASE_S)  # the driver frees the memory of a GPU worker before it ends
        _kept.append(self)

    def _launch(self) -> None:
        self._alive = True
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the server)
        self._process: subprocess.Popen[bytes] | sharing.SharedServer
        self._process, self._control = self._borrowed() or self._started()
        # The server notices a closed socket only after its imports, which take seconds. Kill it, so that an interrupted
        # command does not leave a process during that time.
        self._end = weakref.finalize(self, _kill, self._process, self._folder)

    def _started(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start a new server; return its process and the control socket."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            settings = {
                "path": sys.path,
                "preload": self._preload,
                "control": theirs.fileno(),
                "parent": os.getpid(),
                "tied": threading.current_thread() is threading.main_thread(),
                "folder": str(self._folder) if self._folder else None,
            }
            return _start(settings, self._log, self._environment), control

    def _borrowed(self) -> tuple[sharing.SharedServer, socket.socket] | None:
        """Return a server forked from a matching server of another process, or None if there is none."""
        if not self._folder:
            return None
        if self._directory is None:
            return None
        settings = {"environment": self._environment, "directory": self._directory, "parent": os.getpid()}
        return sharing.request_server(self._folder, settings, self._log.fileno())

    def keep(self, reuse: str, worker: SpawnedWorker) -> bool:
        """Keep an idle worker for a later pool inside `keeping_servers`; return False if that is not possible.

        Args:
            reuse: key of the tasks that the worker may take over; empty: none.
            worker: the worker, whose handler is dropped.
        """
        if _kept is None or not reuse or not self._alive:
            return False
        with contextlib.suppress(OSError):
            worker[1].send(FreeHandler())
            self._idle.append((reuse, worker))
            return True
        return False

    def kept_worker(self, reuse: str) -> SpawnedWorker | None:
        """Return an idle worker for a task, which is then no longer kept; None if there is none."""
        while found := next((one for one in self._idle if reuse and one[0] == reuse), None):
            self._idle.remove(found)
            ticket, connection, log = found[1]
            if self._alive and self._with_earlier_server(ticket) is None and not self._has_ended(ticket):
                return found[1]
            connection.close()
            log.close()
        return None

    def idle_processes(self) -> list[int]:
        """Return the process ids of the workers that are kept."""
        return [pid for _, worker in self._idle if (pid := self.pid(worker[0])) is not None]

    def _has_ended(self, ticket: int) -> bool:
        return ticket in self._ended or (b"X", self.pid(ticket)) in self._notices

    def spawn(self) -> SpawnedWorker:
        """Request a worker; return its ticket, its connection and its log file.

        Raises:
            DeviceError: if the server cannot be started.
        """
        self._tickets += 1
        log = tempfile.TemporaryFile()  # noqa: SIM115 (the worker's record closes it)
        # Append mode, because output after `trim` would otherwise be written at the old end of the file.
        fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        message = COMMAND.pack(b"S", self._tickets)
        descriptors = [theirs.fileno(), log.fileno()]
        with theirs:
            try:
                socket.send_fds(self._control, [message], descriptors)
            except OSError:
                # Only an external signal, such as one from the kernel's out-of-memory killer, ends a server.
                self._replace()
                try:
                    socket.send_fds(self._control, [message], descriptors)
                except OSError as error:
                    raise DeviceError(f"cannot start a worker process: {error}; {tail(self._log)}") from error
        return self._tickets, Connection(ours.detach()), log

    def _replace(self) -> None:
        """Replace a server that has ended; its workers ended with it."""
        self._falls.append((self._tickets - 1, self._end_of_server()))
        # The system may have reused the process ids of these workers.
        self._notices.clear()
        self.close()
        self._launch()

    @property
    def latest_ticket(self) -> int:
        """Ticket of the most recently requested worker."""
        return self._tickets

    def pid(self, ticket: int) -> int | None:
        """Return the process id of a ticket, or None if it is unknown or belongs to a worker of an earlier server."""
        self._collect()
        found = self._notices.get((b"P", ticket))
        return None if found is None else found[0]

    def stopped(self, ticket: int) -> bool:
        """Return whether a worker is stopped by a signal such as SIGSTOP; if so, its job does not cause the delay."""
        pid = self.pid(ticket)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            state = stat.rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return False
        return state in ("T", "t")

    def kill(self, ticket: int) -> None:
        """Kill a worker by a request to the server, which never signals a reused process id."""
        pid = self.pid(ticket)
        # A worker whose start was not reported yet has no job; if the report is late, it ends with its connection.
        deadline = time.monotonic() + 1.0
        gone = ticket in self._ended or self._with_earlier_server(ticket) is not None
        while pid is None and self._alive and not gone and time.monotonic() < deadline:
            mp_connection.wait([self._control], 0.1)
            pid = self.pid(ticket)
        if pid is not None:
            with contextlib.suppress(OSError):
                self._control.send(COMMAND.pack(b"K", pid))

    def death(self, ticket: int, patience_s: float) -> Death:
        """Return how a worker ended; wait up to `patience_s` seconds for the report."""
        deadline = time.monotonic() + patience_s
        while True:
            fallen = self._with_earlier_server(ticket)
            if fallen is not None:
                return fallen
            pid = self.pid(ticket)
            found = self._notices.pop((b"X", pid), None) if pid is not None else None
            if found is not None:
                self._notices.pop((b"P", ticket), None)
                self._ended.add(ticket)
                status, peak_bytes = found
                if os.WIFSIGNALED(status):
                    number = os.WTERMSIG(status)
                    return Death(f"killed by {_name(number)}", number in FAULT_SIGNALS, peak_bytes)
                return Death(f"exit code {os.waitstatus_to_exitcode(status)}", True, peak_bytes)
            if not self._alive:
                return _fallen(self._end_of_server(), len(self._falls) + 1)
            if time.monotonic() >= deadline:
                return Death("gone", False)
            mp_connection.wait([self._control], 0.02)

    def _with_earlier_server(self, ticket: int) -> Death | None:
        """Return how a worker ended whose server was replaced, or None."""
        for number, (last, how) in enumerate(self._falls, 1):
            if ticket <= last:
                return _fallen(how, number)
        return None

    def _end_of_server(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "was closed"
        if code is None:
            return "ended"
        return f"was killed by {_name(-code)}" if code < 0 else f"ended with exit code {code}"

    def log_tail(self) -> str:
        """Return the last part of the server's own output if the server has ended, else an empty string."""
        self._collect()
        return "" if self._alive else tail(self._log)

    def _collect(self) -> None:
        while True:
            try:
                message = self._control.recv(NOTICE.size, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:  # connection reset: the server died with unread commands
                message = b""
            if not message:
                self._alive = False
                return
            kind, first, second, peak_bytes = NOTICE.unpack(message)
            if kind == b"P":
                self._notices.pop((b"X", second), None)
            self._notices[kind, first] = second, peak_bytes

    def stop_sharing(self) -> None:
        """Stop forking servers for other processes; any thread may call this method."""
        if self._folder:
            sharing.leave(self._folder, self._process.pid)

    def close(self) -> None:
        """End the server and every worker that it forked; repeated calls have no effect."""
        self._alive = False
        for _, (_, connection, log) in self._idle:
            connection.close()
            log.close()
        self._idle.clear()
        self._control.close()
        self._log.close()
        self._end()  # its workers end with it


def _chosen(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that torch sets when it is imported."""
    return {name: value for name, value in environment.items() if not name.startswith("TORCHINDUCTOR_")}


def _working_directory() -> str | None:
    """Return the working directory; None if it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


def _start(settings: dict[str, Any], log: Any, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the process of a server, which inherits one end of the control socket and writes its output to `log`."""
    # A separate session, so that Ctrl-C in the terminal does not reach workers; the parent ends them.
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, json.dumps(settings)],
        pass_fds=[settings["control"]],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env=environment,
    )


def _fallen(how: str, server: int) -> Death:
    return Death(f"ended with its fork server, which {how}", False, server=server)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _kill(process: subprocess.Popen[bytes] | sharing.SharedServer, folder: Path | None) -> None:
    process.kill()
    process.wait()
    if folder is not None:
        sharing.leave(folder, process.pid)


def trim(log: Any) -> None:
    """Truncate a large log file, because a candidate may print from every thread."""
    if os.fstat(log.fileno()).st_size > _LOG_BYTES:
        os.ftruncate(log.fileno(), 0)


def tail(log: Any, characters: int = 2000) -> str:
    """Return the end of a log file as text."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - characters))
    return str(log.read().decode(errors="replace")).strip()
