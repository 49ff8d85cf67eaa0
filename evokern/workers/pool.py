"""Pool of isolated worker processes with a deadline for each job.

A worker can be killed; a spare worker, which has already started, then replaces it. Workers end when their parent ends.
The compile pool, the GPU worker and the simulated device use such pools, because their crashes must not end the search.
One thread drives a pool: it submits jobs and calls `wait`, which also starts and replaces workers.

    server = ForkServer(preload=("torch",))
    pool = WorkerPool(server, WorkerSpec("package.module:Handler", init), size=2, spares=1)
    pool.submit(7, job, deadline_s=3.0)
    for result in wait([pool], timeout_s=1.0): ...

If a worker dies, its job runs again on another worker. If that worker also dies, the result is `died` if the job may
be the cause, and `lost` otherwise.
"""

from __future__ import annotations

import contextlib
import logging
import math
import pickle
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from multiprocessing import connection as mp_connection
from multiprocessing.connection import Connection
from typing import Any, Literal

from evokern.errors import DeviceError, EvokernError, InternalError
from evokern.workers.fork_server import Death, ForkServer, tail, trim
from evokern.workers.host_memory import memory_in_use, memory_text
from evokern.workers.jobs import Job, JobPool, JobResult, Worker, WorkerSpec
from evokern.workers.shadowing import shadowing_advice

__all__ = ["ForkServer", "JobResult", "OwnServerPool", "WorkerPool", "WorkerSpec", "wait"]

_DEATHS_REMEMBERED_S = 10.0
_INIT_FAILURES_ALLOWED = 4
_START_DEATHS_ALLOWED = 3
_DEATH_PATIENCE_S = 2.0
"""Seconds to wait for the report that a worker ended; the driver must first destroy the worker's GPU context."""
_LOGGER = logging.getLogger(__name__)
_KILL_PATIENCE_S = 10.0
"""Seconds to wait until a killed worker ends; the driver must first stop its GPU work and destroy its context."""
_MOST_OVERDUE = 4
"""Maximum number of overdue workers that are replaced while they still run, because each still occupies memory."""
_PAUSE_S = 5.0
"""A wait that ends this many seconds late means that this process was stopped, not that its workers are slow."""
_QUEUED_BYTES = 1 << 17
"""Maximum size of a job that is sent to a busy worker. A larger job waits for an idle worker, because sending it could
block on the socket buffer (416 KiB with Linux's default `net.core.wmem_max`)."""


