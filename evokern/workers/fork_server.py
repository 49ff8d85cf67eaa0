"""The parent's side of a fork server: a process with modules preloaded that forks workers on demand and kills them.

What runs on the other side is in `evokern.workers.process`; who uses it is `evokern.workers.pool`.
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
import time
import weakref
from collections.abc import Sequence
from multiprocessing import connection as mp_connection
from multiprocessing.connection import Connection
from typing import Any

from evokern.errors import DeviceError
from evokern.workers.process import COMMAND, NOTICE

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])['path']; from evokern.workers.process import main; main()"
)

_LOG_BYTES = 1 << 20

_ENVIRONMENT = {"PYTHONUNBUFFERED": "1"} | dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
"""Set before the first import, which is when NumPy's and torch's libraries count cores: there is a worker for each of
them, and threads that wait for each other's small products would keep a large machine busy with nothing."""


class ForkServer:
    """A process with modules preloaded that forks workers on demand."""

    def __init__(self, preload: Sequence[str] = ()) -> None:
        self._preload = tuple(preload)
        self._tickets = 0
        self._notices: dict[tuple[bytes, int], int] = {}
        self._ended: set[int] = set()
        self._launch()

    def _launch(self) -> None:
        self._alive = True
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the server)
        with theirs:
            settings = {"path": sys.path, "preload": self._preload, "control": theirs.fileno()}
            # A session of its own keeps the terminal's Ctrl-C away: the parent decides when workers end.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, json.dumps(settings)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env=os.environ | _ENVIRONMENT,
            )
        # It sees the closed socket only once its imports are over: seconds in which an interrupted command, whoever was
        # about to close this server, would seem to have left a process behind.
        self._end = weakref.finalize(self, _kill, self._process)

    def spawn(self) -> tuple[int, Connection, Any]:
        """Ask for a worker; returns its ticket, the connection to it and the file that holds what it prints.

        Raises:
            DeviceError: the server cannot be started.
        """
        self._tickets += 1
        log = tempfile.TemporaryFile()  # noqa: SIM115 (the worker's record closes it)
        # Appending, so that what is printed after `trim` does not land where the file used to end.
        fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        message = COMMAND.pack(b"S", self._tickets)
        descriptors = [theirs.fileno(), log.fileno()]
        with theirs:
            try:
                socket.send_fds(self._control, [message], descriptors)
            except OSError:
                # Only a signal from outside, such as the kernel's out-of-memory killer, ends a server.
                self.close()
                self._launch()
                try:
                    socket.send_fds(self._control, [message], descriptors)
                except OSError as error:
                    raise DeviceError(f"cannot start a worker process: {error}; {tail(self._log)}") from error
        return self._tickets, Connection(ours.detach()), log

    def pid(self, ticket: int) -> int | None:
        """Return the process of a ticket once it is known."""
        self._collect()
        return self._notices.get((b"P", ticket))

    def kill(self, ticket: int) -> None:
        """Kill a worker; the server does it, so that a reused process number can never be hit."""
        pid = self.pid(ticket)
        # A worker whose start was not announced yet has no job: if the news is late, it ends with its connection.
        deadline = time.monotonic() + 1.0
        while pid is None and self._alive and ticket not in self._ended and time.monotonic() < deadline:
            mp_connection.wait([self._control], 0.1)
            pid = self.pid(ticket)
        if pid is not None:
            with contextlib.suppress(OSError):
                self._control.send(COMMAND.pack(b"K", pid))

    def death(self, ticket: int, patience_s: float) -> str:
        """Say how a worker ended, waiting a moment for the news: `killed by SIGSEGV`, `exit code 1`, `gone`."""
        deadline = time.monotonic() + patience_s
        while True:
            pid = self.pid(ticket)
            status = self._notices.pop((b"X", pid), None) if pid is not None else None
            if status is not None:
                self._notices.pop((b"P", ticket), None)
                self._ended.add(ticket)
                if os.WIFSIGNALED(status):
                    return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
                return f"exit code {os.waitstatus_to_exitcode(status)}"
            if time.monotonic() >= deadline or not self._alive:
                return "gone"
            mp_connection.wait([self._control], 0.02)

    def log_tail(self) -> str:
        """Return the end of what the server itself printed, where it is gone; empty while it lives."""
        self._collect()
        return "" if self._alive else tail(self._log)

    def _collect(self) -> None:
        while True:
            try:
                message = self._control.recv(NOTICE.size, socket.MSG_DONTWAIT)
            except (BlockingIOError, OSError):
                return
            if not message:
                self._alive = False
                return
            kind, first, second = NOTICE.unpack(message)
            if kind == b"P":
                self._notices.pop((b"X", second), None)
            self._notices[kind, first] = second

    def close(self) -> None:
        """End the server and with it every worker it forked; safe to call twice."""
        self._alive = False
        self._control.close()
        self._log.close()
        self._end()  # its workers die with it


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def trim(log: Any) -> None:
    """Empty a file that a process prints to once it is large: a candidate may print from every thread."""
    if os.fstat(log.fileno()).st_size > _LOG_BYTES:
        os.ftruncate(log.fileno(), 0)


def tail(log: Any, characters: int = 2000) -> str:
    """Return the end of what a process printed to a file."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - characters))
    return str(log.read().decode(errors="replace")).strip()
