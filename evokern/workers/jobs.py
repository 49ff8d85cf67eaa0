"""What goes to a worker and what comes back: records of jobs, workers and results."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol

from evokern.errors import DeviceError
from evokern.workers.fork_server import Death
from evokern.workers.host_memory import in_words


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker runs."""

    factory: str
    """`module:Class`; an `evokern.workers.process.Handler`, called once with `init`, then `handle` per job."""
    init: Any
    """Anything that pickles."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables set before the factory's module is imported."""
    niceness: int = 0
    """Added to its processes' niceness before its handler is made: who feeds it goes first where processors are few."""
    init_deadline_s: float = 180.0
    """Seconds after which a worker that is still starting counts as dead."""
    may_fault: bool = True
    """Whether what a job is about (a compiler's input, a GPU's program) may end its worker by a fault of the worker's
    own, twice in a row; where it cannot, as in a simulation, such a death says nothing of the job either."""


@dataclass(frozen=True)
class JobResult:
    """What became of a job."""

    key: int
    """The job's key."""
    status: Literal["done", "raised", "died", "overran", "lost"]
    """Answered; raised an exception; two processes died of it; was killed at its deadline; two processes died on it,
    and it cannot be the cause."""
    value: Any
    """The answer, the `EvokernError`, how the process died, the deadline in seconds, or how the processes died."""
    seconds: float
    """Time on the worker."""
    log: str = ""
    """End of what a dead worker printed."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Of a `lost` job, in bytes: `used_bytes` of `total_bytes` of this machine when the last death was noticed, and
    `worker_bytes`, the most that a worker of the job had."""
    began_s: float = 0.0
    """When the worker took it up, by `time.monotonic`."""
    worker: int = 0
    """The worker's ticket, which no other worker of its server has."""
    member: int = 0
    """Place of the executor that gave it, where a pool has several."""

    def lost_error(self, what: str) -> DeviceError:
        """Return what to raise where a `lost` job leaves nothing to go on with.

        Args:
            what: the job, for the message.
        """
        return DeviceError(
            f"{what}: two of its processes died, and it cannot be the cause ({self.value}; {in_words(self.memory)}); "
            "free memory, or end what kills them, and run the same command again"
        )


class JobPool(Protocol):
    """What takes jobs and answers them, wherever they are done; one thread drives it.

    The contract of every executor: a job is answered once, by a `JobResult` with its key. What it does to its worker
    never raises here; a worker that dies or overruns is ended and replaced, and its job asked about once more.
    """

    @property
    def connections(self) -> list[Connection]:
        """What to listen to."""

    def submit(self, key: int, job: Any, deadline_s: float) -> None:
        """Queue a job; its deadline, in seconds, runs from the moment a worker takes it up."""

    def advance(self, readable: Iterable[object]) -> list[JobResult]:
        """Take in what the workers sent, and end those past their deadline.

        Args:
            readable: those of `connections` that have something.

        Raises:
            EvokernError: workers cannot be started any more.
        """

    def overdue(self) -> frozenset[int]:
        """Return the keys of jobs that take so long that nobody waits for them."""

    def next_deadline(self) -> float | None:
        """Return the earliest moment (monotonic clock) at which `advance` has something to do unasked."""

    def grant(self, pause_s: float) -> None:
        """Grant the workers time in which this process was stopped (Ctrl-Z, a frozen container), perhaps they too."""


@dataclass(frozen=True)
class Job:
    """A job that waits or is worked on."""

    key: int
    payload: bytes
    deadline_s: float
    retried: bool = False
    deaths: tuple[Death, ...] = ()
    after: int = 0
    """Ticket that a worker must be later than: what ended one may have ended any that was there with it."""


@dataclass(eq=False)
class Worker:
    """A worker process, seen from its parent."""

    ticket: int
    connection: Connection
    log: Any
    started: float
    ready: bool = False
    ready_at: float = 0.0
    jobs: deque[Job] = field(default_factory=deque)
    head_since: float = 0.0

    def deadline(self, spec: WorkerSpec) -> float | None:
        """Return the moment (monotonic clock) at which it must be ended, None while it has nothing to do."""
        if not self.ready:
            return self.started + spec.init_deadline_s
        return self.head_since + self.jobs[0].deadline_s if self.jobs else None
