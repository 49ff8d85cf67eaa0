"""Candidates on a Ray cluster: what is lost is asked elsewhere, what does not fit is refused before a trial."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from paths import DATA
from stub_ray import StubRay, collect

from evokern.cluster import RayRequest, host, ray_backend, ray_pool
from evokern.cluster.host import HostPlan, require_same_versions, versions
from evokern.cluster.request import ray_request
from evokern.device.gpu.profile import LiveGpu
from evokern.device.opening import open_device
from evokern.errors import DeviceError, UsageError
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel
from evokern.workers import sharing
from evokern.workers.backend import HostCapacity, PoolPlan
from evokern.workers.jobs import JobResult, WorkerSpec
from evokern.workers.pool import wait

KERNEL = load_kernel(DATA / "kernels" / "scale_rows")


def plans(room: HostCapacity) -> dict[str, PoolPlan]:
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
    assert "host a/0 is lost (its actor ended" in caplog.text
    end = time.monotonic() + 10
    while "host a/0 is back after" not in caplog.text and time.monotonic() < end:
        time.sleep(0.05)
    assert "host a/0 is back after" in caplog.text
    for number in range(20, 30):
        pool.submit(number, ("pid",), 10.0)
    assert len({result.value for result in collect(pool, 10).values()}) == 2, "both work again"


def test_a_host_whose_disk_is_full_is_told_and_the_others_go_on(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it was to have runs elsewhere."""
    written, full = host.write_kernel_files, threading.Event()

    def write(*arguments: Any) -> Path:
        if not full.is_set():
            full.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(*arguments)

    monkeypatch.setattr(host, "write_kernel_files", write)
    pool = Rig(monkeypatch, {"a": 1, "b": 1}).open(stack)
    for number in range(4):
        pool.submit(number, ("pid",), 10.0)
    assert len({result.value for result in collect(pool, 4).values()}) == 1
    assert f"cannot write the kernel files to {tempfile.gettempdir()}: No space left" in caplog.text


