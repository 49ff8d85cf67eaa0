"""Worker processes: each job answered once, though workers die, hang, retire or never start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import evokern.workers.pool
from evokern.errors import DeviceError, InternalError, KernelError, UsageError
from evokern.workers.fork_server import keeping_servers
from evokern.workers.pool import ForkServer, JobResult, WorkerPool, WorkerSpec, wait

HANDLER = "worker_handlers:Obedient"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer(preload=("worker_handlers",))
    yield server
    server.close()


def make_pool(server: ForkServer, init: object = "x", **options: int) -> WorkerPool:
    return WorkerPool(server, WorkerSpec(HANDLER, init), **{"size": 1, **options})


def collect(pool: WorkerPool, count: int, limit_s: float = 20.0) -> list[JobResult]:
    results: list[JobResult] = []
    end = time.monotonic() + limit_s
    while len(results) < count and time.monotonic() < end:
        results += wait([pool], 0.5)
    return results


def by_key(results: list[JobResult]) -> list[JobResult]:
    return sorted(results, key=lambda result: result.key)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_every_job_is_answered_once_whatever_the_number_of_workers(server: ForkServer) -> None:
    """Each job gets exactly one answer, its own."""
    pool = make_pool(server, size=3, spares=1, depth=2)
    for number in range(20):
        pool.submit(number, ("echo", number * 10), 10.0)
    answers = {result.key: (result.status, result.value) for result in collect(pool, 20)}
    assert {number: ("done", number * 10) for number in range(20)} == answers
    assert pool.pending == 0
    assert pool.ready_report == {"init": "x"}
    pool.close()


def test_a_worker_computes_on_one_thread() -> None:
    """There is a worker for each core: libraries that were preloaded start no threads of their own in any of them."""
    server = ForkServer(preload=("worker_handlers", "numpy"))
    pool = make_pool(server)
    pool.submit(0, "threads", 20.0)
    (answer,) = collect(pool, 1)
    assert answer.status == "done" and set(answer.value) == {1}
    pool.close()
    server.close()


@pytest.mark.parametrize(("job", "how"), [(("die", signal.SIGSEGV), "killed by SIGSEGV"), (("exit", 7), "exit code 7")])
def test_death_is_an_answer_that_says_how(server: ForkServer, job: tuple[str, int], how: str) -> None:
    """Two workers that end themselves are the result of the job; later jobs, queued ones too, are done by another."""
    pool = make_pool(server, spares=1, depth=2)
    pool.submit(0, job, 10.0)
    pool.submit(1, ("echo", "after"), 10.0)
    first, second = by_key(collect(pool, 2))
    assert (0, "died", how) == (first.key, first.status, first.value)
    assert (second.key, second.status, second.value) == (1, "done", "after")
    if job[0] == "die":
        assert "last words" in first.log
    pool.close()


DEATHS = {
    "out of memory": ("die", signal.SIGKILL),
    "terminated": ("die", signal.SIGTERM),
    "hung up": ("die", signal.SIGHUP),
    "segmentation fault": ("die", signal.SIGSEGV),
    "no memory left": "memory",
    "no disk left": "disk",
}


@pytest.mark.parametrize("name", DEATHS)
def test_a_job_whose_worker_dies_is_asked_for_once_more(server: ForkServer, name: str, tmp_path: Path) -> None:
    """A worker's death is no verdict: another process answers, and nothing of the death is to be seen in the answer."""
    pool = make_pool(server, spares=1, depth=2)
    pool.submit(0, ("first time", str(tmp_path), DEATHS[name]), 10.0)
    pool.submit(1, ("echo", "after"), 10.0)
    first, second = by_key(collect(pool, 2))
    assert [(first.key, first.status), (second.key, second.value)] == [(0, "done"), (1, "after")]
    assert first.value != int((tmp_path / "first").read_text())
    pool.close()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("out of memory", "killed by SIGKILL, then killed by SIGKILL"),
        ("terminated", "killed by SIGTERM, then killed by SIGTERM"),
        ("no memory left", "out of resources (MemoryError: Unable to allocate 8.00 GiB), then out of resources"),
        ("no disk left", "out of resources (RuntimeError: cannot write), then"),
    ],
)
def test_a_job_whose_workers_are_killed_twice_is_lost(server: ForkServer, name: str, how: str) -> None:
    """The answer says how both died and how much memory was in use; what comes after is done."""
    pool = make_pool(server, spares=1, depth=2)
    pool.submit(0, DEATHS[name], 10.0)
    pool.submit(1, ("echo", "after"), 10.0)
    first, second = by_key(collect(pool, 2))
    assert (first.key, first.status, second.value) == (0, "lost", "after")
    assert first.value.startswith(how)
    assert 0 < first.memory["used_bytes"] < first.memory["total_bytes"]
    if "killed" in how:
        assert 1 << 20 < first.memory["worker_bytes"] < first.memory["total_bytes"]
    pool.close()


