"""A search's workers on the hosts of a Ray cluster: one actor a host, and one for each GPU.

Ray places the actors, restarts one that died, and tells of a host that is gone; it repeats no job. What was asked of an
actor that died is asked once more of another. Where that one dies too, and its host is still there, the job's trial is
lost: the actor may have died of it. No more is asked of a host than its workers can hold, so that neither programs nor
proposals pile up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from evokern.cluster.host import Host, HostPlan, packed, require_alike, versions
from evokern.cluster.ray_hosts import RayHost, RayHosts, cause_of, facts
from evokern.cluster.ray_pool import START_S, RayPool
from evokern.cluster.request import RayRequest
from evokern.errors import DeviceError
from evokern.study.discovery import load_kernel
from evokern.wording import first_line
from evokern.workers.backend import HostRoom, Plans, PoolPlan

_LOGGER = logging.getLogger("evokern")
_CONNECT_S = 5.0
_PROBE_S = 60.0
"""Seconds in which one GPU of each host must be free to be looked at."""
_INLINE_BYTES = 64 * 1024
"""Bytes of a kernel's files that Ray keeps with an actor; its own limit is 100 KB for all that an actor is made of."""
_OTHERS_S = 20.0
"""Seconds for which hosts that answer wait for the others, which may be gone without Ray's having noticed: it waits for
one that was killed, and its actor for room elsewhere. Who answers later joins then."""
_LEAVE_S = 2.0
"""Seconds in which hosts may remove their files and give their GPUs back."""
_CURRENT = Path("/tmp/ray/ray_current_cluster")
"""Where Ray keeps the address of the cluster that this machine belongs to (`ray start`)."""
Node = Mapping[str, Any]
"""A host, as Ray tells of it."""
Found = TypeVar("Found")


