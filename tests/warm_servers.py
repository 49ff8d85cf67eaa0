"""Fork servers of simulated devices that begin with their libraries imported, for the process that runs the tests.

Every simulated device has a fork server of its own, which imports torch: seconds of a core each, and the tests open
a hundred. Here one process for each of pytest's imports what such a server preloads, and forks when a server is wanted.
The fork becomes a child of pytest's process, as a server that was started, gets its environment, folder, output and
control socket, and goes through the same `main`, whose imports find everything there. Servers that preload anything
else, and all that are started where a variable differs that libraries read when they are imported, start from nothing:
so do those of `tests/workers` and of every `evokern` that runs as a process of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evokern.workers.process import main, preload, set_up_process

_READ_WHEN_IMPORTED = ("CUDA", "CUPY", "LD_", "MKL", "NUMPY", "NVIDIA", "OMP", "OPENBLAS", "PYTHON", "TORCH")
_HOME = {"HOME": os.environ["HOME"]} if "HOME" in os.environ else {}
_PR_SET_CHILD_SUBREAPER = 36
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from warm_servers import serve; serve()"
_MESSAGE_BYTES = 1 << 18


class Adopted:
    """A child that another process forked for this one: what the fork server uses of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        if self._poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self._poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("a fork server", timeout or 0.0)
            time.sleep(0.001)
        return code

    def _poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class WarmProcess:
    """The process that has imported the libraries, seen from pytest's."""

    def __init__(self, preload: Sequence[str], environment: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
        arguments = [json.dumps(sys.path), str(theirs.fileno()), json.dumps(list(preload))]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, *arguments], pass_fds=[theirs.fileno()], env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        atexit.register(self._close)

    def fork(self, settings: dict[str, Any], log: Any, environment: dict[str, str]) -> Adopted:
        """Return a server that was forked, a child of this process."""
        wanted = {"settings": settings, "environment": environment, "folder": str(Path.cwd())}
        # The forked process loses its parent, and goes to the nearest process above that takes such in.
        with _adopting():
            socket.send_fds(self._socket, [json.dumps(wanted).encode()], [settings["control"], log.fileno()])
            pid = int(self._socket.recv(64))
        return Adopted(pid)

    def _close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def _adopting() -> Any:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def serve() -> None:
    """Import what the command line names, then fork a server for each message; ends with pytest's process."""
    asked = socket.socket(fileno=int(sys.argv[2]))
    preload(json.loads(sys.argv[3]))
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES, 2)
        if not message:
            os._exit(0)
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            _become_server(json.loads(message), asked, *descriptors)
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _become_server(wanted: dict[str, Any], asked: socket.socket, control: int, log: int) -> None:
    """Be what `evokern.workers.fork_server` starts: a process of its own session that runs `main`."""
    settings = wanted["settings"] | {"control": control}
    while os.getppid() != settings["parent"]:
        time.sleep(0.001)
    set_up_process(log, wanted["folder"], wanted["environment"])
    sys.argv = ["-c", json.dumps(settings)]
    asked.send(str(os.getpid()).encode())
    asked.close()
    main()


def install(patch: pytest.MonkeyPatch) -> None:
    """Have the fork servers of simulated devices begin as copies of one process, which the first one starts."""
    from evokern.workers import fork_server

    cold = fork_server._start

    def start(settings: dict[str, Any], log: Any, environment: dict[str, str]) -> Any:
        if tuple(settings["preload"]) == _preloaded():
            warm, path, read = _warm_process(os.getpid(), environment)
            if (path, read) == (settings["path"], _read_when_imported(environment)):
                return warm.fork(settings, log, environment)
        return cold(settings, log, environment)

    patch.setattr(fork_server, "_start", start)


_warm: dict[int, tuple[WarmProcess, list[str], dict[str, str]]] = {}


def _warm_process(owner: int, environment: dict[str, str]) -> tuple[WarmProcess, list[str], dict[str, str]]:
    """Return the warm process of a process, and the path and variables that it began with."""
    if owner not in _warm:  # a fork of pytest's has none of its own yet
        # CuPy makes its folder at home when it is imported: not in that of the test that happens to come first.
        made = WarmProcess(_preloaded(), environment | _HOME)
        _warm[owner] = made, list(sys.path), _read_when_imported(environment)
    return _warm[owner]


def _preloaded() -> tuple[str, ...]:
    from evokern.compile.pool import PRELOAD
    from evokern.device.sim.simulated import MODULES

    return (*PRELOAD, *MODULES)


def _read_when_imported(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_WHEN_IMPORTED)}