class WorkerPool:
    """Pool of `size` active and `spares` waiting workers; after several deaths, it temporarily keeps more spares."""

    def __init__(
        self,
        server: ForkServer,
        spec: WorkerSpec,
        *,
        size: int,
        spares: int = 0,
        most_spares: int = 4,
        depth: int = 1,
        patience_s: float = math.inf,
    ) -> None:
        """Create a pool and start its first workers.

        Args:
            server: fork server that starts the workers.
            spec: specification of the workers.
            size: number of active workers.
            spares: number of additional workers that wait.
            most_spares: maximum number of waiting workers after several deaths.
            depth: jobs assigned to a worker at a time, including the running job.
            patience_s: seconds on one job after which an additional worker is started in place of the busy one, for at
                most four workers.
        """
        self._server = server
        self._spec = spec
        self._size = size
        self._spares = spares
        self._most_spares = max(spares, most_spares)
        self._depth = depth
        self._patience_s = patience_s
        self._backlog: deque[Job] = deque()
        self._workers: list[Worker] = []
        self._deaths: deque[float] = deque()
        self._init_failures = 0
        self._start_deaths = 0
        self._fallen_servers: set[int] = set()
        self._closed = False
        self.ready_report: Any = None
        """The first handler's `ready_report`; None before a handler has started."""
        self._replenish()

    @property
    def pending(self) -> int:
        """Number of unfinished jobs."""
        return len(self._backlog) + sum(len(worker.jobs) for worker in self._workers)

    @property
    def ready(self) -> int:
        """Number of workers that have started."""
        return sum(worker.ready for worker in self._workers)

    @property
    def processes(self) -> list[int]:
        """Process ids of the workers, for tests and messages."""
        return [pid for worker in self._workers if (pid := self._server.pid(worker.ticket)) is not None]

    def submit(self, key: int, job: Any, deadline_s: float) -> None:
        """Queue a job; its deadline, in seconds, counts from the time at which a worker starts the job."""
        self._backlog.append(Job(key, pickle.dumps(job), deadline_s))
        self._feed()

    def overdue(self) -> frozenset[int]:
        """Return the keys of jobs that have run for longer than `patience_s`."""
        now = time.monotonic()
        busy = (worker for worker in self._workers if worker.ready and worker.jobs)
        return frozenset(worker.jobs[0].key for worker in busy if now - worker.head_since > self._patience_s)

    @property
    def _working(self) -> int:
        """Number of active workers, including overdue ones."""
        return self._size + min(len(self.overdue()), _MOST_OVERDUE)

    def keep_spares(self, spares: int) -> None:
        """Set the number of spares of a pool that was created without spares so that its first worker starts faster."""
        self._spares = spares
        self._most_spares = max(spares, self._most_spares)
        self._replenish()

    def wait_ready(self, workers: int = 1) -> None:
        """Wait until the given number of workers has started.

        Raises:
            EvokernError: if the handler's constructor raised it.
            DeviceError: if the workers die during their start.
        """
        while self.ready < workers:
            wait([self], 1.0)

    def close(self) -> None:
        """Kill every worker, or keep it for the next pool with the same `WorkerSpec.reuse`; can be called twice."""
        self._closed = True
        for worker in self._workers:
            idle = worker.ready and not worker.jobs
            if not (idle and self._server.keep(self._spec.reuse, (worker.ticket, worker.connection, worker.log))):
                self._discard(worker)
        self._workers.clear()
        self._backlog.clear()

    def advance(self, readable: Iterable[object]) -> list[JobResult]:
        """Process messages from the workers, end workers that exceeded their deadlines, and return finished jobs.

        `wait` calls this method.

        Raises:
            EvokernError: if workers can no longer be started.
        """
        results: list[JobResult] = []
        ready = set(map(id, readable))
        for worker in list(self._workers):
            if id(worker.connection) in ready and worker in self._workers:  # an earlier iteration may end a spare
                results += self._receive(worker)
        now = time.monotonic()
        for worker in list(self._workers):
            deadline = worker.deadline(self._spec)
            if deadline is not None and now >= deadline and not worker.connection.poll():
                results += self._overrun(worker)
        if not self._closed:
            self._replenish()
            self._feed()
        return results

    def grant(self, pause_s: float) -> None:
        """Extend all deadlines by the duration in seconds of a pause of this process (Ctrl-Z, a frozen container)."""
        for worker in self._workers:
            worker.started += pause_s
            worker.head_since += pause_s

    def next_deadline(self) -> float | None:
        """Return the earliest time (monotonic clock) at which a worker must be terminated."""
        deadlines = [d for worker in self._workers if (d := worker.deadline(self._spec)) is not None]
        return min(deadlines, default=None)

    @property
    def connections(self) -> list[Connection]:
        """Connections to wait on."""
        return [worker.connection for worker in self._workers]

    def _receive(self, worker: Worker) -> list[JobResult]:
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            return self._died(worker, self._server.death(worker.ticket, _DEATH_PATIENCE_S))
        now = time.monotonic()
        trim(worker.log)
        if kind == "ready":
            worker.ready, worker.ready_at = True, now
            self._init_failures = self._start_deaths = 0
            self.ready_report = value if self.ready_report is None else self.ready_report
            return []
        if kind == "failed":
            self._remove(worker)
            self._init_failed(value)
            return []
        if kind == "starved":
            self._end_spares(worker)
            return self._died(worker, Death(f"out of resources ({value})", False))
        job = worker.jobs.popleft()
        status: Literal["raised", "done"] = "raised" if kind == "raised" else "done"
        results = [_result(worker, JobResult(job.key, status, value, now - worker.head_since))]
        worker.head_since = now
        if kind in ("retired", "busy", "retry"):
            self._deaths.append(now)
            if kind == "busy":
                self._server.kill(worker.ticket)
                self._server.death(worker.ticket, _KILL_PATIENCE_S)
            if kind == "retry" and not job.retried:
                worker.jobs.appendleft(replace(job, retried=True))
                results = []
            self._backlog.extendleft(reversed(worker.jobs))
            self._remove(worker)
        return results

    def _overrun(self, worker: Worker) -> list[JobResult]:
        """End a worker that exceeded its deadline; if a signal stopped it, its end counts as external."""
        stopped = self._server.stopped(worker.ticket)
        self._server.kill(worker.ticket)
        self._server.death(worker.ticket, _KILL_PATIENCE_S)
        if stopped:
            return self._died(worker, Death("stopped by SIGSTOP beyond its deadline", False))
        log, now = tail(worker.log), time.monotonic()
        self._deaths.append(now)
        self._remove(worker)
        if not worker.ready:
            what = f"did not start within {self._spec.init_deadline_s:g} s"
            self._init_failed(DeviceError(f"a worker process {what}: {log or 'no output'}"))
            return []
        job = worker.jobs.popleft()
        self._backlog.extendleft(reversed(worker.jobs))
        return [_result(worker, JobResult(job.key, "overran", job.deadline_s, now - worker.head_since, log))]

    def _died(self, worker: Worker, death: Death) -> list[JobResult]:
        """Handle the death of a worker: run its job again, or report a result after the second death."""
        log, now = tail(worker.log), time.monotonic()
        self._deaths.append(now)
        self._remove(worker)
        if not worker.ready:
            self._died_at_start(death, log)
            return []
        if not worker.jobs:
            return []
        job = worker.jobs.popleft()
        self._backlog.extendleft(reversed(worker.jobs))
        seconds, deaths = now - worker.head_since, (*job.deaths, death)
        if not job.deaths:
            self._backlog.appendleft(replace(job, deaths=deaths, after=self._server.latest_ticket))
            return []
        if death.own and self._spec.may_fault:
            return [_result(worker, JobResult(job.key, "died", death.description, seconds, log))]
        memory = memory_in_use()
        peaks = [one.peak_bytes for one in deaths if one.peak_bytes]
        if peaks:
            memory["worker_bytes"] = max(peaks)
        how = ", then ".join(one.description for one in deaths)
        return [_result(worker, JobResult(job.key, "lost", how, seconds, log, memory))]

    def _died_at_start(self, death: Death, log: str) -> None:
        printed = log or self._server.log_tail()
        error = DeviceError(f"a worker process died during its start ({death.description}): {printed or 'no output'}")
        if death.own:
            self._init_failed(error)
            return
        # After an external signal the next worker may start. Deaths of workers with the same server count once.
        self._start_deaths += death.server == 0 or death.server not in self._fallen_servers
        self._fallen_servers.add(death.server)
        if self.ready == 0 and self._start_deaths >= _START_DEATHS_ALLOWED:
            if printed:
                raise _explained(error)
            raise DeviceError(
                f"worker processes cannot start: {self._start_deaths} were killed in a row, the last one "
                f"{death.description}{_memory_clause()}; free memory or raise the memory limit, "
                "then run the same command again"
            )

    def _init_failed(self, error: EvokernError) -> None:
        self._init_failures += 1
        if self.ready == 0 and (self.ready_report is None or self._init_failures >= _INIT_FAILURES_ALLOWED):
            raise _explained(error)

    def _remove(self, worker: Worker) -> None:
        self._discard(worker)
        self._workers.remove(worker)

    def _end_spares(self, starved: Worker) -> None:
        """End the spares and keep none from now on, to free the memory that a worker lacked."""
        ended = [starved]
        if self._spares:
            self._spares = 0
            _LOGGER.warning("a worker ran out of memory: spare workers are disabled from now on")
            ended += [one for one in self._workers if not one.jobs]
        for worker in ended:
            self._server.kill(worker.ticket)
        for worker in ended:
            self._server.death(worker.ticket, _KILL_PATIENCE_S)
            if worker is not starved:
                self._remove(worker)

    def _discard(self, worker: Worker) -> None:
        self._server.kill(worker.ticket)
        worker.connection.close()
        worker.log.close()

    def _replenish(self) -> None:
        now = time.monotonic()
        while self._deaths and now - self._deaths[0] > _DEATHS_REMEMBERED_S:
            self._deaths.popleft()
        spares = min(self._most_spares, self._spares + len(self._deaths)) if self._spares else 0
        if self._init_failures >= _INIT_FAILURES_ALLOWED:
            # Workers that repeatedly fail to start (for example, no memory for a second GPU context) get no spare.
            spares = 0
        # A job whose worker died waits for a worker that starts after the death.
        after = max((job.after for job in self._backlog), default=0)
        fresh = not after or any(worker.ticket > after for worker in self._workers)
        while len(self._workers) < self._working + spares or not fresh:
            fresh = True
            spec, kept = self._spec, None if after else self._server.kept_worker(self._spec.reuse)
            ticket, connection, log = kept or self._server.spawn()
            # If the worker has already died, the end of its connection reports it.
            with contextlib.suppress(OSError):
                first = spec.init if kept else (spec.factory, spec.init, dict(spec.environment), spec.niceness)
                connection.send(first)
            self._workers.append(Worker(ticket, connection, log, now))

    def _feed(self) -> None:
        # Prefer workers started for the first job, then workers that already have jobs, then those ready first.
        after = self._backlog[0].after if self._backlog else 0
        ready = (worker for worker in self._workers if worker.ready)
        order = sorted(ready, key=lambda worker: (worker.ticket <= after, not worker.jobs, worker.ready_at))
        active = order[: self._working]
        for filled in range(self._depth):
            for worker in active:
                place = next((i for i, job in enumerate(self._backlog) if job.after < worker.ticket), None)
                if place is None or len(worker.jobs) != filled:
                    continue
                job = self._backlog[place]
                if worker.jobs and len(job.payload) > _QUEUED_BYTES:
                    continue
                del self._backlog[place]
                if not worker.jobs:
                    worker.head_since = time.monotonic()
                worker.jobs.append(job)
                # If the worker has just died, the end of its connection reports it, and its jobs are reassigned.
                with contextlib.suppress(OSError):
                    worker.connection.send_bytes(worker.jobs[-1].payload)


