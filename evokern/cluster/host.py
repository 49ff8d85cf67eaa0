"""Worker pools on one host of a cluster, and their interface for remote callers.

This module does not depend on Ray; `evokern.cluster.ray_backend` creates the actors.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import queue
import shutil
import socket
import tempfile
import threading
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

from evokern.compile.cache import default_directory
from evokern.declaration.kernel_files import KernelFile, write_kernel_files
from evokern.errors import DeviceError, EvokernError, InternalError
from evokern.ownership import who_else_can_modify
from evokern.version import __version__
from evokern.workers.backend import HostResource, PoolPlan
from evokern.workers.fork_server import ForkServer
from evokern.workers.jobs import JobResult
from evokern.workers.pool import WorkerPool, wait

_SCRATCH = f"evokern-kernel-{socket.gethostname()}-"
"""Prefix of temporary kernel folders; it includes the host name, because machines may share TMPDIR."""
_IN_USE = "in-use"


@dataclass(frozen=True)
class HostPlan:
    """Plan for one host: its worker pools and kernel files."""

    preload: tuple[str, ...]
    """Same as for `ForkServer`."""
    pools: Mapping[str, PoolPlan]
    """Plans of the pools, by name."""
    kernel: str
    """Name of the kernel folder."""
    files: Mapping[str, bytes]
    """Compressed kernel files from `compress_files`, by their paths relative to the kernel folder."""


class Host:
    """Runner of jobs in the pools of a host; any number of threads may submit jobs."""

    def __init__(self, plan: HostPlan) -> None:
        """Start importing the workers' modules; `report` opens the pools later."""
        self._plan = plan
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._in_use: TextIO | None = None
        self._server: ForkServer | None = None
        self._asked: queue.SimpleQueue[tuple[str, Any, float, Future[JobResult]]] = queue.SimpleQueue()
        self._pools: dict[str, WorkerPool] = {}
        self._holders: dict[str, HostResource] = {}
        self._spares_wanted = False
        self._begun = threading.Event()
        self._ready: Future[None] = Future()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The system ends a fork server together with the *thread* that started it, so use a permanent thread.
        threading.Thread(target=self._drive, name="evokern-host", daemon=True).start()

    def report(self) -> dict[str, Any]:
        """Open the pools, wait for a worker of each pool, and return a report on this host and its handlers.

        Raises:
            EvokernError: if workers cannot be started or the kernel files cannot be written.
        """
        self._begun.set()
        self._ready.result()
        return {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "versions": versions(),
            "reports": {name: pool.ready_report for name, pool in self._pools.items()},
            "held": {name: holder.report() for name, holder in self._holders.items()},
        }

    def keep_spares(self) -> None:
        """Let pools that reserve a resource of this host keep spare workers from now on."""
        self._spares_wanted = True
        self._wake()

    def run_job(self, pool: str, job: Any, deadline_s: float) -> JobResult:
        """Run a job; return its result, this host's key and the time on this host's clock.

        Raises:
            EvokernError: if workers can no longer be started.
        """
        self._begun.set()  # Ray may send a job to the replacement of a dead actor before calling `report`
        future: Future[JobResult] = Future()
        self._asked.put((pool, job, deadline_s, future))
        self._wake()
        return future.result()

    def leave(self) -> None:
        """Release the resources of this host before the process ends; no method may be called afterwards."""
        for holder in self._holders.values():
            holder.release()
        if self._server is not None:
            self._server.stop_sharing()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    def _written(self) -> Path:
        """Write the kernel folder and return its path."""
        try:
            _remove_stale_folders()
            self._scratch = tempfile.TemporaryDirectory(prefix=_SCRATCH)
            self._in_use = _marked(Path(self._scratch.name))
            kernel = f"kernels/{PurePosixPath(self._plan.kernel).name}"
            return write_kernel_files(Path(self._scratch.name), kernel, _unpacked(self._plan.files))
        except OSError as error:
            raise DeviceError(
                f"cannot write the kernel files to {tempfile.gettempdir()}: {error.strerror}; free space there or set "
                "TMPDIR before `ray start`"
            ) from error

    def _drive(self) -> None:
        waiting: dict[int, tuple[str, Future[JobResult]]] = {}
        try:
            server = self._server = ForkServer(self._plan.preload, shared=versions()["evokern"])
            self._begun.wait()
            folder = self._written()
            for name, one in self._plan.pools.items():
                one = _at_home(one, folder)
                spec = one.spec
                if one.hold is not None:
                    self._holders[name] = one.hold()
                    spec = self._holders[name].spec(spec)
                self._pools[name] = WorkerPool(server, spec, size=one.size, depth=one.depth, patience_s=one.patience_s)
            pools, number = list(self._pools.values()), 0
            while True:
                for result in wait(pools, 1.0, [self._wake_read]):
                    name, future = waiting.pop(result.key)
                    holder = self._holders.get(name)
                    future.set_result(
                        holder.with_observations(result, self._pools[name].processes) if holder else result
                    )
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                if self._spares_wanted:
                    self._spares_wanted = False
                    for name, holder in self._holders.items():
                        self._pools[name].keep_spares(holder.spares(self._pools[name].ready_report))
                if not self._ready.done() and all(pool.ready for pool in pools):
                    self._ready.set_result(None)
                with contextlib.suppress(queue.Empty):
                    while True:
                        name, job, deadline_s, future = self._asked.get_nowait()
                        number += 1
                        waiting[number] = name, future
                        self._pools[name].submit(number, job, deadline_s)
        except BaseException as error:
            cause = error if isinstance(error, EvokernError) else InternalError(f"{type(error).__name__}: {error}")
            if not self._ready.done():
                self._ready.set_exception(cause)
            for _, future in waiting.values():
                future.set_exception(cause)
            while True:  # fail all later jobs too
                _, _, _, future = self._asked.get()
                future.set_exception(cause)