def test_a_host_that_is_late_joins_the_search(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that was killed a moment ago counts as alive, and its actor waits for room: the others begin without it."""
    monkeypatch.setattr(ray_backend, "_OTHERS_S", 0.3)
    rig = Rig(monkeypatch, {"a": 1, "b": 1})
    rig.ray.late = "b"
    stack.callback(rig.ray.come.set)
    began = time.monotonic()
    pool = rig.open(stack)
    assert time.monotonic() - began < 20
    assert (pool.working, pool.states) == ([0], ["", "starting"])
    pool.submit(0, ("pid",), 10.0)
    first = collect(pool, 1)[0].value
    rig.ray.come.set()
    end = time.monotonic() + 10
    while pool.working == [0] and time.monotonic() < end:
        time.sleep(0.05)
    for number in range(1, 5):
        pool.submit(number, ("sleep", 0.2), 10.0)
    assert len({result.member for result in collect(pool, 4).values()}) == 2
    pool.submit(5, ("pid",), 10.0, only=0)
    assert collect(pool, 1)[5].value == first


def test_a_spare_takes_the_place_of_an_actor_that_died(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits until Ray has started another one: that becomes the next spare."""
    rig = Rig(monkeypatch, {"a": 1}, back_s=60.0)
    pool = rig.open(stack)
    end = time.monotonic() + 10
    while len(rig.ray.actors) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    first, spare = rig.ray.actors
    assert spare.options["num_cpus"] == 0, "the first one has them all"
    pool.submit(0, ("pid",), 10.0)
    before = collect(pool, 1)[0].value
    first.die()
    pool.submit(1, ("pid",), 10.0)
    assert collect(pool, 1)[1].value != before
    assert "host a/0 is back after" in caplog.text
    assert len(rig.ray.actors) == 2, "the first one is the next spare"
    first.up = True
    spare.die()
    pool.submit(2, ("pid",), 10.0)
    assert collect(pool, 1)[2].status == "done"


def test_hosts_of_one_machine_import_once_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one's workers come from a server that the first one's forked."""
    monkeypatch.setattr(host.tempfile, "gettempdir", lambda: str(tmp_path))
    made = []
    for number in range(2):
        made.append(host.Host(HostPlan(("worker_handlers",), plans(HostCapacity(1, None)), "echo", {})))
        assert made[-1].run_job("echo", ("echo", number), 10.0).value == number
    servers = [one._server for one in made]
    assert [isinstance(server._process, sharing.SharedServer) for server in servers if server] == [False, True]
    for one in made:
        one.leave()
    assert not [path for path in tmp_path.rglob("*") if path.is_socket() or path.name.startswith(host._SCRATCH)]
    for server in servers:
        assert server is not None
        server.close()


def test_folders_of_others_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither another user's, nor what a mark in one of ours leads to."""
    monkeypatch.setattr(host.tempfile, "gettempdir", lambda: str(tmp_path))
    precious = tmp_path / "precious"
    precious.touch()
    linked, foreign = (tmp_path / f"{host._SCRATCH}{name}" for name in ("linked", "foreign"))
    for folder in (linked, foreign):
        folder.mkdir()
    (linked / "in-use").symlink_to(precious)
    (foreign / "in-use").touch()
    monkeypatch.setattr(host, "who_else_can_modify", lambda path: "somebody's" if path == foreign else "")
    host._remove_stale_folders()
    assert linked.exists() and foreign.exists()
    foreign.chmod(0o700)
    monkeypatch.setattr(host, "who_else_can_modify", lambda path: "")
    host._remove_stale_folders()
    assert linked.exists() and not foreign.exists()


def test_files_of_a_host_that_was_killed_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one that lives stay."""
    monkeypatch.setattr(host.tempfile, "gettempdir", lambda: str(tmp_path))
    script = (
        "import sys, time; from pathlib import Path; from evokern.cluster.host import _marked\n"
        "mark = _marked(Path(sys.argv[1])); print(flush=True); time.sleep(60)"
    )
    folders = [tmp_path / f"{host._SCRATCH}{name}" for name in ("killed", "alive")]
    holders = []
    for folder in folders:
        folder.mkdir()
        (folder / "kernel.cu").touch()
        holders.append(subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE))
        assert holders[-1].stdout is not None
        holders[-1].stdout.readline()
    holders[0].kill()
    holders[0].wait()
    host._remove_stale_folders()
    assert [folder.exists() for folder in folders] == [False, True]
    holders[1].kill()
    holders[1].wait()


def test_a_host_does_a_job_although_nobody_asked_for_its_report() -> None:
    """Ray hands what was asked of an actor that died to the one that takes its place."""
    plan = HostPlan(("worker_handlers",), plans(HostCapacity(1, None)), "echo", {})
    assert host.Host(plan).run_job("echo", ("pid",), 10.0).status == "done"


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
        if held and pool._hosts[held[0]].up:
            time.sleep(0.1)  # until the actor has it
            return "abc"[held[0]]
    raise AssertionError("nobody holds it")


def test_a_host_that_does_not_answer_is_ended(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines are the driver's, whatever becomes of the host that should keep them."""
    rig = Rig(monkeypatch, {"a": 1, "b": 1})
    pool = rig.open(stack)
    monkeypatch.setattr(ray_pool, "_LATE_S", 0.3)
    monkeypatch.setattr("evokern.cluster.host.Host.run_job", lambda *_: threading.Event().wait(30))
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

    def uneven(room: HostCapacity) -> dict[str, PoolPlan]:
        return {"echo": PoolPlan(WorkerSpec("worker_handlers:Obedient", next(given)), room.cores)}

    pool = backend.open(uneven, KERNEL)["echo"]
    for number in range(4):
        pool.submit(number, ("echo", number), 10.0)
    assert {result.status for result in collect(pool, 4).values()} == {"done"}
    other = ray_backend.RayBackend(RayRequest("auto"), ("worker_handlers",))
    stack.callback(other.close)
    broken = PoolPlan(WorkerSpec("worker_handlers:Obedient", "raise"), 1)
    with pytest.raises(DeviceError, match="no host of the Ray cluster is usable: no such kernel"):
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


# ----------------------------------------------------------------------------------------------------------- GPUs


@dataclass(frozen=True)
class Found:
    """What stands for a GPU."""

    model: str = "H200"
    driver: str = "13.0"


class Held:
    """What a host has of a GPU; `marks` counts what was held, and given back."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.released = 0

    def spec(self, spec: WorkerSpec) -> WorkerSpec:
        return spec

    def report(self) -> Found:
        return self.found

    def spares(self, report: Any) -> int:
        return 1

    def with_observations(self, result: JobResult, processes: Sequence[int]) -> JobResult:
        return replace(result, log=f"{len(processes)} processes")

    def release(self) -> None:
        self.released += 1


class GpuRig(Rig):
    """Two hosts with three GPUs, each with an actor of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, found: Callable[[], Found] = Found) -> None:
        super().__init__(monkeypatch, {"a": 3, "b": 2}, gpus={"a": 2, "b": 1})
        self.found = found

    def hosts(self) -> list[Any]:
        """Return the actors that were started first: spares take no processor."""
        return [actor for actor in self.ray.actors if actor.options["num_cpus"]]

    def gpus(self, stack: ExitStack, **request: int) -> ray_pool.RayPool:
        backend = ray_backend.RayBackend(RayRequest("auto", **request), ("worker_handlers",))
        stack.callback(backend.close)
        self.probed = backend.probe_gpus(self.found)
        plan = PoolPlan(WorkerSpec("worker_handlers:Obedient", "x"), 1, 3, hold=lambda: Held(self.found()))
        return backend.open(plans, KERNEL, ("gpu", plan, ("worker_handlers",)))["gpu"]