def _result(worker: Worker, result: JobResult) -> JobResult:
    """Return a result with its worker and start time added."""
    return replace(result, began_s=worker.head_since, worker=worker.ticket)


def _memory_clause() -> str:
    memory = memory_in_use()
    return f" ({memory_text(memory)})" if memory else ""


def _explained(error: EvokernError) -> EvokernError:
    """Return a clearer error if a user's file hides a library that the worker needs, otherwise the given error."""
    hidden = shadowing_advice(str(error)) if isinstance(error, (DeviceError, InternalError)) else ""
    if not hidden:
        return error
    first = str(error).splitlines()[0].removesuffix(": Traceback (most recent call last):")
    return DeviceError(f"{first}; {hidden}")


class OwnServerPool(WorkerPool):
    """A worker pool with its own fork server."""

    def __init__(self, spec: WorkerSpec, preload: Sequence[str] = (), *, size: int = 1) -> None:
        """Start the server and the workers.

        Args:
            spec: specification of the workers.
            preload: same as for `ForkServer`.
            size: number of active workers.
        """
        self._own_server = ForkServer(preload)
        try:
            super().__init__(self._own_server, spec, size=size)
        except BaseException:
            self._own_server.close()
            raise

    def close(self) -> None:
        """Kill the workers and the server; repeated calls have no effect."""
        super().close()
        self._own_server.close()


def wait(pools: Sequence[JobPool], timeout_s: float, also: Sequence[Any] = ()) -> list[JobResult]:
    """Wait for messages from any of the pools and return the finished jobs.

    Args:
        pools: pools to wait for.
        timeout_s: maximum wait in seconds.
        also: additional file descriptors or connections that end the wait.

    Raises:
        EvokernError: if workers of a pool can no longer be started.
    """
    limit = time.monotonic() + timeout_s
    for deadline in (pool.next_deadline() for pool in pools):
        limit = limit if deadline is None else min(limit, deadline)
    listened = [connection for pool in pools for connection in pool.connections]
    limit = max(limit, time.monotonic())
    readable = mp_connection.wait([*listened, *also], limit - time.monotonic())
    late = time.monotonic() - limit
    if late > _PAUSE_S:
        for pool in pools:
            pool.grant(late)
    return [result for pool in pools for result in pool.advance(readable)]
