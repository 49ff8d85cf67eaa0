"""Candidates on a Ray cluster: what is lost is asked elsewhere, what does not fit is refused before a trial."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from paths import DATA
from stub_ray import StubRay

from evokern.cluster import RayRequest, ray_backend
from evokern.cluster.host import require_alike, versions
from evokern.cluster.request import ray_request
from evokern.device.opening import open_device
from evokern.errors import DeviceError, UsageError
from evokern.workers.backend import HostRoom, PoolPlan
from evokern.workers.jobs import JobResult, WorkerSpec
from evokern.workers.pool import wait

KERNEL = DATA / "kernels" / "scale_rows"


def plans(room: HostRoom) -> dict[str, PoolPlan]:
    return {"echo": PoolPlan(WorkerSpec("worker_handlers:Obedient", "x"), room.cores)}


class Rig:
    """A backend on a stand-in for Ray."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cores: dict[str, int], **options: Any) -> None:
        self.ray = StubRay(cores, **options)
        monkeypatch.setattr(ray_backend, "_ray", lambda: self.ray)
        monkeypatch.setattr(ray_backend, "_require_answer", lambda address: None)

    def open(self, stack: ExitStack, num_cpus: int | None = None) -> ray_backend.RayPool:
        backend = ray_backend.RayBackend(RayRequest("auto", num_cpus), ("worker_handlers",))
        stack.callback(backend.close)
        return backend.open(plans, KERNEL)["echo"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def collect(pool: ray_backend.RayPool, count: int, limit_s: float = 30.0) -> dict[int, JobResult]:
    found: dict[int, JobResult] = {}
    end = time.monotonic() + limit_s
    while len(found) < count and time.monotonic() < end:
        for result in wait([pool], 0.2):
            assert result.key not in found, "answered twice"
            found[result.key] = result
    return found


def test_what_a_lost_actor_held_is_asked_elsewhere(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lost, nothing is answered twice, and the host is back soon."""
    rig = Rig(monkeypatch, {"a": 1, "b": 1})
    pool = rig.open(stack)
    for number in range(12):
        pool.submit(number, ("sleep", 0.1), 10.0)
    found = collect(pool, 3)
    rig.ray.actors[0].die()
    found |= collect(pool, 12 - len(found))
    assert {number: result.status for number, result in found.items()} == dict.fromkeys(range(12), "done")
    assert "host a/0 is lost (its actor ended, or cannot be reached); others go on with what it held" in caplog.text
    end = time.monotonic() + 10
    while "host a/0 is back after" not in caplog.text and time.monotonic() < end:
        time.sleep(0.05)
    assert "host a/0 is back after" in caplog.text
    for number in range(20, 30):
        pool.submit(number, ("pid",), 10.0)
    assert len({result.value for result in collect(pool, 10).values()}) == 2, "both work again"


@pytest.mark.parametrize("node_lost", [False, True])
def test_a_job_beside_which_two_actors_die_is_lost_where_their_hosts_are_there(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, node_lost: bool
) -> None:
    """It may be what they die of; where the whole host went, it is not."""
    rig = Rig(monkeypatch, {"a": 1, "b": 1, "c": 1})
    pool = rig.open(stack)
    pool.submit(0, ("sleep", 2.0), 10.0)
    for _ in range(2):
        held = _holder(pool)
        rig.ray.alive[held] = not node_lost
        rig.ray.actors["abc".index(held)].die(back=not node_lost)
    (result,) = collect(pool, 1).values()
    assert result.status == ("done" if node_lost else "lost")
    if not node_lost:
        assert "two actors died, the last one on" in result.value


def _holder(pool: ray_backend.RayPool) -> str:
    """Return the host that has the one job."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        wait([pool], 0.02)
        held = [index for index, jobs in enumerate(pool._held) if jobs]
        if held and pool._cluster.hosts[held[0]].up:
            time.sleep(0.1)  # until the actor has it
            return "abc"[held[0]]
    raise AssertionError("nobody holds it")


def test_a_host_that_does_not_answer_is_ended(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines are the driver's, whatever becomes of the host that should keep them."""
    rig = Rig(monkeypatch, {"a": 1, "b": 1})
    pool = rig.open(stack)
    monkeypatch.setattr(ray_backend, "_LATE_S", 0.3)
    monkeypatch.setattr("evokern.cluster.host.Host.do", lambda *_: threading.Event().wait(30))
    pool.submit(0, ("echo", 1), 0.1)
    (result,) = collect(pool, 1).values()
    assert result.status == "lost"


def test_a_host_whose_workers_cannot_start_leaves_its_work_to_others(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only when nobody is left does the search end, with the reason."""
    rig = Rig(monkeypatch, {"a": 1, "b": 1})
    backend = ray_backend.RayBackend(RayRequest("auto"), ("worker_handlers",))
    stack.callback(backend.close)
    given = iter(("raise", "x"))

    def uneven(room: HostRoom) -> dict[str, PoolPlan]:
        return {"echo": PoolPlan(WorkerSpec("worker_handlers:Obedient", next(given)), room.cores)}

    pool = backend.open(uneven, KERNEL)["echo"]
    for number in range(4):
        pool.submit(number, ("echo", number), 10.0)
    assert {result.status for result in collect(pool, 4).values()} == {"done"}
    other = ray_backend.RayBackend(RayRequest("auto"), ("worker_handlers",))
    stack.callback(other.close)
    broken = PoolPlan(WorkerSpec("worker_handlers:Obedient", "raise"), 1)
    with pytest.raises(DeviceError, match="no host of the Ray cluster can work: no such kernel"):
        other.open(lambda room: {"echo": broken}, KERNEL)
    assert rig.ray.actors[0].options["num_cpus"] == 1


def test_no_more_is_asked_of_hosts_than_their_workers_hold(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits, waits here: programs do not pile up in a cluster."""
    rig = Rig(monkeypatch, {"a": 2, "b": 1})
    pool = rig.open(stack)
    for number in range(50):
        pool.submit(number, ("echo", number), 10.0)
        assert sum(len(held) for held in pool._held) <= 3
    assert len(collect(pool, 50)) == 50


@pytest.mark.parametrize(
    ("cores", "wanted", "shares"),
    [
        ({"a": 4, "b": 2}, None, {"a": 4, "b": 2}),
        ({"a": 4, "b": 2}, 100, {"a": 4, "b": 2}),
        ({"a": 4, "b": 2}, 3, {"a": 2, "b": 1}),
        ({"a": 4, "b": 2}, 1, {"a": 1}),
        ({"head": 0, "a": 3}, None, {"a": 3}),
    ],
)
def test_processors_are_spread_over_the_hosts(
    monkeypatch: pytest.MonkeyPatch, cores: dict[str, int], wanted: int | None, shares: dict[str, int]
) -> None:
    Rig(monkeypatch, cores)
    backend = ray_backend.RayBackend(RayRequest("auto", wanted), ())
    assert {node["NodeID"]: share for node, share in backend._shares} == shares
    assert backend.cores == sum(shares.values())
    backend.close()


# ------------------------------------------------------------------------------------------------------- refusals


def test_a_cluster_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one of another version of Ray, in the first line of what Ray says."""
    Rig(monkeypatch, {"a": 1})
    with pytest.raises(DeviceError, match=r"at 10\.0\.0\.1:1 does not take this process: Version mismatch.*2\.1\.; "):
        ray_backend.RayBackend(RayRequest("10.0.0.1:1"), ())


def test_an_address_where_nobody_listens_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray would try for minutes; `auto` without a cluster says how to begin one."""
    began = time.monotonic()
    with pytest.raises(DeviceError, match=r"the Ray cluster at 127\.0\.0\.1:9 does not answer: .*refused; `ray start"):
        ray_backend._require_answer("127.0.0.1:9")
    monkeypatch.setattr(ray_backend, "_CURRENT", tmp_path / "none")
    with pytest.raises(DeviceError, match="no Ray cluster runs on this machine: `ray start --head` begins one"):
        ray_backend._require_answer("auto")
    (tmp_path / "none").write_text("127.0.0.1:9")
    with pytest.raises(DeviceError, match=r"the Ray cluster at 127\.0\.0\.1:9 does not answer"):
        ray_backend._require_answer("auto")
    assert time.monotonic() - began < 5


def test_a_cluster_without_processors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, {"head": 0})
    with pytest.raises(DeviceError, match="the Ray cluster at auto has no processor for a search"):
        ray_backend.RayBackend(RayRequest("auto"), ())
    assert not rig.ray.connected, "the connection is closed"


def test_without_ray_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeviceError, match=r"Ray cannot be imported .*pip install 'evokern\[ray\]'"):
        open_device("sim:l4", RayRequest("auto"))


def test_versions_that_differ_are_listed() -> None:
    """What travels is pickled, so that evokern and Python have to be the same."""
    own = versions()
    require_alike({"this machine": own, "a": dict(own)})
    with pytest.raises(DeviceError, match=r"one version of Python: this machine has .*, b has 3\.9; install the same"):
        require_alike({"this machine": own, "b": own | {"Python": "3.9"}})
    with pytest.raises(DeviceError, match=r"one version of compiler: a has 13\.0, b has none"):
        require_alike({"a": {"compiler": "13.0"}, "b": {}})


@pytest.mark.parametrize(
    ("address", "num_cpus", "told"),
    [
        ("elsewhere", None, "--ray-address 'elsewhere': give auto, or HOST:PORT"),
        ("host:99999", None, "--ray-address 'host:99999'"),
        ("auto", 0, "--num-cpus 0: give at least 1"),
        (None, 4, "--num-cpus is about a Ray cluster; name it with --ray-address"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    monkeypatch: pytest.MonkeyPatch, address: str | None, num_cpus: int | None, told: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UsageError, match=told):
        ray_request(address, num_cpus)


def test_the_environment_names_a_cluster_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own variable; the option goes before it."""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    assert ray_request(None, None) == RayRequest("10.0.0.9:6379")
    assert ray_request("auto", 2) == RayRequest("auto", 2)
    monkeypatch.delenv("RAY_ADDRESS")
    assert ray_request(None, None) is None


@pytest.mark.parametrize(
    ("device", "told"), [("cuda:0", "GPUs of a cluster are not searched on yet"), ("replay:x", "a recording needs no")]
)
def test_devices_that_a_cluster_cannot_be_are_refused(device: str, told: str) -> None:
    with pytest.raises(DeviceError, match=f"device '{device}' with --ray-address: {told}.*--device sim:l4"):
        open_device(device, RayRequest("auto"))
