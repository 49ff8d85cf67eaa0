"""What goes to a worker and what comes back: records of jobs, workers and results."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal

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

    def lost_error(self, what: str) -> DeviceError:
        """Return what to raise where a `lost` job leaves nothing to go on with.

        Args:
            what: the job, for the message.
        """
        return DeviceError(
            f"{what}: two of its processes died, and it cannot be the cause ({self.value}; {in_words(self.memory)}); "
            "free memory, or end what kills them, and run the same command again"
        )


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
