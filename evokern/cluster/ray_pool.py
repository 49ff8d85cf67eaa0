"""Pool of workers of one kind on all hosts of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from evokern.cluster.ray_hosts import RayHost, RayHosts, cause_of
from evokern.errors import DeviceError, EvokernError
from evokern.wording import count_noun
from evokern.workers.backend import PoolPlan
from evokern.workers.jobs import JobResult

START_S = 180.0
"""Seconds for actors to start; each is a new process that imports torch."""
_LATE_S = 60.0
"""Seconds after a missed deadline until a host that does not reply counts as hung and its actor is ended."""
_MOST_DEATHS = 2
"""Number of times that an actor may die during a job before the job's trial is lost."""
_TICKETS = 1 << 20
"""Offset between the worker numbers of two hosts, which makes the numbers unique in the cluster."""


@dataclass
class PendingJob:
    """A queued or running job and its history."""

    key: int
    job: Any
    deadline_s: float
    deaths: int = 0
    began: float = 0.0
    life: int = 0
    """Value of `RayHost.life` when the actor received the job."""
    avoid: int = -1
    """Index of the executor that last lost the job."""
    only: int | None = None
    """Index of the executor that must run the job; None for any executor."""


class RayPool:
    """Pool of workers of one kind on all hosts; a single thread drives it, as for `WorkerPool`."""

    def __init__(self, name: str, cluster: RayHosts, members: Sequence[tuple[RayHost, PoolPlan]]) -> None:
        """Create a pool.

        Args:
            name: name of the pool on its hosts.
            cluster: all hosts.
            members: the hosts that have the pool, with its plan on each.
        """
        self._name = name
        self._cluster = cluster
        self._hosts = [host for host, _ in members]
        self._places = [plan.size * plan.depth for _, plan in members]
        self._depths = [plan.depth for _, plan in members]
        self._size = sum(plan.size for _, plan in members)
        self._aside: set[int] = set()
        self._lost_results: deque[JobResult] = deque()
        self._backlog: deque[PendingJob] = deque()
        self._held: list[dict[int, PendingJob]] = [{} for _ in members]
        self._answers: queue.SimpleQueue[tuple[int, int, PendingJob, Any]] = queue.SimpleQueue()
        read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._reader = Connection(read, writable=False)
        cluster.changed.append(self._wake)

    @property
    def size(self) -> int:
        """Number of workers on all hosts."""
        return self._size

    @property
    def names(self) -> list[str]:
        """Name of each host."""
        return [host.name for host in self._hosts]

    @property
    def working(self) -> list[int]:
        """Indices of the hosts that are up and not set aside."""
        return [place for place, host in enumerate(self._hosts) if host.up and place not in self._aside]

    @property
    def states(self) -> list[str]:
        """State of each host in a few words; empty if the host works normally and was never lost."""
        return [self._state(place, host) for place, host in enumerate(self._hosts)]

    @property
    def held(self) -> list[Any]:
        """Report of each host's `Holder` for the pool; None until the host has replied."""
        return [host.reports.get("held", {}).get(self._name) for host in self._hosts]

    def set_aside(self, member: int) -> None:
        """Stop assigning jobs to a host, except jobs that only it may run."""
        self._aside.add(member)

    def readmit(self, member: int) -> None:
        """Assign jobs again to a host that was set aside."""
        self._aside.discard(member)

    def wait_ready(self, member: int) -> None:
        """Wait until a host has replied.

        Raises:
            DeviceError: if the host is permanently gone or does not reply.
        """
        host, end = self._hosts[member], time.monotonic() + START_S
        while not host.up:
            if host.failure or time.monotonic() > end:
                raise DeviceError(f"host {host.name} is unusable: {host.failure or 'it does not reply'}")
            time.sleep(0.05)

    def keep_spares(self) -> None:
        """Let each host keep as many spare workers as fit on it."""
        for host in self._hosts:
            host.warm_workers = True
            if host.up:
                host.actor.keep_spares.remote()

    @property
    def ready_report(self) -> Any:
        """The `ready_report` of the first host that has one."""
        reports = (host.reports.get("reports", {}).get(self._name) for host in self._hosts)
        return next((report for report in reports if report is not None), None)

    @property
    def connections(self) -> list[Connection]:
        """Connections to wait on."""
        return [self._reader]

    def overdue(self) -> frozenset[int]:
        """Return an empty set, because long jobs do not delay other jobs in this pool."""
        return frozenset()

    def next_deadline(self) -> float | None:
        """Return the earliest time (monotonic clock) at which a host counts as hung."""
        return min((self._limit(index, pending) for index, pending in self._under_way()), default=None)

    def grant(self, pause_s: float) -> None:
        """Extend all deadlines by the duration of a pause of this process, in seconds."""
        for _, pending in self._under_way():
            pending.began += pause_s

    def submit(self, key: int, job: Any, deadline_s: float, only: int | None = None) -> None:
        """Queue a job for any host or for host `only`; its deadline, in seconds, counts from its start on a worker."""
        pending = PendingJob(key, job, deadline_s, only=only)
        if only is None:
            self._backlog.append(pending)
        else:
            self._backlog.appendleft(pending)
        self._feed()

    def advance(self, readable: Iterable[object]) -> list[JobResult]:
        """Process results, end hosts that are hung, and assign queued jobs; return finished jobs.

        Raises:
            EvokernError: if no host is usable any more.
        """
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader.fileno(), 4096):
                pass
        results = []
        with contextlib.suppress(queue.Empty):
            while True:
                index, life, pending, answer = self._answers.get_nowait()
                if self._held[index].pop(pending.key, None) is not pending:
                    continue  # the job was reassigned to another host
                if isinstance(answer, JobResult):
                    results.append(self._with_location(index, pending, answer))
                else:
                    results += self._died(index, life, pending, answer)
        now = time.monotonic()
        for index, pending in list(self._under_way()):
            if now > self._limit(index, pending):
                host = self._hosts[index]
                if host.life == pending.life:  # else the actor was already replaced
                    self._cluster.end(host)
                del self._held[index][pending.key]
                results += self._died(
                    index, pending.life, pending, TimeoutError(f"no reply in {now - pending.began:.0f} s")
                )
        self._feed()
        while self._lost_results:
            results.append(self._lost_results.popleft())
        return results

    def close(self) -> None:
        """Discard all unfinished jobs; repeated calls have no effect."""
        self._backlog.clear()
        for held in self._held:
            held.clear()

    def _state(self, place: int, host: RayHost) -> str:
        if host.failure:
            return "gone"
        if not host.up:
            return "lost" if host.life else "starting"
        if place in self._aside:
            return "set aside"
        return f"lost {count_noun(host.life, 'time')}, back" if host.life else ""

    def _under_way(self) -> list[tuple[int, PendingJob]]:
        return [(index, pending) for index, held in enumerate(self._held) for pending in held.values()]

    def _limit(self, index: int, pending: PendingJob) -> float:
        return pending.began + (self._depths[index] + 1) * pending.deadline_s + _LATE_S

    def _with_location(self, index: int, pending: PendingJob, answer: JobResult) -> JobResult:
        """Return a host's result, converted to the key, clock and worker numbers of this machine."""
        began_s = time.monotonic() - answer.seconds
        worker = self._hosts[index].index * _TICKETS + answer.worker
        return replace(answer, key=pending.key, began_s=began_s, worker=worker, member=index)

    def _died(self, index: int, life: int, pending: PendingJob, error: BaseException) -> list[JobResult]:
        """Handle the death of an actor or a failed job: run the job on another host, or report it as lost.

        Raises:
            EvokernError: if no host is usable any more.
        """
        host = self._hosts[index]
        why = self._cluster.why(error)
        if isinstance(error, EvokernError):
            self._cluster.give_up(host, why, "is no longer usable")
        elif host.life == life:
            self._cluster.actor_died(host, why)
        if all(one.failure for one in self._hosts):
            raise DeviceError(f"no host of the Ray cluster is usable any more: {why}")
        pending.deaths += self._cluster.alive(host.node) and not isinstance(error, EvokernError)
        if pending.deaths < _MOST_DEATHS:
            pending.avoid = index
            self._backlog.appendleft(pending)
            return []
        seconds = time.monotonic() - pending.began
        return [JobResult(pending.key, "lost", f"two actors died, the last one on {host.name}: {why}", seconds)]

    def _feed(self) -> None:
        waiting, self._backlog = self._backlog, deque()
        full = False
        for pending in waiting:
            # If a job for any host finds no free place, later jobs for any host find none either.
            index = None if full and pending.only is None else self._place_for(pending)
            if index is not None:
                pending.began, pending.life = time.monotonic(), self._hosts[index].life
                self._held[index][pending.key] = pending
                self._ask(index, pending.life, pending)
            elif pending.only is not None and self._hosts[pending.only].failure:
                host = self._hosts[pending.only]
                self._lost_results.append(JobResult(pending.key, "lost", f"{host.name} is gone: {host.failure}", 0.0))
                self._wake()
            else:
                full = full or pending.only is None
                self._backlog.append(pending)

    def _place_for(self, pending: PendingJob) -> int | None:
        """Return the index of the host with the smallest fraction of occupied places, or None if no host is free.

        If possible, the result differs from the host that last lost the job.
        """
        if pending.only is not None:
            return pending.only if self._hosts[pending.only].up else None
        up = self.working
        others = [index for index in up if index != pending.avoid] or up
        shares = {index: len(self._held[index]) / self._places[index] for index in others}
        return min((index for index in others if shares[index] < 1), key=shares.__getitem__, default=None)

    def _ask(self, index: int, life: int, pending: PendingJob) -> None:
        def answered(future: Any) -> None:
            try:
                found = future.result()
            except Exception as error:
                found = cause_of(error)
            self._answers.put((index, life, pending, found))
            self._wake()

        try:
            host = self._hosts[index]
            reference = host.actor.run_job.remote(self._name, pending.job, pending.deadline_s)
            reference.future().add_done_callback(answered)
        except Exception as error:
            self._answers.put((index, life, pending, error))
            self._wake()

    def _wake(self) -> None:
        # Ignore a full pipe, which already wakes the reader.
        with contextlib.suppress(OSError):
            os.write(self._write, b"x")
