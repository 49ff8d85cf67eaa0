"""Isolated worker processes: killable, with a deadline for every job, replaced by a warm spare, dead with their parent.

The one abstraction for everything that must not take the search down: the compile pool, the GPU worker, the simulated
device. A pool is driven by one thread: it submits jobs and calls `wait`, which moves everything along.

    server = ForkServer(preload=("torch",))
    pool = WorkerPool(server, WorkerSpec("package.module:Handler", init), size=2, spares=1)
    pool.submit(7, job, deadline_s=3.0)
    for result in wait([pool], timeout_s=1.0): ...
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import connection as mp_connection
from multiprocessing.connection import Connection
from typing import Any, Literal

from evokern.errors import DeviceError, EvokernError, InternalError
from evokern.workers.fork_server import ForkServer, tail, trim
from evokern.workers.shadowing import shadowed

__all__ = ["ForkServer", "JobResult", "WorkerPool", "WorkerSpec", "wait"]

_DEATHS_REMEMBERED_S = 10.0
_INIT_FAILURES_ALLOWED = 4
_DEATH_PATIENCE_S = 0.2
_KILL_PATIENCE_S = 10.0
"""A process that is killed while its GPU works is gone when the driver has torn its context down."""
_QUEUED_BYTES = 1 << 17
"""A larger job waits for an idle worker: sending it to a busy one could block on the socket's buffer, which holds
416 KiB where Linux's default limit stands (net.core.wmem_max of 208 KiB, doubled)."""


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker runs."""

    factory: str
    """`module:Class`; an `evokern.workers.process.Handler`, called once with `init`, then `handle` per job."""
    init: Any
    """Anything that pickles."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables set before the factory's module is imported."""
    init_deadline_s: float = 180.0
    """Seconds after which a worker that is still starting counts as dead."""


@dataclass(frozen=True)
class JobResult:
    """What became of a job."""

    key: int
    """The job's key."""
    status: Literal["done", "raised", "died", "overran"]
    """Answered; raised an exception; its process died; was killed at its deadline."""
    value: Any
    """The answer, the `EvokernError`, how the process died, or the deadline in seconds."""
    seconds: float
    """Time on the worker."""
    log: str = ""
    """End of what a dead worker printed."""


@dataclass(frozen=True)
class _Job:
    key: int
    payload: bytes
    deadline_s: float
    attempt: int = 0


@dataclass(eq=False)
class _Worker:
    ticket: int
    connection: Connection
    log: Any
    started: float
    ready: bool = False
    ready_at: float = 0.0
    jobs: deque[_Job] = field(default_factory=deque)
    head_since: float = 0.0

    def deadline(self, spec: WorkerSpec) -> float | None:
        if not self.ready:
            return self.started + spec.init_deadline_s
        return self.head_since + self.jobs[0].deadline_s if self.jobs else None