@pytest.mark.parametrize("spares", [0, 2])
def test_a_job_is_asked_for_once_more_of_a_process_that_started_later(
    server: ForkServer, spares: int, tmp_path: Path
) -> None:
    """What killed a worker, a fork server's end for one, may be killing those beside it: none of them gets the job.

    What comes after it does not wait for the new process.
    """
    pool = make_pool(server, ("late after the first", str(tmp_path)), size=2, spares=spares)
    pool.wait_ready(2 + spares)
    while len(before := pool.processes) < 2 + spares:
        time.sleep(0.01)
    pool.submit(0, ("first time", str(tmp_path), ("die", signal.SIGKILL)), 10.0)
    for number in range(1, 4):
        pool.submit(number, ("pid",), 10.0)
    results = {result.key: result.value for result in collect(pool, 4)}
    assert results[0] not in before
    assert {results[number] for number in range(1, 4)} <= set(before)
    pool.close()


def test_where_a_job_cannot_be_the_cause_a_fault_is_no_answer_either(server: ForkServer) -> None:
    """A simulation that ends by SIGSEGV twice is lost: the candidate was data there."""
    pool = WorkerPool(server, WorkerSpec(HANDLER, "x", may_fault=False), size=1, spares=1)
    pool.submit(0, ("die", signal.SIGSEGV), 10.0)
    (result,) = collect(pool, 1)
    assert (result.status, result.value) == ("lost", "killed by SIGSEGV, then killed by SIGSEGV")
    pool.close()


def test_a_worker_that_is_stopped_is_not_late(server: ForkServer, tmp_path: Path) -> None:
    """SIGSTOP until the deadline is no hang: the job is asked for once more. A shorter one changes nothing."""
    pool = make_pool(server, spares=1)
    pool.wait_ready(2)
    pool.submit(0, ("first time", str(tmp_path), ("sleep", 60)), 0.6)
    while not (tmp_path / "first").exists():
        time.sleep(0.01)
    time.sleep(0.02)
    stopped = int((tmp_path / "first").read_text())
    os.kill(stopped, signal.SIGSTOP)
    (result,) = collect(pool, 1)
    assert result.status == "done"
    assert result.value != stopped
    assert not is_alive(stopped)
    pool.submit(1, ("sleep", 0.3), 1.0)
    wait([pool], 0.1)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        os.kill(pool.processes[-1], number)
        time.sleep(0.1)
    assert [(one.key, one.status) for one in collect(pool, 1)] == [(1, "done")]
    pool.close()


