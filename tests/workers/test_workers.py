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

from evokern.errors import InternalError, KernelError, UsageError
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


@pytest.mark.parametrize(
    ("job", "how"),
    [
        (("die", signal.SIGSEGV), "killed by SIGSEGV"),
        (("die", signal.SIGKILL), "killed by SIGKILL"),
        (("exit", 7), "exit code 7"),
    ],
)
def test_death_is_an_answer_that_says_how(server: ForkServer, job: tuple[str, int], how: str) -> None:
    """A worker's death is the result of the job it was doing; later jobs, queued ones too, are done by another."""
    pool = make_pool(server, spares=1, depth=2)
    pool.submit(0, job, 10.0)
    pool.submit(1, ("echo", "after"), 10.0)
    first, second = collect(pool, 2)
    assert (0, "died", how) == (first.key, first.status, first.value)
    assert (second.key, second.status, second.value) == (1, "done", "after")
    if job[0] == "die":
        assert "last words" in first.log
    pool.close()


def test_a_job_past_its_deadline_is_killed_and_the_rest_goes_on(server: ForkServer) -> None:
    """The deadline of a job counts from when it is taken up, and its end comes promptly."""
    pool = make_pool(server, spares=1, depth=2)
    pool.wait_ready(2)
    began = time.monotonic()
    pool.submit(0, ("sleep", 60), 0.4)
    pool.submit(1, ("sleep", 0.3), 0.4)
    first, second = collect(pool, 2)
    assert (first.key, first.status, first.value) == (0, "overran", 0.4)
    assert (second.key, second.status, second.value) == (1, "done", 0.3)
    assert time.monotonic() - began < 5
    pool.close()


def test_warm_spare_takes_over_fast_and_series_of_deaths_grows_the_spares(server: ForkServer) -> None:
    """With a spare warm the next answer after a death comes well within half a second; a series keeps several."""
    pool = make_pool(server, spares=1)
    pool.wait_ready(2)
    pool.submit(0, ("die", signal.SIGKILL), 10.0)
    pool.submit(1, ("echo", 1), 10.0)
    collect(pool, 1)
    began = time.monotonic()
    collect(pool, 1)
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
    processes = pool.processes
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
    assert [result.status for result in collect(pool, 1)] == ["died"]
    pool.submit(1, ("echo", 2), 10.0)
    assert [result.value for result in collect(pool, 1)] == [2]
    pool.close()
    server.close()


PARENT = """
import sys, time
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