def test_each_gpu_has_an_actor_and_the_others_compile(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = GpuRig(monkeypatch)
    pool = rig.gpus(stack)
    asked = [(one.options["num_cpus"], one.options.get("num_gpus", 0)) for one in rig.hosts()]
    assert asked == [(1, 1), (1, 1), (1, 1), (1, 0), (1, 0)], "each GPU's worker takes a processor"
    assert pool.names == ["a/gpu0", "a/gpu1", "b/gpu0"] == [name for name, _ in rig.probed]
    assert pool.held == [Found()] * 3
    for number in range(18):
        pool.submit(number, ("sleep", 0.02), 10.0)
    assert {result.member for result in collect(pool, 18).values()} == {0, 1, 2}


def test_fewer_gpus_are_taken_from_as_many_hosts_as_there_are(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert GpuRig(monkeypatch).gpus(stack, num_gpus=2).names == ["a/gpu0", "b/gpu0"]


def test_a_job_for_one_gpu_waits_for_it_and_a_gpu_set_aside_gets_no_other(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only it can do is lost when it is gone for good."""
    rig = GpuRig(monkeypatch)
    pool = rig.gpus(stack)
    pool.set_aside(1)
    rig.ray.actors[1].die()
    pool.submit(-1, ("echo", 5), 10.0, only=1)
    for number in range(9):
        pool.submit(number, ("echo", number), 10.0)
    found = collect(pool, 10)
    assert (found[-1].value, found[-1].member) == (5, 1)
    assert {found[number].member for number in range(9)} == {0, 2}
    pool._hosts[1].up, pool._hosts[1].failure = False, "its node is away"
    pool.submit(-2, ("echo", 5), 10.0, only=1)
    (lost,) = collect(pool, 1).values()
    assert (lost.status, lost.value) == ("lost", "a/gpu1 is gone: its node is away")


def test_spares_are_kept_again_by_an_actor_that_took_anothers_place(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = GpuRig(monkeypatch)
    pool = rig.gpus(stack)
    pool.keep_spares()

    def processes(number: int) -> str:
        end, log = time.monotonic() + 10, ""
        while time.monotonic() < end and log != "2 processes":
            pool.submit(number, ("echo", 1), 10.0, only=0)
            log = collect(pool, 1)[number].log
            time.sleep(0.05)
        return log

    assert processes(1) == "2 processes", "the worker and its spare"
    rig.ray.actors[0].die()
    assert processes(2) == "2 processes"


def test_an_actor_that_comes_back_on_another_gpu_is_refused(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One study takes one model: its times could not be compared."""
    rig = GpuRig(monkeypatch)
    pool = rig.gpus(stack)
    rig.found = lambda: Found("L4")
    rig.ray.actors[0].die()
    pool.submit(0, ("echo", 1), 10.0)
    collect(pool, 1)
    end = time.monotonic() + 10
    while "is unusable" not in caplog.text and time.monotonic() < end:
        wait([pool], 0.05)
    assert "host a/gpu0 is unusable" in caplog.text
    assert "different versions of GPU: this search has H200" in caplog.text
    assert pool.working == [1, 2]


def test_what_hosts_hold_is_given_back(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor is killed, which would leave its files behind."""
    rig = GpuRig(monkeypatch)
    with ExitStack() as inner:
        rig.gpus(inner)
        hosts = [actor.mades[0] for actor in rig.hosts()]
    assert [holder.released for host in hosts for holder in host._holders.values()] == [1, 1, 1]
    assert not any(Path(host._scratch.name).exists() for host in hosts)


def test_gpus_that_are_not_there_or_not_free_are_told(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = GpuRig(monkeypatch)
    with pytest.raises(DeviceError, match=r"at auto has only 3 of the 4 requested GPUs; .*`ray start --num-gpus N`"):
        rig.gpus(stack, num_gpus=4)
    rig.ray.busy = True
    with pytest.raises(DeviceError, match=r"no GPU became free on a host within 60 s.*`ray status`"):
        rig.gpus(stack)
    rig.ray.busy, rig.ray.gpus = False, {}
    with pytest.raises(DeviceError, match=r"the Ray cluster at auto has no GPU; .*--device sim:l4"):
        open_device("cuda", RayRequest("auto"))


def test_auto_is_the_clusters_gpus_else_a_simulated_chip(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = GpuRig(monkeypatch)
    found = LiveGpu(0, "NVIDIA H200", "GPU-1", "0:0", "13.0", CHIPS["h200"])
    monkeypatch.setattr("evokern.device._gpus.live_gpu", lambda _: found)
    device = open_device("auto", RayRequest("auto"))
    stack.callback(device.close)
    assert (device.identity, device.window) == ("NVIDIA H200", 6 * 2 + 2 * 3 * 3)
    rig.ray.gpus = {}
    other = open_device("auto", RayRequest("auto"))
    stack.callback(other.close)
    assert other.identity == "sim:l4"


# ------------------------------------------------------------------------------------------------------- refusals


def test_a_cluster_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one of another version of Ray, in the first line of what Ray says."""
    Rig(monkeypatch, {"a": 1})
    with pytest.raises(DeviceError, match=r"at 10\.0\.0\.1:1 rejected the connection: Version mismatch.*2\.1\.; "):
        ray_backend.RayBackend(RayRequest("10.0.0.1:1"), ())


def test_an_address_where_nobody_listens_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray would try for minutes; `auto` without a cluster says how to begin one."""
    began = time.monotonic()
    with pytest.raises(DeviceError, match=r"at 127\.0\.0\.1:9 does not respond: .*refused; .*`ray start --head`"):
        ray_backend._require_answer("127.0.0.1:9")
    monkeypatch.setattr(ray_backend, "_CURRENT", tmp_path / "none")
    with pytest.raises(DeviceError, match=r"no Ray cluster runs on this machine; .*`ray start --head`"):
        ray_backend._require_answer("auto")
    (tmp_path / "none").write_text("127.0.0.1:9")
    with pytest.raises(DeviceError, match=r"at 127\.0\.0\.1:9 does not respond"):
        ray_backend._require_answer("auto")
    assert time.monotonic() - began < 5


def test_a_cluster_without_processors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, {"head": 0})
    with pytest.raises(DeviceError, match="the Ray cluster at auto has no CPU cores"):
        ray_backend.RayBackend(RayRequest("auto"), ())
    assert not rig.ray.connected, "the connection is closed"


def test_without_ray_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeviceError, match=r"Ray cannot be imported .*pip install 'evokern\[ray\]'"):
        open_device("sim:l4", RayRequest("auto"))


def test_versions_that_differ_are_listed() -> None:
    """What travels is pickled, so that evokern and Python have to be the same."""
    own = versions()
    require_same_versions({"this machine": own, "a": dict(own)})
    with pytest.raises(DeviceError, match=r"different versions of Python: this machine has .*, b has 3\.9; install "):
        require_same_versions({"this machine": own, "b": own | {"Python": "3.9"}})
    require_same_versions({"a": {"compiler": "13.0"}, "b": {"GPU": "H200"}})  # each tells of what it is for


@pytest.mark.parametrize(
    ("address", "num_cpus", "num_gpus", "told"),
    [
        ("elsewhere", None, None, "--ray-address 'elsewhere'; .*HOST:PORT"),
        ("host:99999", None, None, "--ray-address 'host:99999'"),
        ("auto", None, 0, "--num-gpus 0 .*at least 1"),
        ("auto", 0, None, "--num-cpus 0 .*at least 1"),
        (None, None, 1, "--num-gpus requires a Ray cluster"),
        (None, 4, None, "--num-cpus requires a Ray cluster; .*--ray-address"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    monkeypatch: pytest.MonkeyPatch, address: str | None, num_cpus: int | None, num_gpus: int | None, told: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UsageError, match=told):
        ray_request(address, num_cpus, num_gpus)


def test_the_environment_names_a_cluster_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own variable; the option goes before it."""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    assert ray_request(None, None, None) == RayRequest("10.0.0.9:6379")
    assert ray_request("auto", 2, 3) == RayRequest("auto", 2, 3)
    monkeypatch.delenv("RAY_ADDRESS")
    assert ray_request(None, None, None) is None


@pytest.mark.parametrize(
    ("device", "num_gpus", "told"),
    [
        ("cuda:0", None, "Ray chooses the GPUs; .* --num-gpus"),
        ("replay:x", None, "omit --ray-address"),
        ("sim:l4", 2, "omit --num-gpus 2"),
    ],
)
def test_devices_that_a_cluster_cannot_be_are_refused(device: str, num_gpus: int | None, told: str) -> None:
    with pytest.raises(DeviceError, match=f"device '{device}' .*{told}"):
        open_device(device, RayRequest("auto", num_gpus=num_gpus))
