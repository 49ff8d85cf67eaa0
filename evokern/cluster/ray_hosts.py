"""State of a Ray cluster's hosts, as recorded in the driver: up, restarting or permanently gone."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evokern.cluster.host import require_same_versions
from evokern.errors import EvokernError
from evokern.events import log_event
from evokern.wording import first_line


@dataclass(eq=False)
class RayHost:
    """The driver's record of an actor and its host."""

    index: int
    actor: Any
    node: str
    name: str
    make_spare: Callable[[], Any] | None = None
    """Function that starts a spare actor, which imports all modules and waits; None for no spare."""
    spare: Any = None
    """The spare actor, or the dead actor that the spare replaced and that Ray is restarting."""
    up: bool = False
    failure: str = ""
    lost_at: float = 0.0
    reports: Mapping[str, Any] = field(default_factory=dict)
    warm_workers: bool = False
    """Whether the host's pools keep spare workers; the request is repeated for a replacement actor."""
    life: int = 0
    """Number of times the actor was replaced; results of earlier actors are ignored."""


class RayHosts:
    """State of all hosts, which all pools share."""

    def __init__(self, ray: Any, hosts: Sequence[RayHost]) -> None:
        self.ray, self.hosts = ray, hosts
        self.changed: list[Any] = []
        """Callbacks for every change of a host's state."""
        self.required_versions: Mapping[str, str] = {}
        """Versions that a joining host must have, by name; empty until the first hosts have been compared."""
        self._mutex = threading.Lock()
        self._closed = False

    def expect(self, host: RayHost) -> None:
        """Wait in the background until a host's actor replies, both at the start and after a replacement."""
        life = host.life

        def answered(future: Any) -> None:
            if host.life != life or self._closed:
                return
            try:
                reports = future.result()
                if self.required_versions:
                    require_same_versions({"this search": self.required_versions, host.name: version_facts(reports)})
                host.reports = reports
            except Exception as error:
                error = cause_of(error)
                if self._comes_again(error):
                    _after(0.2, lambda: self.expect(host))
                    return
                self.give_up(host, first_line(error), "is unusable")
            else:
                if life:
                    took = time.monotonic() - host.lost_at
                    self._event("host_back", host, f"is back after {took:.1f} s", seconds=round(took, 2))
                if host.warm_workers:
                    host.actor.keep_spares.remote()
                host.up = True
                self._make_spare(host)
            for wake in self.changed:
                wake()

        try:
            with self._mutex:  # a call after the end would make Ray start a new cluster
                asked = None if self._closed else host.actor.report.remote().future()
        except Exception as error:
            host.failure = first_line(error)
        else:
            if asked is not None:
                asked.add_done_callback(answered)

    def _comes_again(self, error: BaseException) -> bool:
        """Return whether Ray restarts an actor; it does not if the actor's constructor raised an exception."""
        kinds = self.ray.exceptions
        ended = isinstance(error, kinds.ActorUnavailableError | kinds.ActorDiedError)
        return ended and "creation task" not in str(error)

    def give_up(self, host: RayHost, why: str, how: str) -> None:
        """Mark a host as permanently gone and log the reason."""
        host.up, host.failure = False, why
        self._event("host_gone", host, f"{how}: {why}")

    def actor_died(self, host: RayHost, why: str) -> None:
        """Mark a host's actor as dead, use its spare, and wait until Ray has restarted the actor."""
        with self._mutex:
            if not host.up or self._closed:
                return
            host.up = False
            host.life += 1
            host.lost_at = time.monotonic()
            if host.spare is not None and self.alive(host.node):
                with contextlib.suppress(Exception):  # an unreachable actor may still be running, with its workers
                    self.ray.kill(host.actor, no_restart=False)
                host.actor, host.spare = host.spare, host.actor
        self._event("host_lost", host, f"is lost ({why}); other hosts continue with its jobs")
        self.expect(host)

    def _make_spare(self, host: RayHost) -> None:
        """Start a host's spare, which shares the imports of a running host (`evokern.workers.sharing`)."""
        with self._mutex, contextlib.suppress(Exception):  # Ray may already be shut down
            if host.make_spare is not None and host.spare is None and not self._closed:
                host.spare = host.make_spare()

    def close(self) -> list[Any]:
        """Stop creating spare actors, and return the existing spare actors."""
        with self._mutex:
            self._closed = True
            return [host.spare for host in self.hosts if host.spare is not None]

    @staticmethod
    def _event(event: str, host: RayHost, message: str, **fields: Any) -> None:
        log_event(event, f"host {host.name} {message}", logging.WARNING, host=host.name, **fields)

    def why(self, error: BaseException) -> str:
        """Return the reason for an actor's failure as a short text."""
        if isinstance(error, self.ray.exceptions.ActorUnavailableError):
            return "its actor ended or cannot be reached"
        if isinstance(error, self.ray.exceptions.ActorDiedError):
            return "its actor died"
        return first_line(error)

    def alive(self, node: str) -> bool:
        """Return whether Ray reports a host as alive."""
        with contextlib.suppress(Exception):
            return any(one["NodeID"] == node and one["Alive"] for one in self.ray.nodes())
        return False

    def end(self, host: RayHost) -> None:
        """End an actor that does not reply; Ray restarts it."""
        with contextlib.suppress(Exception):
            self.ray.kill(host.actor, no_restart=False)


def _after(seconds: float, do: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, do)
    timer.daemon = True
    timer.start()


def version_facts(reports: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions in a host's report that must be equal on all hosts."""
    found: dict[str, str] = dict(reports["versions"])
    found |= {name: str(value) for name, value in (reports["reports"].get("compile") or {}).items()}
    for held in reports.get("held", {}).values():
        found |= {"GPU": held.model, "CUDA of the driver": held.driver}
    return found


def cause_of(error: Exception) -> Exception:
    """Return the `EvokernError` that an actor raised, or else the given error."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, EvokernError) else error