class RayBackend:
    """The hosts of a Ray cluster."""

    def __init__(self, request: RayRequest, preload: Sequence[str]) -> None:
        """Connect, and see what there is.

        Args:
            request: which cluster, and how much of it.
            preload: modules that hosts import once for all workers.

        Raises:
            DeviceError: Ray is not installed, the address does not answer, or there is no processor.
        """
        self._preload = tuple(preload)
        self._ray = _ray()
        self._began_here = not self._ray.is_initialized()
        if self._began_here:
            _require_answer(request.address)
            _connect(self._ray, request.address)
        self._request = request
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        self._gpus = _shares([(node, int(node["Resources"].get("GPU", 0))) for node in nodes], request.num_gpus)
        self._shares = _shares([(node, int(node["Resources"].get("CPU", 0))) for node in nodes], request.num_cpus)
        self._hosts: list[RayHost] = []
        self._pools: dict[str, RayPool] = {}
        self._kept: list[Any] = []
        self._cluster: RayHosts | None = None
        if not self._shares:
            self.close()
            raise DeviceError(f"the Ray cluster at {request.address} has no processor for a search")

    @property
    def cores(self) -> int:
        """Processors of all hosts together, but one for each GPU that is used."""
        return sum(cores for _, cores in self._shares)

    @property
    def gpus(self) -> int:
        """GPUs of all hosts together, `num_gpus` of them at most."""
        return sum(gpus for _, gpus in self._gpus)

    def probe_gpus(self, probe: Callable[[], Found]) -> list[tuple[str, Found]]:
        """Return for each GPU that is to be used the name of its place, and what a function finds of one of its host.

        Args:
            probe: run once on each host that has GPUs, where it sees one of them.

        Raises:
            DeviceError: there is no GPU, fewer than asked for, none is free, or the function raises.
        """
        wanted = self._request.num_gpus
        if self.gpus < (wanted or 1):
            several = "no GPU" if not self.gpus else f"{self.gpus} GPUs, not {wanted}"
            raise DeviceError(
                f"the Ray cluster at {self._request.address} has {several}; `ray start --num-gpus N` says how many a "
                "host offers, and --device sim:l4 simulates a chip on its processors"
            )
        asked = [
            self._ray.remote(probe)
            .options(num_cpus=0, num_gpus=1, max_retries=0, scheduling_strategy=self._on(node, soft=False))
            .remote()
            for node, _ in self._gpus
        ]
        try:
            found = self._ray.get(asked, timeout=_PROBE_S)
        except self._ray.exceptions.GetTimeoutError as error:
            raise DeviceError(
                f"no GPU of a host was free within {_PROBE_S:g} s: another search holds it, or some other work; "
                "`ray status` tells who uses what"
            ) from error
        except Exception as error:
            cause = cause_of(error)
            raise DeviceError(f"a host's GPU cannot be looked at: {first_line(cause)}") from error
        self._shares = [(node, left) for node, cores in self._shares if (left := cores - self._gpus_of(node)) > 0]
        if not self._shares:
            raise DeviceError("no processor of the Ray cluster is left to compile: each GPU's worker takes one")
        return [
            (_gpu_name(node, number), one)
            for (node, count), one in zip(self._gpus, found, strict=True)
            for number in range(count)
        ]

    def open(
        self, plans: Plans, folder: Path, gpu: tuple[str, PoolPlan, Sequence[str]] | None = None
    ) -> Mapping[str, RayPool]:
        """Start an actor on each host, and one for each GPU, and wait until they answer; some may join later.

        Args:
            plans: what each host gets.
            folder: the kernel's folder, whose files are sent.
            gpu: name and plan of the pool of GPUs, and what their hosts import once for all workers; None for no GPUs.

        Raises:
            DeviceError: none starts, or their versions differ from this machine's.
        """
        files = packed(load_kernel(folder).files())
        members: dict[str, list[tuple[RayHost, PoolPlan]]] = {}

        def start(node: Node, name: str, preload: Sequence[str], found: Mapping[str, PoolPlan], **room: int) -> None:
            made = HostPlan(tuple(preload), found, folder.name, files)
            if sum(map(len, files.values())) > _INLINE_BYTES:
                # An actor cannot be started again when what it is made of is gone from the object store.
                made = self._ray.put(made)
                self._kept.append(made)

            def actor(soft: bool, **taken: int) -> Any:
                options = self._ray.remote(Host).options(
                    **taken,
                    max_restarts=-1,
                    max_task_retries=0,  # a job that died with its actor is asked again by us, and never unseen
                    max_concurrency=3 + sum(plan.size * plan.depth for plan in found.values()),
                    scheduling_strategy=self._on(node, soft=soft),
                )
                return options.remote(made)

            # A GPU is its actor's alone, so that no other can wait beside it.
            spare = None if "num_gpus" in room else lambda: actor(soft=False, num_cpus=0)
            self._hosts.append(RayHost(len(self._hosts), actor(soft=True, **room), node["NodeID"], name, spare))
            for kind, plan in found.items():
                members.setdefault(kind, []).append((self._hosts[-1], plan))

        if gpu is not None:
            kind, plan, preload = gpu
            for node, count in self._gpus:
                for number in range(count):
                    start(node, _gpu_name(node, number), preload, {kind: plan}, num_cpus=1, num_gpus=1)
        for index, (node, cores) in enumerate(self._shares):
            memory = node["Resources"].get("memory")
            found = plans(HostRoom(cores, None if memory is None else int(memory)))
            start(node, f"{node['NodeManagerHostname']}/{index}", self._preload, found, num_cpus=cores)
        cluster = self._cluster = RayHosts(self._ray, self._hosts)
        self._pools = {name: RayPool(name, cluster, of) for name, of in members.items()}
        for host in self._hosts:
            cluster.expect(host)
        self._await_first(cluster, members)
        return self._pools

    def _await_first(self, cluster: RayHosts, members: Mapping[str, Sequence[tuple[RayHost, PoolPlan]]]) -> None:
        end, enough = time.monotonic() + START_S, False
        while time.monotonic() < end and not all(host.up or host.gone for host in self._hosts):
            if any(all(host.gone for host, _ in of) for of in members.values()):
                break
            if not enough and all(any(host.up for host, _ in of) for of in members.values()):
                enough, end = True, min(end, time.monotonic() + _OTHERS_S)
            time.sleep(0.05)
        for of in members.values():
            if not any(host.up for host, _ in of):
                why = next((host.gone for host, _ in of if host.gone), f"none answered within {START_S:g} s")
                raise DeviceError(f"no host of the Ray cluster can work: {why}")
        up = [host for host in self._hosts if host.up]
        alike = {host.name: facts(host.reports) for host in up}
        require_alike({"this machine": versions()} | alike)
        cluster.alike = {name: value for found in alike.values() for name, value in found.items()}
        _LOGGER.info("%s of %s hosts are ready", len(up), len(self._hosts))

    def _on(self, node: Node, *, soft: bool) -> Any:
        return self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=soft)

    def _gpus_of(self, node: Node) -> int:
        return sum(count for one, count in self._gpus if one is node)

    def close(self) -> None:
        """End the actors, and the connection where it was begun here; safe to call twice."""
        hosts, spares = self._hosts, self._cluster.close() if self._cluster is not None else []
        with contextlib.suppress(Exception):
            leaving = [actor.leave.remote() for actor in (*(host.actor for host in hosts if host.up), *spares)]
            if leaving:
                self._ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_S)
        for actor in (*(host.actor for host in hosts), *spares):
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        for pool in self._pools.values():
            pool.close()
        self._hosts, self._pools, self._cluster = [], {}, None
        if self._began_here:
            with contextlib.suppress(Exception):
                self._ray.shutdown()