def test_while_its_parent_is_stopped_a_worker_cannot_be_late(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait that ends long after it should grants what was stopped with the parent that time (a frozen container)."""
    pool = make_pool(server)
    pool.wait_ready()
    while not pool.processes:  # the server's notice may come after the worker's
        time.sleep(0.01)
    pool.submit(0, ("sleep", 0.3), 0.5)
    monkeypatch.setattr(evokern.workers.pool, "_PAUSE_S", 0.2)
    worker = pool.processes[0]
    os.kill(worker, signal.SIGSTOP)
    with monkeypatch.context() as frozen:
        frozen.setattr(evokern.workers.pool.mp_connection, "wait", lambda *_: time.sleep(0.6) or [])
        assert wait([pool], 0.05) == []
    os.kill(worker, signal.SIGCONT)
    assert [one.status for one in collect(pool, 1)] == ["done"]
    pool.close()


def test_a_job_past_its_deadline_is_killed_and_the_rest_goes_on(server: ForkServer) -> None:
    """The deadline of a job counts from when it is taken up, and its end comes promptly."""
    pool = make_pool(server, spares=1, depth=2)
    pool.wait_ready(2)
    began = time.monotonic()
    pool.submit(0, ("sleep", 60), 0.4)
    pool.submit(1, ("sleep", 0.3), 0.4)
    first, second = collect(pool, 2)
    assert (first.key, first.status, first.value) == (0, "overran", 0.4)  # and it is not asked for once more
    assert (second.key, second.status, second.value) == (1, "done", 0.3)
    assert time.monotonic() - began < 5
    pool.close()


def test_warm_spare_takes_over_fast_and_series_of_deaths_grows_the_spares(server: ForkServer) -> None:
    """With a spare warm the next answer after a death comes well within half a second; a series keeps several."""
    pool = make_pool(server, spares=1)
    pool.wait_ready(2)
    pool.submit(0, ("die", signal.SIGKILL), 10.0)
    pool.submit(1, ("echo", 1), 10.0)
    answered = collect(pool, 1)
    began = time.monotonic()
    collect(pool, 2 - len(answered))  # both may be there at once
    assert time.monotonic() - began < 0.5
    for number in range(2, 6):
        pool.submit(number, ("die", signal.SIGKILL), 10.0)
    collect(pool, 4)
    pool.wait_ready(4)
    assert pool.ready >= 4
    pool.close()


def test_exceptions_come_back_as_evokerns_own(server: ForkServer) -> None:
    """A user's mistake keeps its class and message; anything else becomes an internal error with its traceback."""
    pool = make_pool(server)
    pool.submit(0, ("raise", "usage"), 10.0)
    pool.submit(1, ("raise", "bug"), 10.0)
    usage, bug = collect(pool, 2)
    assert usage.status == "raised"
    assert isinstance(usage.value, KernelError)
    assert str(usage.value) == "a bad kernel"
    assert isinstance(bug.value, InternalError)
    assert "ValueError: broken" in str(bug.value)
    assert "worker_handlers.py" in str(bug.value)
    pool.close()


def test_a_worker_that_retires_answers_and_is_replaced(server: ForkServer) -> None:
    """Retiring gives an answer; the next job runs in another process."""
    pool = make_pool(server, spares=1)
    pool.submit(0, ("pid",), 10.0)
    pool.submit(1, ("retire", "poisoned"), 10.0)
    pool.submit(2, ("pid",), 10.0)
    before, last, after = collect(pool, 3)
    assert (last.status, last.value) == ("done", "poisoned")
    assert before.value != after.value
    pool.close()


def test_a_busy_worker_that_retires_is_gone_before_the_next_job(server: ForkServer) -> None:
    """When a device still works for a worker, its process has ended before another worker takes a job up."""
    pool = make_pool(server, spares=1)
    pool.submit(0, ("pid",), 10.0)
    pool.submit(1, ("retire busy", None), 10.0)
    before, _ = collect(pool, 2)
    assert not is_alive(before.value)
    pool.close()


def test_an_answer_in_doubt_is_asked_for_once_more(server: ForkServer) -> None:
    """A worker that doubts its own state has the job done again by another one, once."""
    pool = make_pool(server, spares=1, depth=2)
    pool.submit(0, ("pid",), 10.0)
    pool.submit(1, ("retire and retry", None), 10.0)
    pool.submit(2, ("pid",), 10.0)
    first, doubted, last = collect(pool, 3)
    assert (first.key, doubted.key, last.key) == (0, 1, 2)
    assert len({first.value, doubted.value, last.value}) == 3
    pool.close()


def test_a_worker_knows_whether_its_next_job_has_come(server: ForkServer) -> None:
    """A handler that listens is told that a job waits, and that none does."""
    pool = make_pool(server, depth=2)
    for number in range(2):
        pool.submit(number, ("does the next wait", 0.2), 10.0)
    assert {result.key: result.value for result in collect(pool, 2)} == {0: True, 1: False}
    pool.close()


def test_spares_do_not_work_beside_the_workers(server: ForkServer) -> None:
    """A pool of one has one job in work at a time, whichever process was ready first."""
    pool = make_pool(server, spares=2)
    for number in range(30):
        pool.submit(number, ("pid",), 10.0)
    assert len({result.value for result in collect(pool, 30)}) == 1
    pool.close()


def test_what_workers_print_does_not_pile_up(server: ForkServer) -> None:
    """A worker that prints megabytes for every job keeps the last of it alone."""
    pool = make_pool(server)
    for number in range(6):
        pool.submit(number, ("print", 900_000), 10.0)
    sizes = [result.value for result in collect(pool, 6)]
    assert max(sizes) < 2_800_000
    pool.close()


def test_spares_can_come_later(server: ForkServer) -> None:
    """A pool that starts without spares has them once they are asked for."""
    pool = make_pool(server)
    pool.wait_ready()
    assert pool.ready == 1
    pool.keep_spares(2)
    pool.wait_ready(3)
    assert pool.ready == 3
    pool.close()


def test_a_worker_that_cannot_start_raises_its_reason(server: ForkServer) -> None:
    """What the handler raises, or how its process died, reaches whoever waits for the pool."""
    pool = make_pool(server, "raise")
    with pytest.raises(KernelError, match="no such kernel"):
        pool.wait_ready()
    pool.close()
    pool = make_pool(server, "die")
    with pytest.raises(UsageError, match=r"SIGSEGV.*dying on purpose"):
        pool.wait_ready()
    pool.close()


def test_large_jobs_do_not_block_behind_a_busy_worker(server: ForkServer) -> None:
    """Queueing megabytes behind a hung job neither blocks the caller nor loses the job."""
    pool = make_pool(server, spares=1, depth=2)
    pool.wait_ready(2)
    began = time.monotonic()
    pool.submit(0, ("sleep", 60), 0.3)
    pool.submit(1, ("echo", b"x" * 4_000_000), 10.0)
    assert time.monotonic() - began < 0.25
    first, second = collect(pool, 2)
    assert (first.status, second.status) == ("overran", "done")
    assert len(second.value) == 4_000_000
    pool.close()


def test_close_ends_every_process() -> None:
    """No process is left after a pool and its server are closed, though one hangs."""
    server = ForkServer()
    pool = make_pool(server, size=2, spares=1)
    pool.wait_ready(3)
    pool.submit(0, ("sleep", 60), 100.0)
    end = time.monotonic() + 10.0
    while len(processes := pool.processes) < 3 and time.monotonic() < end:
        time.sleep(0.01)  # a worker may be ready before the server has reported its start
    assert len(processes) == 3
    pool.close()
    server.close()
    end = time.monotonic() + 5
    while any(map(is_alive, processes)) and time.monotonic() < end:
        time.sleep(0.02)
    assert [pid for pid in processes if is_alive(pid)] == []


def test_a_dead_server_is_replaced() -> None:
    """When something outside kills the server, its workers die with it and a new server takes over."""
    server = ForkServer()
    pool = make_pool(server)
    pool.wait_ready()
    before = pool.processes
    server._process.kill()
    end = time.monotonic() + 5
    while any(map(is_alive, before)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(is_alive, before))
    pool.submit(0, ("echo", 1), 10.0)
    pool.submit(1, ("echo", 2), 10.0)
    assert [result.value for result in collect(pool, 2)] == [1, 2]
    pool.close()
    server.close()


def starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ForkServer:
    """Return a server that imports for a minute, unless a file is there."""
    (tmp_path / "long_import.py").write_text(
        f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.02)"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return ForkServer(("long_import",))


def test_a_server_killed_while_it_starts_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that were asked for meanwhile start from the next server, and nobody hears of it."""
    server = starting(tmp_path, monkeypatch)
    pool = make_pool(server, size=2)
    pool.submit(0, ("echo", 1), 10.0)
    killed = server._process
    killed.kill()
    killed.wait()
    (tmp_path / "go").touch()
    assert [(result.status, result.value) for result in collect(pool, 1)] == [("done", 1)]
    assert server._process.pid != killed.pid
    pool.close()
    server.close()


def test_servers_killed_again_and_again_while_they_start_end_in_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After three it says what killed them, how much memory is in use, and what to do."""
    server = starting(tmp_path, monkeypatch)
    pool = make_pool(server, size=2)
    with pytest.raises(DeviceError, match=r"3 were killed in a row, .*fork server, which was killed by SIGKILL.*GiB"):
        for _ in range(4):
            server._process.kill()
            server._process.wait()
            wait([pool], 1.0)
    pool.close()
    server.close()


def test_a_process_number_used_again_is_not_killed_for_an_earlier_server_s_worker() -> None:
    """What an earlier server forked is gone: its tickets name no process of the server that took over."""
    server = ForkServer()
    pool = make_pool(server)
    pool.wait_ready()
    ticket = pool._workers[0].ticket
    server._process.kill()
    server._process.wait()
    pool.submit(0, ("echo", 1), 10.0)
    collect(pool, 1)
    assert server.pid(ticket) is None
    assert server.death(ticket, 0.0).description == "ended with its fork server, which was killed by SIGKILL"
    pool.close()
    server.close()


PARENT = """
import sys, time
from evokern.workers.fork_server import keeping_servers
from evokern.workers.pool import ForkServer, WorkerPool, WorkerSpec, wait
server = ForkServer()
pool = WorkerPool(server, WorkerSpec("worker_handlers:Obedient", None), size=2, spares=1)
pool.wait_ready(3)
pool.submit(0, ("sleep", 600), 600.0)
wait([pool], 0.1)
print(server._process.pid, *pool.processes, flush=True)
time.sleep(600)
"""


def test_no_process_outlives_a_killed_parent() -> None:
    """After `kill -9` of the parent its server and workers, busy ones too, are gone within seconds."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    processes = [int(word) for word in parent.stdout.readline().split()]
    assert len(processes) == 4
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 5
    while any(map(is_alive, processes)) and time.monotonic() < end:
        time.sleep(0.02)
    assert [pid for pid in processes if is_alive(pid)] == []


IMPORTING = """
import pathlib, signal, sys, time
sys.path.insert(0, sys.argv[1])
from evokern.workers.pool import ForkServer
server = ForkServer(("endless",))
while not pathlib.Path(sys.argv[1], "begun").exists(): time.sleep(0.01)
if sys.argv[2] == "stopped": server._process.send_signal(signal.SIGSTOP)
print(server._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("state", ["importing", "stopped"])
def test_a_server_that_still_starts_does_not_outlive_a_killed_parent(state: str, tmp_path: Path) -> None:
    """`kill -9` of a parent whose server is importing, or was stopped, leaves no process behind."""
    (tmp_path / "endless.py").write_text(
        f"import pathlib, time; pathlib.Path({str(tmp_path / 'begun')!r}).touch(); time.sleep(600)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", IMPORTING, str(tmp_path), state]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 5
    while is_alive(server) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_alive(server)


def test_a_program_that_ends_early_leaves_no_server_importing(tmp_path: Path) -> None:
    """Ctrl-C before anybody could close it: the server ends with the program, not when its imports are over."""
    (tmp_path / "endless.py").write_text("import time; time.sleep(60)")
    script = (
        "from evokern.workers.pool import ForkServer\n"
        "server = ForkServer(('endless',)); print(server._process.pid, flush=True); raise KeyboardInterrupt"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False, env=environment
    )
    assert "KeyboardInterrupt" in done.stderr
    assert not is_alive(int(done.stdout))


def test_a_worker_that_lacks_memory_ends_the_spares(server: ForkServer, tmp_path: Path) -> None:
    """What it asks for they may hold: its job is done by the only worker that is left."""
    pool = make_pool(server, spares=2)
    pool.wait_ready(3)
    pool.submit(0, ("first time", tmp_path, "memory"), 10.0)
    (answer,) = collect(pool, 1)
    assert (answer.status, pool.processes) == ("done", [answer.value])
    pool.submit(1, ("die", signal.SIGKILL), 10.0)
    pool.submit(2, ("pid",), 10.0)
    collect(pool, 2)
    assert len(pool.processes) == 1
    pool.close()


def test_spares_that_speak_while_they_are_ended_are_not_heard(server: ForkServer) -> None:
    """That a worker lacked memory and that its spares are ready may be read at once."""
    pool = make_pool(server)
    pool.wait_ready()
    pool.submit(0, "memory", 10.0)
    pool.keep_spares(2)
    pool.advance([])  # the spares start, and nothing is read
    time.sleep(1.0)
    (answer,) = collect(pool, 1)
    assert answer.status == "lost"  # it lacks memory every time
    pool.close()


def test_workers_let_others_go_first_as_they_are_told(server: ForkServer) -> None:
    """Niceness is that of whoever started them and what their specification adds, 19 at most."""
    pool = WorkerPool(server, WorkerSpec("worker_handlers:Obedient", None, niceness=4), size=1)
    pool.submit(0, ("pid",), 10.0)
    (answer,) = collect(pool, 1)
    started_by = os.getpriority(os.PRIO_PROCESS, server._process.pid)
    assert os.getpriority(os.PRIO_PROCESS, answer.value) == min(started_by + 4, 19)
    pool.close()


def test_a_released_server_serves_the_next_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only inside `keeping_servers`, with the same modules, environment and directory, and while it lives."""
    modules, servers = ("worker_handlers",), []

    def used(preload: tuple[str, ...] = modules) -> int:
        server = ForkServer.kept(preload)
        servers.append(server)
        pool = make_pool(server)
        pool.submit(1, ("echo", 1), 10.0)
        assert [(one.status, one.value) for one in collect(pool, 1)] == [("done", 1)]
        pool.close()
        server.release()
        return int(server._process.pid)

    assert not is_alive(used())
    with keeping_servers():
        first = used()
        assert used() == first
        assert used((*modules, "numpy")) != first
        monkeypatch.setenv("EVOKERN_TEST", "1")
        assert used() != first
        monkeypatch.delenv("EVOKERN_TEST")
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/of_torch")  # set by an import of torch
        assert used() == first
        os.kill(first, signal.SIGKILL)
        assert used() != first
    assert not any(is_alive(one._process.pid) for one in servers)


def test_an_idle_worker_takes_over_the_next_task_with_the_same_key() -> None:
    """Its process continues with a new handler; another key, a busy worker, or no `keeping_servers` need a new one."""

    def processes(server: ForkServer, init: str, reuse: str, busy: bool = False) -> set[int]:
        pool = WorkerPool(server, WorkerSpec(HANDLER, init, reuse=reuse), size=2)
        pool.wait_ready(2)
        pool.submit(0, ("echo", 1), 10.0)
        assert collect(pool, 1)[0].value == 1
        assert pool.ready_report == {"init": init}
        while len(used := set(pool.processes)) < 2:  # the server reports a process after it has forked it
            time.sleep(0.01)
        if busy:
            pool.submit(1, ("sleep", 30.0), 60.0)
        pool.close()
        return used

    with keeping_servers():
        server = ForkServer(preload=("worker_handlers",))
        first = processes(server, "a", "one")
        assert processes(server, "b", "one") == first
        assert set(server.idle_processes()) == first
        assert not processes(server, "c", "two") & first
        assert not processes(server, "d", "") & first
        again = processes(server, "e", "one", busy=True)
        assert again == first
        assert len(processes(server, "f", "one") & first) == 1
        os.kill(next(iter(first & set(server.idle_processes()))), signal.SIGKILL)
        time.sleep(0.2)
        assert not processes(server, "g", "one") & first
        server.close()
    server = ForkServer(preload=("worker_handlers",))
    first = processes(server, "a", "one")
    assert not processes(server, "b", "one") & first
    server.close()
