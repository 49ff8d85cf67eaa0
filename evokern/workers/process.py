"""Server side of the fork server, and the main loop of a worker.

A new interpreter imports large modules once and then forks workers, so a replacement worker starts in milliseconds. No
candidate runs in the server. The server ends when its parent closes the control socket or dies. Every worker ends when
the server ends (`_PR_SET_PDEATHSIG`).

The standard library's `multiprocessing.forkserver` is not suitable for four reasons:

- It imports the user's `__main__` into every worker.
- A process has only one such server, with one list of preloaded modules. A search needs two, because compile workers do
  not need the imports of GPU workers.
- Its workers outlive a killed parent: it waits until they end, but a candidate that hangs on a GPU never ends.
- Its parent kills workers by process id, which the system may have reused for another process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, Protocol

from evokern.errors import KERNEL_CODE_EXCEPTIONS, EvokernError, InternalError
from evokern.workers import sharing
from evokern.workers.role import become_worker

COMMAND = struct.Struct("<cI")
"""Message to the server: `S` ticket (with two file descriptors) starts a worker, `K` pid kills a worker."""
NOTICE = struct.Struct("<cIiQ")
"""Message to the parent: `P` ticket pid 0 reports the start of a worker; `X` pid status peak reports its end, with the
status of `os.waitpid` and the peak memory in bytes."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_OUT_OF_RESOURCES = frozenset({errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EDQUOT})
"""System errors that report missing resources of the machine and say nothing about a job."""


class Handler(Protocol):
    """Code that runs in a worker: it is constructed once from the worker's `init`, then called for each job.

    If a handler has a method `listen`, this method receives a function that returns whether the next job has arrived.
    If it has a static method `freed`, it is called after the handler was dropped, before the next one is created.
    """

    def handle(self, job: Any) -> Any:
        """Run a job and return its result."""


@dataclass(frozen=True)
class FreeHandler:
    """Message to an idle worker: drop the handler and free its memory; the next handler's `init` follows."""


class Retire(Exception):  # noqa: N818 (it carries a result, not an error)
    """Exception that a handler raises to return `value` as its result and to request a new worker.

    `busy`: the device is still running endless work, so the next job waits until the process has ended. `retry`: the
    result is unreliable, so another worker runs the job again.
    """

    def __init__(self, value: Any, *, busy: bool = False, retry: bool = False) -> None:
        super().__init__(value)
        self.value = value
        self.kind = "retry" if retry else "busy" if busy else "retired"


def main() -> None:
    """Serve the control socket given on the command line until it closes."""
    settings = json.loads(sys.argv[1])
    # During the imports, which take seconds, nothing reads the control socket; the system therefore ends this process
    # with its parent. The system ties it to the parent's *thread*, so stay tied only to a permanent thread.
    die_with(settings["parent"])
    _name_process("evokern-forks")
    sys.path[:] = settings["path"]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload(settings["preload"])
    if not settings["tied"]:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
    control = socket.socket(fileno=settings["control"])
    folder = Path(settings["folder"]) if settings["folder"] else None
    listener = None if folder is None else sharing.open_listener(folder)
    while True:  # a forked server continues with its own sockets
        control, listener = _serve(control, folder, listener)


def preload(names: Iterable[str]) -> None:
    """Import modules and call functions, given as `module:function`, for all workers that are forked later."""
    for name in names:
        module, _, function = name.partition(":")
        # The worker that needs the module reports a failed import.
        with contextlib.suppress(Exception, SystemExit):
            loaded = importlib.import_module(module)
            if function:
                getattr(loaded, function)()
    # Garbage collection in the workers skips frozen objects, so their memory pages stay shared.
    gc.collect()
    gc.freeze()


def die_with(parent: int) -> None:
    """Let the system kill this process when its parent ends; exit at once if the parent has already ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _name_process(name: str) -> None:
    """Set the name that `ps` and `top` show, at most 15 characters (prctl(2), PR_SET_NAME)."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15])