def _gpu_name(node: Node, number: int) -> str:
    return f"{node['NodeManagerHostname']}/gpu{number}"


def _shares(nodes: Sequence[tuple[Node, int]], wanted: int | None) -> list[tuple[Node, int]]:
    """Return how much of what each host has to take: all, or the wanted number spread over as many as there are."""
    nodes = [(node, has) for node, has in nodes if has > 0]
    if wanted is None or wanted >= sum(cores for _, cores in nodes):
        return list(nodes)
    taken = [0] * len(nodes)
    while sum(taken) < wanted:
        open_ = [index for index, (_, cores) in enumerate(nodes) if taken[index] < cores]
        taken[min(open_, key=lambda index: taken[index])] += 1
    return [(node, cores) for (node, _), cores in zip(nodes, taken, strict=True) if cores]


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise DeviceError(
            f"a Ray cluster is asked for, and Ray cannot be imported ({error}): pip install 'evokern[ray]'"
        ) from error
    return ray


def _require_answer(address: str) -> None:
    """Require that somebody listens at an address: Ray itself tries for minutes, and cannot be interrupted meanwhile.

    Raises:
        DeviceError: nobody does, or no cluster was begun on this machine.
    """
    place = address
    if address == "auto":
        try:
            place = _CURRENT.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DeviceError(
                "no Ray cluster runs on this machine: `ray start --head` begins one, `ray start --address HOST:PORT` "
                "joins one; or name one with --ray-address HOST:PORT"
            ) from error
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise DeviceError(
            f"the Ray cluster at {place} does not answer: {error}; `ray start --head` begins one, and prints its "
            "address"
        ) from error


def _connect(ray: Any, address: str) -> None:
    """Connect to a cluster that runs; Ray's own handlers of signals do not stay.

    Raises:
        DeviceError: it does not take us.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)} if main else {}
    try:
        # What Ray prints of workers that die goes to standard output, into `--json`, and has no switch; we tell of it.
        with contextlib.suppress(AttributeError):
            ray._private.worker.print_to_stdstream = lambda *_, **__: None
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, configure_logging=False)
    except Exception as error:
        raise DeviceError(
            f"the Ray cluster at {address} does not take this process: {first_line(error)}; `ray status` tells more"
        ) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.stdout.flush()