def _marked(folder: Path) -> TextIO:
    """Mark a folder as in use until the returned file is closed."""
    begun = folder / f"{_IN_USE}.begun"
    mark = begun.open("w")
    fcntl.flock(mark, fcntl.LOCK_EX)
    begun.rename(folder / _IN_USE)  # renamed after locking, so that a visible mark is always locked
    return mark


def _remove_stale_folders() -> None:
    """Remove marked folders that killed hosts left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and not who_else_can_modify(folder):
                with open(folder / _IN_USE, opener=_opened_mark) as mark:
                    fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)


def _opened_mark(path: str, _: int) -> int:
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _at_home(plan: PoolPlan, folder: Path) -> PoolPlan:
    """Return a plan whose workers load the kernel from this host's copy and use this host's compile cache."""
    init = plan.spec.init
    if hasattr(init, "context"):
        init = replace(init, context=replace(init.context, folder=folder))
    if hasattr(init, "cache"):
        init = replace(init, cache=default_directory())
    return replace(plan, spec=replace(plan.spec, init=init))


def plan_without_files(plan: PoolPlan) -> PoolPlan:
    """Return a plan whose workers read the kernel's files from the host's copy; it is sent to hosts."""
    context = getattr(plan.spec.init, "context", None)
    if context is None or context.content is None:
        return plan
    context = replace(context, content=replace(context.content, files=()))
    return replace(plan, spec=replace(plan.spec, init=replace(plan.spec.init, context=context)))


def compress_files(files: Sequence[KernelFile]) -> dict[str, bytes]:
    """Return the compressed kernel files; Ray stores at most 100 KB with an actor."""
    return {file.name: zlib.compress(file.content) for file in files}


def _unpacked(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: zlib.decompress(content) for name, content in files.items()}


@cache
def versions() -> dict[str, str]:
    """Return the versions that must be equal on all hosts, because hosts exchange pickled objects."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    python = ".".join(platform.python_version_tuple()[:2])
    return {"evokern": f"{__version__} ({digest.hexdigest()[:12]})", "Python": python}


def require_same_versions(reports: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that all hosts report equal versions.

    Args:
        reports: host → versions by name, including those of this machine.

    Raises:
        DeviceError: if versions differ; the message lists them.
    """
    for name in dict.fromkeys(name for found in reports.values() for name in found):
        found = {host: str(one[name]) for host, one in reports.items() if name in one}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{host} has {version}" for host, version in found.items())
            raise DeviceError(
                f"the hosts have different versions of {name}: {listed}; install the same version on every host"
            )