class WorkerPool:
    """`size` workers that work, `spares` that wait. More spares are kept for a while after a series of deaths."""

    def __init__(
        self, server: ForkServer, spec: WorkerSpec, *, size: int, spares: int = 0, most_spares: int = 4, depth: int = 1
    ) -> None:
        self._server = server
        self._spec = spec
        self._size = size
        self._spares = spares
        self._most_spares = max(spares, most_spares)
        self._depth = depth
        self._backlog: deque[_Job] = deque()
        self._workers: list[_Worker] = []
        self._deaths: deque[float] = deque()
        self._init_failures = 0
        self._closed = False
        self.ready_report: Any = None
        """What the first handler offered as its `ready_report`."""
        self._replenish()

    @property
    def pending(self) -> int:
        """Jobs not answered yet."""
        return len(self._backlog) + sum(len(worker.jobs) for worker in self._workers)

    @property
    def ready(self) -> int:
        """Workers that have started."""
        return sum(worker.ready for worker in self._workers)

    @property
    def processes(self) -> list[int]:
        """Process numbers of the workers, for tests and messages."""
        return [pid for worker in self._workers if (pid := self._server.pid(worker.ticket)) is not None]

    def submit(self, key: int, job: Any, deadline_s: float) -> None:
        """Queue a job; its deadline runs from the moment a worker takes it up."""
        self._backlog.append(_Job(key, pickle.dumps(job), deadline_s))
        self._feed()

    def keep_spares(self, spares: int) -> None:
        """Keep so many spares from now on: for a pool that starts without, so that the first worker starts faster."""
        self._spares = spares
        self._most_spares = max(spares, self._most_spares)
        self._replenish()

    def wait_ready(self, workers: int = 1) -> None:
        """Wait until so many workers have started.

        Raises:
            EvokernError: what the handler raised while it was built.
            DeviceError: the workers die while they start.
        """
        while self.ready < workers:
            wait([self], 1.0)

    def close(self) -> None:
        """Kill every worker; safe to call twice."""
        self._closed = True
        for worker in self._workers:
            self._discard(worker)
        self._workers.clear()
        self._backlog.clear()

    def advance(self, readable: Iterable[object]) -> list[JobResult]:
        """Take in what the workers sent, and end those past their deadline (`wait` calls this)."""
        results: list[JobResult] = []
        ready = set(map(id, readable))
        for worker in list(self._workers):
            if id(worker.connection) in ready:
                results += self._receive(worker)
        now = time.monotonic()
        for worker in list(self._workers):
            deadline = worker.deadline(self._spec)
            if deadline is not None and now >= deadline:
                results += self._lose(worker, overran=True)
        if not self._closed:
            self._replenish()
            self._feed()
        return results

    def next_deadline(self) -> float | None:
        """Return the earliest moment (monotonic clock) at which a worker must be ended."""
        deadlines = [d for worker in self._workers if (d := worker.deadline(self._spec)) is not None]
        return min(deadlines, default=None)

    @property
    def connections(self) -> list[Connection]:
        """What to listen to."""
        return [worker.connection for worker in self._workers]

    def _receive(self, worker: _Worker) -> list[JobResult]:
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            return self._lose(worker, overran=False)
        now = time.monotonic()
        trim(worker.log)
        if kind == "ready":
            worker.ready, worker.ready_at = True, now
            self._init_failures = 0
            self.ready_report = value if self.ready_report is None else self.ready_report
            return []
        if kind == "failed":
            self._remove(worker)
            self._init_failed(value)
            return []
        job = worker.jobs.popleft()
        results = [JobResult(job.key, "raised" if kind == "raised" else "done", value, now - worker.head_since)]
        worker.head_since = now
        if kind in ("retired", "busy", "retry"):
            self._deaths.append(now)
            if kind == "busy":
                self._server.kill(worker.ticket)
                self._server.death(worker.ticket, _KILL_PATIENCE_S)
            if kind == "retry" and job.attempt == 0:
                worker.jobs.appendleft(replace(job, attempt=1))
                results = []
            self._backlog.extendleft(reversed(worker.jobs))
            self._remove(worker)
        return results

    def _lose(self, worker: _Worker, overran: bool) -> list[JobResult]:
        now = time.monotonic()
        self._deaths.append(now)
        if overran:
            self._server.kill(worker.ticket)
        patience_s = _KILL_PATIENCE_S if overran else _DEATH_PATIENCE_S
        death, log = self._server.death(worker.ticket, patience_s), tail(worker.log)
        self._remove(worker)
        if not worker.ready:
            what = f"did not start within {self._spec.init_deadline_s:g} s" if overran else death
            printed = log or self._server.log_tail() or "no message"
            self._init_failed(DeviceError(f"a worker process died while it started ({what}): {printed}"))
            return []
        if not worker.jobs:
            return []
        job = worker.jobs.popleft()
        self._backlog.extendleft(reversed(worker.jobs))
        if overran:
            return [JobResult(job.key, "overran", job.deadline_s, now - worker.head_since, log)]
        return [JobResult(job.key, "died", death, now - worker.head_since, log)]

    def _init_failed(self, error: EvokernError) -> None:
        self._init_failures += 1
        if self.ready == 0 and (self.ready_report is None or self._init_failures >= _INIT_FAILURES_ALLOWED):
            raise _explained(error)

    def _remove(self, worker: _Worker) -> None:
        self._discard(worker)
        self._workers.remove(worker)

    def _discard(self, worker: _Worker) -> None:
        self._server.kill(worker.ticket)
        worker.connection.close()
        worker.log.close()

    def _replenish(self) -> None:
        now = time.monotonic()
        while self._deaths and now - self._deaths[0] > _DEATHS_REMEMBERED_S:
            self._deaths.popleft()
        spares = min(self._most_spares, self._spares + len(self._deaths)) if self._spares else 0
        if self._init_failures >= _INIT_FAILURES_ALLOWED:
            # What cannot start again and again (no memory left for a second context, say) is not worth a spare.
            spares = 0
        while len(self._workers) < self._size + spares:
            ticket, connection, log = self._server.spawn()
            try:
                connection.send((self._spec.factory, self._spec.init, dict(self._spec.environment)))
            except OSError as error:
                raise InternalError(f"a worker process was gone before it was told what to do: {error}") from error
            self._workers.append(_Worker(ticket, connection, log, now))

    def _feed(self) -> None:
        # Who works goes on working; a worker that started before it but was ready later is a spare.
        ready = (worker for worker in self._workers if worker.ready)
        active = sorted(ready, key=lambda worker: (not worker.jobs, worker.ready_at))[: self._size]
        for filled in range(self._depth):
            for worker in active:
                if not self._backlog or len(worker.jobs) != filled:
                    continue
                if worker.jobs and len(self._backlog[0].payload) > _QUEUED_BYTES:
                    continue
                if not worker.jobs:
                    worker.head_since = time.monotonic()
                worker.jobs.append(self._backlog.popleft())
                # A worker that just died is noticed, with its jobs, at the end of its connection.
                with contextlib.suppress(OSError):
                    worker.connection.send_bytes(worker.jobs[-1].payload)


def _explained(error: EvokernError) -> EvokernError:
    """Return why a worker did not start: where a user's file hides a library that it needs, that instead."""
    hidden = shadowed(str(error)) if isinstance(error, (DeviceError, InternalError)) else ""
    if not hidden:
        return error
    first = str(error).splitlines()[0].removesuffix(": Traceback (most recent call last):")
    return DeviceError(f"{first}; {hidden}")


def wait(pools: Sequence[WorkerPool], timeout_s: float, also: Sequence[Any] = ()) -> list[JobResult]:
    """Wait for news from any of the pools and return the results.

    Args:
        pools: pools to listen to.
        timeout_s: longest wait in seconds.
        also: further file descriptors or connections that end the wait.

    Raises:
        EvokernError: workers of a pool cannot be started any more.
    """
    limit = time.monotonic() + timeout_s
    for deadline in (pool.next_deadline() for pool in pools):
        limit = limit if deadline is None else min(limit, deadline)
    listened = [connection for pool in pools for connection in pool.connections]
    readable = mp_connection.wait([*listened, *also], max(0.0, limit - time.monotonic()))
    return [result for pool in pools for result in pool.advance(readable)]
