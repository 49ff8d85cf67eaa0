"""The hosts of a Ray cluster, seen from the driver: who is up, who comes again, who is gone for good."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evokern.cluster.host import require_alike
from evokern.errors import EvokernError
from evokern.events import told
from evokern.wording import first_line


@dataclass(eq=False)
class RayHost:
    """An actor, seen from the driver."""

    index: int
    actor: Any
    node: str
    name: str
    make_spare: Callable[[], Any] | None = None
    """Starts an actor that has imported all and waits to take this one's place; None for none."""
    spare: Any = None
    """Such an actor, or the one whose place it took, which Ray starts again."""
    up: bool = False
    gone: str = ""
    lost_at: float = 0.0
    reports: Mapping[str, Any] = field(default_factory=dict)
    warm_workers: bool = False
    """Whether its pools keep warm spares: to be said again to an actor that took another's place."""
    life: int = 0
    """How often its actor was replaced: answers of an earlier one are of no more use."""


class RayHosts:
    """Who is up, for all pools."""

    def __init__(self, ray: Any, hosts: Sequence[RayHost]) -> None:
        self.ray, self.hosts = ray, hosts
        self.changed: list[Any] = []
        """Called whenever a host is up or gone."""
        self.alike: Mapping[str, str] = {}
        """What every host that joins has to have, by name; nothing until the first ones are compared."""
        self._mutex = threading.Lock()
        self._closed = False

    def expect(self, host: RayHost) -> None:
        """Wait, unseen, until a host's actor answers, at first or after Ray replaced it."""
        life = host.life

        def answered(future: Any) -> None:
            if host.life != life or self._closed:
                return
            try:
                reports = future.result()
                if self.alike:
                    require_alike({"this search": self.alike, host.name: facts(reports)})
                host.reports = reports
            except Exception as error:
                error = cause_of(error)
                if self._comes_again(error):
                    _after(0.2, lambda: self.expect(host))
                    return
                self.give_up(host, first_line(error), "cannot work")
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
            with self._mutex:  # asked after the end, Ray would begin a cluster of its own
                asked = None if self._closed else host.actor.report.remote().future()
        except Exception as error:
            host.gone = first_line(error)
        else:
            if asked is not None:
                asked.add_done_callback(answered)

    def _comes_again(self, error: BaseException) -> bool:
        """Tell whether Ray starts an actor again: one that raised while it was made is dead for good."""
        kinds = self.ray.exceptions
        ended = isinstance(error, kinds.ActorUnavailableError | kinds.ActorDiedError)
        return ended and "creation task" not in str(error)

    def give_up(self, host: RayHost, why: str, how: str) -> None:
        """Note that a host is gone for good, and tell how and why."""
        host.up, host.gone = False, why
        self._event("host_gone", host, f"{how}: {why}")

    def down(self, host: RayHost, why: str) -> None:
        """Note that a host's actor died; it is expected again."""
        with self._mutex:
            if not host.up or self._closed:
                return
            host.up = False
            host.life += 1
            host.lost_at = time.monotonic()
            if host.spare is not None and self.alive(host.node):
                with contextlib.suppress(Exception):  # one that cannot be reached may go on, with all its workers
                    self.ray.kill(host.actor, no_restart=False)
                host.actor, host.spare = host.spare, host.actor
        self._event("host_lost", host, f"is lost ({why}); others go on with what it held")
        self.expect(host)

    def _make_spare(self, host: RayHost) -> None:
        """Start a host's spare; what its workers import it has from a host that is up (`evokern.workers.sharing`)."""
        with self._mutex, contextlib.suppress(Exception):  # Ray is shut down meanwhile
            if host.make_spare is not None and host.spare is None and not self._closed:
                host.spare = host.make_spare()

    def close(self) -> list[Any]:
        """Return the spares there are; no more are made."""
        with self._mutex:
            self._closed = True
            return [host.spare for host in self.hosts if host.spare is not None]

    @staticmethod
    def _event(event: str, host: RayHost, message: str, **fields: Any) -> None:
        told(event, f"host {host.name} {message}", logging.WARNING, host=host.name, **fields)

    def why(self, error: BaseException) -> str:
        """Return in a clause what became of an actor."""
        if isinstance(error, self.ray.exceptions.ActorUnavailableError):
            return "its actor ended, or cannot be reached"
        if isinstance(error, self.ray.exceptions.ActorDiedError):
            return "its actor died"
        return first_line(error)

    def alive(self, node: str) -> bool:
        """Tell whether a host is there, as far as Ray knows."""
        with contextlib.suppress(Exception):
            return any(one["NodeID"] == node and one["Alive"] for one in self.ray.nodes())
        return False

    def end(self, host: RayHost) -> None:
        """End an actor that does not answer; Ray starts another."""
        with contextlib.suppress(Exception):
            self.ray.kill(host.actor, no_restart=False)


def _after(seconds: float, do: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, do)
    timer.daemon = True
    timer.start()


def facts(reports: Mapping[str, Any]) -> dict[str, str]:
    """Return what a host's report says of all that has to be the same everywhere."""
    found: dict[str, str] = dict(reports["versions"])
    found |= {name: str(value) for name, value in (reports["reports"].get("compile") or {}).items()}
    for held in reports.get("held", {}).values():
        found |= {"GPU": held.model, "CUDA of the driver": held.driver}
    return found


def cause_of(error: Exception) -> Exception:
    """Return the error of ours that an actor raised; any other as it is."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, EvokernError) else error
