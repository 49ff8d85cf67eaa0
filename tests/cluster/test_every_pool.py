"""The contract of whatever takes jobs: one GPU's pool, several as one, hosts of a Ray cluster (a stand-in for Ray)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from paths import DATA
from stub_ray import StubRay, collect

from evokern.cluster import RayRequest, ray_backend
from evokern.device._executors import Executors
from evokern.study.discovery import load_kernel
from evokern.workers.backend import HostCapacity, LocalBackend, PoolPlan
from evokern.workers.jobs import JobPool
from evokern.workers.members import LocalMember, LocalMembers
from evokern.workers.pool import ForkServer, WorkerPool, WorkerSpec

HANDLER = "worker_handlers:Obedient"
DEPTH = 2
KERNEL = load_kernel(DATA / "kernels" / "scale_rows")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer(preload=("worker_handlers",))
    yield server
    server.close()


def plans(room: HostCapacity) -> dict[str, PoolPlan]:
    return {"echo": PoolPlan(WorkerSpec(HANDLER, "x"), room.cores, DEPTH)}


Maker = Callable[[ForkServer, ExitStack, pytest.MonkeyPatch], JobPool]


def one(server: ForkServer, stack: ExitStack, _: pytest.MonkeyPatch) -> JobPool:
    pool = WorkerPool(server, WorkerSpec(HANDLER, "x"), size=1, depth=DEPTH)
    stack.callback(pool.close)
    return pool


def several(server: ForkServer, stack: ExitStack, _: pytest.MonkeyPatch) -> JobPool:
    pools = [WorkerPool(server, WorkerSpec(HANDLER, "x"), size=1, depth=DEPTH) for _ in range(3)]
    for pool in pools:
        stack.callback(pool.close)
    return Executors(LocalMembers([LocalMember(f"cuda:{number}", pool) for number, pool in enumerate(pools)], DEPTH))


def local(_: ForkServer, stack: ExitStack, __: pytest.MonkeyPatch) -> JobPool:
    backend = LocalBackend(("worker_handlers",), cores=2)
    stack.callback(backend.close)
    return backend.open(plans, KERNEL)["echo"]


def hosts(_: ForkServer, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> JobPool:
    ray = StubRay({"a": 1, "b": 2})
    monkeypatch.setattr(ray_backend, "_ray", lambda: ray)
    monkeypatch.setattr(ray_backend, "_require_answer", lambda address: None)
    backend = ray_backend.RayBackend(RayRequest("auto"), ("worker_handlers",))
    stack.callback(backend.close)
    return backend.open(plans, KERNEL)["echo"]


@pytest.fixture(params=[one, several, local, hosts])
def pool(request: pytest.FixtureRequest, server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobPool]:
    """Everything that takes jobs, behind the one contract."""
    with ExitStack() as stack:
        yield request.param(server, stack, monkeypatch)


class TestEveryPool:
    def test_each_job_is_answered_once(self, pool: JobPool) -> None:
        for number in range(30):
            pool.submit(number, ("echo", number * 10), 10.0)
        found = collect(pool, 30)
        assert {key: (result.status, result.value) for key, result in found.items()} == {
            number: ("done", number * 10) for number in range(30)
        }

    def test_a_job_that_kills_its_worker_is_answered_and_no_other_suffers(self, pool: JobPool) -> None:
        for number in range(12):
            pool.submit(number, ("die", signal.SIGSEGV) if number == 4 else ("echo", number), 10.0)
        found = collect(pool, 12)
        assert {key: result.status for key, result in found.items()} == {
            number: "died" if number == 4 else "done" for number in range(12)
        }

    def test_a_worker_that_is_killed_from_outside_is_no_verdict(self, pool: JobPool) -> None:
        for number in range(6):
            pool.submit(number, ("die", signal.SIGKILL) if number == 2 else ("echo", number), 10.0)
        assert {key: result.status for key, result in collect(pool, 6).items()}[2] == "lost"

    def test_a_hang_is_ended_at_its_deadline(self, pool: JobPool) -> None:
        for number in range(6):
            pool.submit(number, ("sleep", 60.0) if number == 1 else ("echo", number), 0.6 if number == 1 else 10.0)
        found = collect(pool, 6)
        assert (found[1].status, found[1].value) == ("overran", 0.6)
        assert all(found[number].status == "done" for number in found if number != 1)

    def test_what_a_job_raises_is_its_answer(self, pool: JobPool) -> None:
        pool.submit(7, ("raise", "usage"), 10.0)
        found = collect(pool, 1)[7]
        assert (found.status, str(found.value)) == ("raised", "a bad kernel")
