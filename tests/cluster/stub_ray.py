"""A stand-in for Ray in one process: actors are objects with threads, which can be killed and come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from evokern.workers.jobs import JobPool, JobResult
from evokern.workers.pool import wait


class RayError(Exception):
    """Any of Ray's errors."""


class ActorUnavailableError(RayError):
    """The actor does not answer at the moment."""


class ActorDiedError(RayError):
    """The actor is dead for good."""


class GetTimeoutError(RayError):
    """Nothing came in time."""


class StubRay:
    """The part of Ray's interface that evokern uses; `cores` and `gpus` say how many each host has."""

    exceptions = SimpleNamespace(
        ActorUnavailableError=ActorUnavailableError, ActorDiedError=ActorDiedError, GetTimeoutError=GetTimeoutError
    )
    util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
    )

    def __init__(self, cores: Mapping[str, int], back_s: float = 0.1, gpus: Mapping[str, int] | None = None) -> None:
        """Make a cluster that nobody has connected to; an actor that is killed is back after so many seconds."""
        self.cores = dict(cores)
        self.gpus = dict(gpus or {})
        self.busy = False
        """Whether somebody else uses all GPUs."""
        self.alive = dict.fromkeys(cores, True)
        self.late = ""
        """A host whose actors answer nothing before `come`."""
        self.come = threading.Event()
        self.back_s = back_s
        self.actors: list[Actor] = []
        self.connected = ""

    def is_initialized(self) -> bool:
        return bool(self.connected)

    def init(self, address: str, **_: Any) -> None:
        if address == "10.0.0.1:1":
            raise RuntimeError("Version mismatch: The cluster was started with 2.1.\nmore")
        self.connected = address

    def shutdown(self) -> None:
        self.connected = ""

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": name,
                "NodeManagerHostname": name,
                "Alive": self.alive[name],
                "Resources": {"CPU": float(cores), "GPU": float(self.gpus.get(name, 0))},
            }
            for name, cores in self.cores.items()
        ]

    def remote(self, made: Callable[..., Any]) -> Any:
        def options(**given: Any) -> Any:
            def remote(*arguments: Any) -> Any:
                return Actor(self, lambda: made(*arguments), given) if arguments else made

            return SimpleNamespace(remote=remote)

        return SimpleNamespace(options=options)

    def put(self, value: Any) -> Any:
        """Keep a value; the handle is the value."""
        return value

    def get(self, asked: list[Callable[[], Any]], timeout: float) -> list[Any]:
        """Return what tasks without arguments answer, which the handle of a task is."""
        if self.busy:
            raise GetTimeoutError("Get timed out")
        return [task() for task in asked]

    def wait(self, asked: list[Any], num_returns: int, timeout: float) -> None:
        """Wait until all are answered."""
        for one in asked:
            one.future().exception(timeout)

    def kill(self, actor: Actor, no_restart: bool = True) -> None:
        actor.die(back=not no_restart)


class Actor:
    """An actor's handle; what it answers comes by threads."""

    def __init__(self, ray: StubRay, make: Callable[[], Any], options: Mapping[str, Any]) -> None:
        self.ray, self.make, self.options = ray, make, options
        self.threads = ThreadPoolExecutor(options["max_concurrency"] + 8)
        self.mutex = threading.Lock()
        self.under_way: set[Future[Any]] = set()
        self.life = 0
        self.up = True
        self.mades: dict[int, Any] = {}
        self.report, self.run_job, self.keep_spares, self.leave = map(
            self._method, ("report", "run_job", "keep_spares", "leave")
        )
        ray.actors.append(self)

    def die(self, *, back: bool = True) -> None:
        """End it, with all it has under way; it comes back unless that is over."""
        with self.mutex:
            self.up = False
            self.life += 1
            ended, self.under_way = self.under_way, set()
        for future in ended:
            future.set_exception(ActorUnavailableError("The actor abc is unavailable: Socket closed"))
        if back:
            timer = threading.Timer(self.ray.back_s, lambda: setattr(self, "up", True))
            timer.daemon = True
            timer.start()

    def _method(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            future: Future[Any] = Future()
            life = self.life
            with self.mutex:
                self.under_way.add(future)

            def work() -> None:
                try:
                    if self.ray.late and self.options["scheduling_strategy"][0] == self.ray.late:
                        self.ray.come.wait(30.0)
                    if not self.up:
                        raise ActorUnavailableError("The actor abc is restarting")
                    with self.mutex:
                        if life not in self.mades:
                            self.mades[life] = self.make()
                    found, error = getattr(self.mades[life], name)(*arguments), None
                except Exception as raised:
                    found, error = None, raised
                with self.mutex:
                    if future not in self.under_way:
                        return
                    self.under_way.discard(future)
                if error is None:
                    future.set_result(found)
                else:
                    future.set_exception(error)

            self.threads.submit(work)
            return SimpleNamespace(future=lambda: future)

        return SimpleNamespace(remote=remote)


def collect(pool: JobPool, count: int, limit_s: float = 30.0) -> dict[int, JobResult]:
    """Wait for so many answers, none of which comes twice."""
    results: dict[int, JobResult] = {}
    end = time.monotonic() + limit_s
    while len(results) < count and time.monotonic() < end:
        for result in wait([pool], 0.2):
            assert result.key not in results, "answered twice"
            results[result.key] = result
    return results
