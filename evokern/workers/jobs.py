"""Records of jobs, workers and results, and the interface of a job pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol

from evokern.errors import DeviceError
from evokern.workers.fork_server import Death
from evokern.workers.host_memory import memory_text


@dataclass(frozen=True)
class WorkerSpec:
    """Specification of a worker: its handler and its process settings."""

    factory: str
    """Handler class as `module:Class`, an `evokern.workers.process.Handler`."""
    init: Any
    """Argument of the handler's constructor, which can be pickled."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables set before the handler's module is imported."""
    niceness: int = 0
    """Increase in niceness, applied before the handler is created, so that the search itself keeps priority."""
    init_deadline_s: float = 180.0
    """Seconds after which a worker that is still starting counts as dead."""
    may_fault: bool = True
    """Whether a job (compiler input, GPU program) can crash its worker. If it cannot, as in a simulation, two crashes
    in a row do not count as the job's fault."""
    reuse: str = ""
    """Key of tasks that an idle worker may take over one after another, inside `keeping_servers`; empty: never."""


@dataclass(frozen=True)
class JobResult:
    """Result of a job."""

    key: int
    """Key of the job."""
    status: Literal["done", "raised", "died", "overran", "lost"]
    """`done`: finished. `raised`: raised an exception. `died`: the job crashed two processes. `overran`: killed at its
    deadline. `lost`: two processes died, and the job cannot be the cause."""
    value: Any
    """For `done`, the handler's result; for `raised`, the `EvokernError`; for `overran`, the deadline in seconds; for
    `died` and `lost`, how the processes ended."""
    seconds: float
    """Time on the worker in seconds."""
    log: str = ""
    """Last output of a dead worker."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """For a `lost` job, memory in bytes: `used_bytes` and `total_bytes` of this machine when the last worker died, and
    `worker_bytes`, the peak memory of the job's workers."""
    began_s: float = 0.0
    """Time at which the worker started the job, by `time.monotonic`."""
    worker: int = 0
    """Ticket of the worker, unique for its fork server."""
    member: int = 0
    """Index of the executor, if the pool has several."""

    def lost_error(self, what: str) -> DeviceError:
        """Return the error to raise for a `lost` job whose result is required.

        Args:
            what: the job, for the message.
        """
        if "exit code" in str(self.value):  # the process ended itself, which nothing outside can do
            return DeviceError(
                f"{what}: the worker process ended itself, twice ({self.value}); if code of the kernel, such as its "
                "reference, ends its process, let it return or raise instead"
            )
        return DeviceError(
            f"{what}: two worker processes died, but the job cannot be the cause ({self.value}; "
            f"{memory_text(self.memory)}); free memory or stop the program that kills them, then run the same command "
            "again"
        )


class JobPool(Protocol):
    """Pool that runs jobs on any kind of executor; one thread drives it.

    Every job produces exactly one `JobResult` with its key. A job that kills its worker never raises an exception here:
    the worker is replaced and the job is run a second time.
    """

    @property
    def connections(self) -> list[Connection]:
        """Connections to wait on."""

    def submit(self, key: int, job: Any, deadline_s: float) -> None:
        """Queue a job; its deadline, in seconds, counts from the time at which a worker starts the job."""

    def advance(self, readable: Iterable[object]) -> list[JobResult]:
        """Process messages from the workers, end workers that exceeded their deadlines, and return finished jobs.

        Args:
            readable: members of `connections` that have data.

        Raises:
            EvokernError: if workers can no longer be started.
        """

    def overdue(self) -> frozenset[int]:
        """Return the keys of jobs that have run so long that other jobs no longer wait for them."""

    def next_deadline(self) -> float | None:
        """Return the earliest time (monotonic clock) at which `advance` must be called, even if no message arrives."""

    def grant(self, pause_s: float) -> None:
        """Extend all deadlines by the duration of a pause of this process, such as Ctrl-Z or a frozen container."""


@dataclass(frozen=True)
class Job:
    """A queued or running job."""

    key: int
    payload: bytes
    deadline_s: float
    retried: bool = False
    deaths: tuple[Death, ...] = ()
    after: int = 0
    """Ticket that the next worker's ticket must exceed, because earlier workers may be affected by the same problem."""


@dataclass(eq=False)
class Worker:
    """The parent's record of a worker process."""

    ticket: int
    connection: Connection
    log: Any
    started: float
    ready: bool = False
    ready_at: float = 0.0
    jobs: deque[Job] = field(default_factory=deque)
    head_since: float = 0.0

    def deadline(self, spec: WorkerSpec) -> float | None:
        """Return the time (monotonic clock) at which the worker must be terminated; None while it is idle."""
        if not self.ready:
            return self.started + spec.init_deadline_s
        return self.head_since + self.jobs[0].deadline_s if self.jobs else None
