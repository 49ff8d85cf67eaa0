"""The process that forks workers, and what a worker does. `evokern.workers.pool` starts it; nothing else imports it.

A fresh interpreter imports the heavy modules once and then forks, so that a replacement worker starts in milliseconds.
No candidate ever runs in this process. It ends when its parent's end of the control socket closes, however the parent
died, and every worker ends with it (`PR_SET_PDEATHSIG`).

The standard library's fork server (`multiprocessing.forkserver`) is not used, for four reasons. It imports the user's
`__main__` into every worker. There is one for each process, with one list of modules to preload, where a search keeps
two: a compile worker needs nothing of what a GPU's imports. Its workers outlive a parent that is killed, for it
waits until they have ended, and a candidate that hangs on a GPU never does. And its parent kills a worker by the number
of a process that the server may have reaped already, so that another process may have it.
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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, Protocol

from evokern.errors import RAISED, EvokernError, InternalError
from evokern.workers import sharing
from evokern.workers.role import become_worker

COMMAND = struct.Struct("<cI")
"""Parent to server: `S` ticket (with two file descriptors) starts a worker, `K` pid kills one."""
NOTICE = struct.Struct("<cIiQ")
"""Server to parent: `P` ticket pid 0, a worker was started; `X` pid status peak, one ended (as in `os.waitpid`), and
the most bytes of memory that it ever had."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_OUT_OF_RESOURCES = frozenset({errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EDQUOT})
"""Errors of the system that say what the machine lacks, and nothing of a job."""


class Handler(Protocol):
    """What runs in a worker: built once from the worker's `init`, then asked job after job.

    One with a method `listen` is given a function that tells whether the next job has come already.
    """

    def handle(self, job: Any) -> Any:
        """Answer one job."""


class Retire(Exception):  # noqa: N818 (it is an answer, not an error)
    """Raised by a handler to answer with `value` and be replaced: its context is no longer usable.

    With `busy` its device still works on something that never ends: the next job waits until the process is gone.
    With `retry` the answer itself is in doubt: another worker does the job once more.
    """

    def __init__(self, value: Any, *, busy: bool = False, retry: bool = False) -> None:
        super().__init__(value)
        self.value = value
        self.kind = "retry" if retry else "busy" if busy else "retired"


def main() -> None:
    """Serve the control socket given on the command line until it closes."""
    settings = json.loads(sys.argv[1])
    # What is imported takes seconds, in which nobody listens to the control socket: the system ends this process with
    # its parent. It does so with the parent's *thread*, so that only one that lasts may stay tied.
    _die_with(settings["parent"])
    _name_process("evokern-forks")
    sys.path[:] = settings["path"]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload(settings["preload"])
    if not settings["tied"]:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
    control = socket.socket(fileno=settings["control"])
    folder = Path(settings["folder"]) if settings["folder"] else None
    listener = None if folder is None else sharing.listening(folder)
    while True:  # a copy goes on with sockets of its own
        control, listener = _serve(control, folder, listener)


def preload(names: Iterable[str]) -> None:
    """Import modules, and call functions given as `module:function`: what they load is there in every worker."""
    for name in names:
        module, _, function = name.partition(":")
        # What cannot be imported, whatever it raises, is reported by the worker that needs it.
        with contextlib.suppress(Exception, SystemExit):
            loaded = importlib.import_module(module)
            if function:
                getattr(loaded, function)()
    # Frozen objects are not visited by the workers' collectors, so their pages stay shared.
    gc.collect()
    gc.freeze()


def _die_with(parent: int) -> None:
    """Have the system kill this process when the one that started it ends, or end now if it has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _name_process(name: str) -> None:
    """Let `ps` and `top` show what a process is there for, in 15 characters (prctl(2), PR_SET_NAME)."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15])


def _serve(
    control: socket.socket, folder: Path | None, listener: socket.socket | None
) -> tuple[socket.socket, socket.socket | None]:
    """Do what the parent asks until it closes the control socket, and fork further servers for others alike.

    Args:
        control: this process's end of the control socket.
        folder: where it may be asked for further servers; None for nowhere.
        listener: by which it hears that; None where the folder takes none.

    Returns:
        In such a further server, its own control socket and listener.
    """
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    listened: list[Any] = [control, wake_read, *([] if listener is None else [listener])]
    children: set[int] = set()
    servers: set[int] = set()

    def forget() -> None:
        """Close, in a child, what is this process's."""
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
        if folder and listener and listener in readable and (asked := sharing.accepted(listener)) is not None:
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
        except ConnectionResetError:  # the parent died with notices unread
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
    """Fork a further server; returns its process to this one, 0 to it, and None where the system has no room for it."""
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
    """Be the server that was asked for: it stays when the one that forked it ends, and ends with who asked for it."""
    settings = request.settings
    settle(request.log, settings["directory"], settings["environment"])
    _name_process(f"forks-{settings['parent']}")
    listener = sharing.listening(folder)
    if not sharing.answer(asking):  # who asked has given up, and started another one
        sharing.leave(folder, os.getpid())
        os._exit(0)
    return socket.socket(fileno=request.control), listener


def settle(log: int, directory: str, environment: Mapping[str, str]) -> None:
    """Have, in a fork, what a process that was started would have been given, in a session of its own.

    Args:
        log: the file that it prints to; closed under this number.
        directory: where it works.
        environment: all of its variables.
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
    _die_with(server)
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
    factory, init, environment, niceness = connection.recv()
    os.environ.update(environment)
    os.nice(niceness)
    try:
        module, _, name = factory.partition(":")
        _name_process(name)
        handler: Handler = getattr(importlib.import_module(module), name)(init)
    except RAISED as error:
        connection.send(("failed", _portable(error)))
        return
    if hasattr(handler, "listen"):
        handler.listen(connection.poll)
    connection.send(("ready", getattr(handler, "ready_report", None)))
    while True:
        job = connection.recv()
        try:
            reply = ("done", handler.handle(job))
        except Retire as last:
            connection.send((last.kind, last.value))
            return
        except RAISED as error:
            if _lacks_resources(error):
                connection.send(("starved", f"{type(error).__name__}: {error}".splitlines()[0]))
                return
            reply = ("raised", _portable(error))
        connection.send(reply)


def _lacks_resources(error: BaseException | None) -> bool:
    """Tell whether an error, or what led to it, says that the machine has no memory, disk space or files left."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES):
            return True
        error = error.__cause__ or error.__context__
    return False


def _portable(error: BaseException) -> EvokernError:
    """Return an exception that pickles: evokern's own as it is, any other as an `InternalError` with its traceback."""
    if isinstance(error, EvokernError):
        return error
    text = "".join(traceback.format_exception(error)).rstrip()
    return InternalError(f"a worker raised {type(error).__name__}: {error}\n{text}")