def _serve(
    control: socket.socket, folder: Path | None, listener: socket.socket | None
) -> tuple[socket.socket, socket.socket | None]:
    """Execute commands of the parent until it closes the control socket; fork servers for other processes.

    Args:
        control: this process's end of the control socket.
        folder: folder for requests from other processes; None accepts no requests.
        listener: socket for these requests; None if it could not be created.

    Returns:
        In a forked server, its own control socket and listener.
    """
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    listened: list[Any] = [control, wake_read, *([] if listener is None else [listener])]
    children: set[int] = set()
    servers: set[int] = set()

    def forget() -> None:
        """Close the server's descriptors in a forked child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (wake_read, wake_write):
            os.close(descriptor)
        control.close()
        if listener is not None:
            listener.close()

    while True:
        readable, _, _ = select.select(listened, [], [])
        if wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            _reap(control, children, servers)
        if folder and listener and listener in readable and (asked := sharing.accept_request(listener)) is not None:
            pid = _fork_server(*asked)
            if pid == 0:
                forget()
                return _become(*asked, folder)
            if pid is not None:
                servers.add(pid)
        if control not in readable:
            continue
        try:
            message, descriptors, _, _ = socket.recv_fds(control, COMMAND.size, 2)
        except ConnectionResetError:  # the parent died with unread messages
            message = b""
        if not message:
            if folder is not None:
                sharing.leave(folder, os.getpid())
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        command, number = COMMAND.unpack(message)
        if command == b"K":
            if number in children:
                os.kill(number, signal.SIGKILL)
            continue
        pid = os.fork()
        if pid == 0:
            server = os.getppid()
            forget()
            _work(server, *descriptors)
        children.add(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        _notify(control, b"P", number, pid)


def _fork_server(asking: socket.socket, request: sharing.ServerRequest) -> int | None:
    """Fork a server; return its process id, 0 in the forked server, or None if the fork failed."""
    try:
        pid = os.fork()
    except OSError:
        pid = None
    if pid != 0:
        asking.close()
        os.close(request.control)
        os.close(request.log)
    return pid


def _become(
    asking: socket.socket, request: sharing.ServerRequest, folder: Path
) -> tuple[socket.socket, socket.socket | None]:
    """Turn this fork into the requested server, which ends only when the requesting process ends."""
    settings = request.settings
    set_up_process(request.log, settings["directory"], settings["environment"])
    _name_process(f"forks-{settings['parent']}")
    listener = sharing.open_listener(folder)
    if not sharing.confirm(asking):  # the requesting process gave up and started its own server
        sharing.leave(folder, os.getpid())
        os._exit(0)
    return socket.socket(fileno=request.control), listener


def set_up_process(log: int, directory: str, environment: Mapping[str, str]) -> None:
    """Set up a forked process like a newly started process, in a separate session.

    Args:
        log: file descriptor for its output; it is duplicated to stdout and stderr, then closed.
        directory: working directory.
        environment: complete set of environment variables.
    """
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _reap(control: socket.socket, children: set[int], servers: set[int]) -> None:
    while children or servers:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in servers:
            servers.discard(pid)
            continue
        children.discard(pid)
        _notify(control, b"X", pid, status, 1024 * usage.ru_maxrss)


def _notify(control: socket.socket, kind: bytes, first: int, second: int, peak_bytes: int = 0) -> None:
    with contextlib.suppress(OSError):
        control.send(NOTICE.pack(kind, first, second, peak_bytes))


def _work(server: int, channel: int, log: int) -> NoReturn:
    die_with(server)
    become_worker()
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 1
    try:
        with Connection(channel) as connection:
            _answer(connection)
        status = 0
    except (EOFError, BrokenPipeError, ConnectionResetError):
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _answer(connection: Connection) -> None:
    """Create a handler and run its jobs; after `FreeHandler`, continue with a handler for the next `init`."""
    factory, init, environment, niceness = connection.recv()
    os.environ.update(environment)
    os.nice(niceness)
    module, _, name = factory.partition(":")
    _name_process(name)
    while True:
        try:
            handler: Any = getattr(importlib.import_module(module), name)(init)
        except KERNEL_CODE_EXCEPTIONS as error:
            connection.send(("failed", _portable(error)))
            return
        if hasattr(handler, "listen"):
            handler.listen(connection.poll)
        connection.send(("ready", getattr(handler, "ready_report", None)))
        if not _run_jobs(connection, handler):
            return
        freed = getattr(handler, "freed", None)
        handler = None
        if freed is not None:
            gc.collect()
            freed()
        init = connection.recv()


def _run_jobs(connection: Connection, handler: Handler) -> bool:
    """Run jobs until the parent sends `FreeHandler`; return False if this process must end before."""
    while not isinstance(job := connection.recv(), FreeHandler):
        try:
            reply = ("done", handler.handle(job))
        except Retire as last:
            connection.send((last.kind, last.value))
            return False
        except KERNEL_CODE_EXCEPTIONS as error:
            if _lacks_resources(error):
                connection.send(("starved", f"{type(error).__name__}: {error}".splitlines()[0]))
                return False
            reply = ("raised", _portable(error))
        connection.send(reply)
    return True


def _lacks_resources(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes reports a lack of memory, disk space or file descriptors."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES):
            return True
        error = error.__cause__ or error.__context__
    return False


def _portable(error: BaseException) -> EvokernError:
    """Return an exception that can be pickled; all except `EvokernError` become `InternalError` with the traceback."""
    if isinstance(error, EvokernError):
        return error
    text = "".join(traceback.format_exception(error)).rstrip()
    return InternalError(f"a worker raised {type(error).__name__}: {error}\n{text}")
