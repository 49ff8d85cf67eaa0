"""Pool of several executors, which runs a job on any executor or on a specific one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

from evokern.errors import EvokernError
from evokern.events import log_event
from evokern.wording import first_line
from evokern.workers.backend import HostResource, ReportingPool
from evokern.workers.jobs import JobResult
from evokern.workers.pool import WorkerPool


class MemberPool(ReportingPool, Protocol):
    """Pool of distinguishable executors; a result's `member` is the index of its executor."""

    @property
    def names(self) -> Sequence[str]:
        """Name of each executor, for messages and evidence."""

    @property
    def states(self) -> Sequence[str]:
        """State of each executor in a few words, such as `set aside`; empty if the executor works normally."""

    @property
    def held(self) -> Sequence[Any]:
        """Report of each executor's `Holder`; None until the report has arrived."""

    @property
    def working(self) -> Sequence[int]:
        """Indices of the executors that are neither set aside nor permanently lost."""

    def submit(self, key: int, job: Any, deadline_s: float, only: int | None = None) -> None:
        """Queue a job.

        Args:
            key: key of the job.
            job: the job.
            deadline_s: deadline in seconds, from the time a worker starts the job.
            only: index of the only executor that may run the job; if it is permanently lost, the job is `lost`.
        """

    def set_aside(self, member: int) -> None:
        """Stop assigning jobs to an executor, except jobs that only it may run."""

    def readmit(self, member: int) -> None:
        """Assign jobs again to an executor that was set aside."""

    def wait_ready(self, member: int) -> None:
        """Wait until a worker of an executor has started.

        Raises:
            EvokernError: if no worker can start.
        """

    def keep_spares(self) -> None:
        """Let each executor keep as many spare workers as fit on its host."""


class ForwardingPool:
    """Wrapper that forwards to a pool of several executors."""

    def __init__(self, pool: MemberPool) -> None:
        """Wrap a pool; its owner remains responsible for closing it."""
        self._pool = pool

    @property
    def connections(self) -> list[Connection]:
        """Connections to wait on."""
        return self._pool.connections

    def advance(self, readable: Iterable[object]) -> list[JobResult]:
        """Process messages from the workers; return finished jobs."""
        return self._pool.advance(readable)

    def overdue(self) -> frozenset[int]:
        """Return the keys of jobs that have run so long that other jobs no longer wait for them."""
        return self._pool.overdue()

    def next_deadline(self) -> float | None:
        """Return the earliest time (monotonic clock) at which a worker must be terminated."""
        return self._pool.next_deadline()

    def grant(self, pause_s: float) -> None:
        """Extend all deadlines by the duration of a pause of this process, in seconds."""
        self._pool.grant(pause_s)


class SingleMemberPool(ForwardingPool):
    """Pool that consists of one executor of a larger pool."""

    def __init__(self, pool: MemberPool, member: int) -> None:
        """Select an executor.

        Args:
            pool: the larger pool.
            member: index of the executor.
        """
        super().__init__(pool)
        self._member = member

    def submit(self, key: int, job: Any, deadline_s: float) -> None:
        """Queue a job that only this executor may run."""
        self._pool.submit(key, job, deadline_s, self._member)

    @property
    def held(self) -> Any:
        """Report of the executor's `Holder`; None until the report has arrived."""
        return self._pool.held[self._member]


@dataclass
class LocalMember:
    """A local worker pool as one executor."""

    name: str
    """Name of the executor."""
    pool: WorkerPool
    """Pool of its workers."""
    holder: HostResource | None = None
    """Resource that this machine reserves for the pool."""
    set_aside: bool = False
    lost: bool = False
    held: dict[int, tuple[Any, float, int | None]] = field(default_factory=dict)
    """Unfinished jobs: key → (job, deadline in seconds, required executor or None)."""


class LocalMembers:
    """Combination of local pools; it assigns a job to the pool with the fewest unfinished jobs."""

    def __init__(self, members: Sequence[LocalMember], depth: int) -> None:
        """Combine pools into one.

        Args:
            members: the pools; their owner remains responsible for closing them.
            depth: jobs assigned to each pool at a time.
        """
        self._members = tuple(members)
        self._depth = depth
        self._backlog: list[tuple[int, Any, float]] = []
        self._results: list[JobResult] = []

    @property
    def names(self) -> list[str]:
        """Name of each executor."""
        return [member.name for member in self._members]

    @property
    def states(self) -> list[str]:
        """State of each executor; empty if it works normally."""
        return ["lost" if member.lost else "set aside" if member.set_aside else "" for member in self._members]

    @property
    def held(self) -> list[Any]:
        """Report of each executor's `Holder`."""
        return [member.holder and member.holder.report() for member in self._members]

    @property
    def working(self) -> list[int]:
        """Indices of the executors that are neither set aside nor lost."""
        return [place for place, member in enumerate(self._members) if not member.set_aside]

    @property
    def connections(self) -> list[Connection]:
        """Connections to wait on."""
        return [connection for member in self._members for connection in member.pool.connections]

    @property
    def ready_report(self) -> Any:
        """The `ready_report` of the first handler of the first executor."""
        return self._members[0].pool.ready_report

    def overdue(self) -> frozenset[int]:
        """Return the keys of jobs that have run so long that other jobs no longer wait for them."""
        return frozenset[int]().union(*(member.pool.overdue() for member in self._members))

    def next_deadline(self) -> float | None:
        """Return the earliest time (monotonic clock) at which a worker must be terminated."""
        if self._results:
            return 0.0
        deadlines = (member.pool.next_deadline() for member in self._members)
        return min((moment for moment in deadlines if moment is not None), default=None)

    def grant(self, pause_s: float) -> None:
        """Extend all deadlines by the duration of a pause of this process, in seconds."""
        for member in self._members:
            member.pool.grant(pause_s)

    def submit(self, key: int, job: Any, deadline_s: float, only: int | None = None) -> None:
        """Queue a job for any executor, or for the executor at index `only`."""
        if only is None:
            self._backlog.append((key, job, deadline_s))
            self._feed()
        else:
            self._hand(self._members[only], key, job, deadline_s, only)

    def set_aside(self, member: int) -> None:
        """Stop assigning jobs to an executor, except jobs that only it may run."""
        self._members[member].set_aside = True

    def readmit(self, member: int) -> None:
        """Assign jobs again to an executor that was set aside."""
        self._members[member].set_aside = False

    def wait_ready(self, member: int) -> None:
        """Wait until a worker of an executor has started.

        Raises:
            EvokernError: if no worker can start.
        """
        self._members[member].pool.wait_ready()

    def keep_spares(self) -> None:
        """Let each executor keep as many spare workers as fit on its resource."""
        for member in self._members:
            if member.holder is not None:
                member.pool.keep_spares(member.holder.spares(member.pool.ready_report))

    def advance(self, readable: Iterable[object]) -> list[JobResult]:
        """Process messages from the workers and assign queued jobs; return finished jobs.

        Raises:
            EvokernError: if no executor is left; it is the error of the last executor.
        """
        readable = list(readable)
        results, self._results = self._results, []
        for place, member in enumerate(self._members):
            try:
                answered = member.pool.advance(readable)
            except EvokernError as error:
                self._lost(member, error)
                continue
            for one in answered:
                member.held.pop(one.key, None)
                seen = one if member.holder is None else member.holder.with_observations(one, member.pool.processes)
                results.append(replace(seen, member=place))
        self._feed()
        return results

    def _hand(self, member: LocalMember, key: int, job: Any, deadline_s: float, only: int | None) -> None:
        member.held[key] = job, deadline_s, only
        member.pool.submit(key, job, deadline_s)

    def _feed(self) -> None:
        while self._backlog:
            working = [self._members[place] for place in self.working]
            member = min(working, key=lambda one: one.pool.pending, default=None)
            if member is None or member.pool.pending >= self._depth:
                return
            self._hand(member, *self._backlog.pop(0), None)

    def _lost(self, member: LocalMember, error: EvokernError) -> None:
        """Remove an executor whose workers can no longer be started, and reassign its jobs.

        Raises:
            EvokernError: if it was the last executor.
        """
        if member.set_aside and not member.held:
            return
        member.set_aside = member.lost = True
        if not self.working:
            raise error
        member.pool.close()
        why = first_line(error)
        message = f"{member.name} is lost: {why}; the other GPUs continue with its jobs"
        log_event("gpu_lost", message, logging.WARNING, gpu=member.name)
        again = []
        for key, (job, deadline_s, only) in sorted(member.held.items()):
            if only is None:
                again.append((key, job, deadline_s))
            else:
                self._results.append(JobResult(key, "lost", f"{member.name} is lost: {why}", 0.0))
        self._backlog[:0] = again
        member.held.clear()
