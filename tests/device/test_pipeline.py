"""The pipeline of the live and the simulated device: every candidate answered once, whatever its workers do."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.device._pipeline import CompiledRequest, Pipeline
from evokern.device.contract import Request
from evokern.errors import DeviceError, InternalError, KernelError
from evokern.study.trial import Evaluation, Outcome
from evokern.workers.members import LocalMember, LocalMembers
from evokern.workers.pool import ForkServer, WorkerPool, WorkerSpec
from evokern.workers.single_job import run_single_job


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer(preload=("worker_handlers",))
    yield server
    server.close()


def job_of(work: CompiledRequest) -> tuple[int, Config]:
    return work.number, work.request.config


class Rig:
    """A pipeline over the tests' compilers and executor."""

    def __init__(
        self, server: ForkServer, known: dict[str, Any] | None = None, compilers: int = 3, patience_s: float = math.inf
    ) -> None:
        spec = WorkerSpec("worker_handlers:Compiler", None)
        self.compilers = WorkerPool(server, spec, size=compilers, patience_s=patience_s)
        self.executors = WorkerPool(server, WorkerSpec("worker_handlers:Executor", None), size=1, spares=1, depth=2)
        self.pipeline = Pipeline(
            self.compilers, self.executors, job=job_of, deadline_s=0.6, known=known or {}, hang_s=0.5
        )
        self.pipeline.begin()

    def answers(self, *configs: dict[str, Any]) -> dict[int, Evaluation]:
        for number, config in enumerate(configs):
            self.pipeline.submit(Request(number, Config({"KIND": "good", "CODE": number, **config})))
        found: dict[int, Evaluation] = {}
        end = time.monotonic() + 30
        while len(found) < len(configs) and time.monotonic() < end:
            for answer in self.pipeline.poll(1.0):
                assert answer.number not in found
                found[answer.number] = answer.evaluation
        return found

    def close(self) -> None:
        self.pipeline.close()
        self.compilers.close()
        self.executors.close()


@pytest.fixture
def rig(server: ForkServer) -> Iterator[Rig]:
    rig = Rig(server)
    yield rig
    rig.close()


def test_every_outcome_comes_back_and_the_rest_goes_on(rig: Rig) -> None:
    """A refused compile, a compiler that faults, a crash, a hang, a worker's fault and a wrong answer are outcomes."""
    kinds = ["good", "refused", "compiler_dies", "poisons", "good", "hangs", "faults", "wrong", "good"]
    found = rig.answers(*({"KIND": kind} for kind in kinds))
    expected = "measured compile_error compile_error crashed measured hung crashed wrong measured"
    assert " ".join(found[n].outcome for n in range(9)) == expected
    assert found[3].evidence["error"] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert found[5].evidence["limit_s"] == 0.5
    assert found[6].evidence["error"] == "worker process killed by SIGBUS"
    assert "killed by SIGSEGV, twice" in found[2].evidence["message"]
    assert (found[0].fingerprint, found[0].compile_s, found[0].resources[0].registers) == ("code 0", 0.25, 32)
    assert rig.pipeline.busy_s() == pytest.approx(sum(found[n].device_s for n in range(9)))


def test_each_trial_says_when_it_was_compiled_and_executed_and_by_whom(rig: Rig) -> None:
    """Spans by the one clock of the machine; of trials with one program those whose own they are have them."""
    before = time.monotonic()
    found = rig.answers({}, {"KIND": "refused"}, {"CODE": 0}, {"KIND": "poisons"})
    assert [[span.phase for span in found[n].spans] for n in range(4)] == [
        ["compile", "evaluate"], ["compile"], ["compile"], ["compile", "evaluate"],
    ]  # fmt: skip
    for evaluation in found.values():
        assert all(span.worker.rpartition(" ")[0] in ("compiler", "executor") for span in evaluation.spans)
        for span in evaluation.spans:
            assert before <= span.began_s <= span.began_s + span.seconds <= time.monotonic()
    # One program is executed as soon as one of its trials is compiled; trial 3 has its own.
    compiled_at, executed_at = found[3].spans
    assert compiled_at.began_s + compiled_at.seconds <= executed_at.began_s + 1e-6
    compiled, executed = rig.pipeline.stages()
    assert (compiled, executed) == (0, 0)


def test_each_of_several_executors_is_told_with_its_rate(server: ForkServer) -> None:
    """Answers of the last minute are counted by who gave them."""
    spec = WorkerSpec("worker_handlers:Executor", None)
    pools = [WorkerPool(server, spec, size=1) for _ in range(2)]
    executors = LocalMembers([LocalMember(name, pool) for name, pool in zip("ab", pools, strict=True)], depth=1)
    compilers = WorkerPool(server, WorkerSpec("worker_handlers:Compiler", None), size=1)
    pipeline = Pipeline(compilers, executors, job=job_of, deadline_s=5.0, known={})
    executors.set_aside(0)
    pipeline.begin()
    for number in range(8):
        pipeline.submit(Request(number, Config({"KIND": "good", "CODE": number})))
    answered, end = 0, time.monotonic() + 30
    while answered < 8 and time.monotonic() < end:
        answered += len(pipeline.poll(1.0))
    found = pipeline.executors()
    pipeline.close()
    for pool in (compilers, *pools):
        pool.close()
    assert [(one.name, one.state) for one in found] == [("a", "set aside"), ("b", "")]
    assert found[0].per_minute == 0 < found[1].per_minute <= 8 * 60


def test_killed_twice_is_lost_and_the_rest_goes_on(rig: Rig) -> None:
    """Where an executor or a compiler is killed from outside twice, the trial is lost: why, and the memory in use."""
    found = rig.answers(*({"KIND": kind} for kind in ("good", "dies", "compiler_killed", "good")))
    assert [found[n].outcome for n in range(4)] == ["measured", "lost", "lost", "measured"]
    assert re.search("worker processes died .* outside the candidate: killed by SIGKILL, then", found[1].reason)
    assert "compiler processes died" in found[2].reason
    assert "GiB of memory in use" in found[2].reason
    assert found[1].evidence["memory"]["used_bytes"] > 0
    assert found[1].fingerprint is None


def test_what_was_lost_is_no_answer_for_another_trial(rig: Rig) -> None:
    """Of trials with one program the next is executed where one is lost, and a later one is executed anew."""
    owner = {"KIND": "dies of owner", "CODE": 5, "OWNER": 0}
    found = rig.answers(owner, {**owner, "COMPILE_MS": 60}, {**owner, "COMPILE_MS": 120})
    assert [found[n].outcome for n in range(3)] == ["lost", "measured", "duplicate"]
    assert found[2].evidence["duplicate_of"] == 1
    rig.pipeline.submit(Request(3, Config({**owner, "CODE": 6, "OWNER": 3})))
    rig.pipeline.submit(Request(4, Config({**owner, "CODE": 7, "OWNER": 9})))
    later: dict[int, Outcome] = {}
    end = time.monotonic() + 20
    while len(later) < 2 and time.monotonic() < end:
        later |= {answer.number: answer.evaluation.outcome for answer in rig.pipeline.poll(0.5)}
    assert later == {3: Outcome.LOST, 4: Outcome.MEASURED}


def test_a_machine_that_kills_everything_ends_the_search(rig: Rig) -> None:
    """After a series of lost trials with no answer between them the search ends, and says why and what to do."""
    for number in range(9):
        rig.pipeline.submit(Request(number, Config({"KIND": "compiler_killed", "CODE": number})))
    lost: list[int] = []
    with pytest.raises(DeviceError, match=r"9 candidates in a row were lost.*SIGKILL.*free memory"):
        for _ in range(100):
            lost += [answer.number for answer in rig.pipeline.poll(0.2)]
    assert len(lost) == 8


def test_the_smallest_trial_owns_what_several_share(rig: Rig) -> None:
    """Equal programs are executed once; the owner is the smallest number though its compile was the slowest."""
    found = rig.answers(
        {"CODE": 7, "COMPILE_MS": 400}, {"CODE": 7, "COMPILE_MS": 100}, {"CODE": 7}, {"CODE": 8}, {"CODE": 7}
    )
    assert found[0].outcome is Outcome.MEASURED
    assert [found[n].outcome for n in (1, 2, 4)] == [Outcome.DUPLICATE] * 3
    assert {found[n].evidence["duplicate_of"] for n in (1, 2, 4)} == {0}
    assert {found[n].time_us for n in (0, 1, 2, 4)} == {12.0}
    assert rig.pipeline.busy_s() == pytest.approx(0.2)


def test_a_smaller_number_still_compiling_holds_back_only_the_answer(rig: Rig) -> None:
    """While trial 0 compiles, trial 1 is executed; its answer waits, since trial 0 could be the same program."""
    rig.pipeline.submit(Request(0, Config({"KIND": "good", "CODE": 1, "COMPILE_MS": 700})))
    rig.pipeline.submit(Request(1, Config({"KIND": "good", "CODE": 2})))
    end = time.monotonic() + 5
    while rig.pipeline.busy_s() == 0 and time.monotonic() < end:
        assert rig.pipeline.poll(0.02) == []
    assert rig.pipeline.busy_s() > 0
    numbers: list[int] = []
    while len(numbers) < 2 and time.monotonic() < end:
        numbers += [answer.number for answer in rig.pipeline.poll(1.0)]
    assert sorted(numbers) == [0, 1]


def test_a_failure_is_answered_while_a_smaller_number_compiles(rig: Rig) -> None:
    """Whoever owns it, its outcome is the same: the smaller number gets it when it turns out to be the same program."""
    wrong = {"KIND": "wrong", "CODE": 2}
    rig.pipeline.submit(Request(0, Config({**wrong, "COMPILE_MS": 700})))
    rig.pipeline.submit(Request(1, Config(wrong)))
    first = rig.pipeline.poll(5.0)
    assert [(answer.number, answer.evaluation.outcome) for answer in first] == [(1, Outcome.WRONG)]
    assert "duplicate_of" not in first[0].evaluation.evidence
    assert rig.pipeline.stages() == (1, 0), "the smaller number still compiles"
    (second,) = rig.pipeline.poll(5.0)
    assert (second.number, second.evaluation.outcome) == (0, Outcome.WRONG)
    assert second.evaluation.evidence["duplicate_of"] == 1


def test_who_is_overdue_holds_nobody_back(server: ForkServer) -> None:
    """Behind foreign compiles that hang others go on and are answered; the same program refers to a later one."""
    rig = Rig(server, compilers=1, patience_s=0.2)
    for number, config in enumerate(
        ({"CODE": 1, "COMPILE_MS": 2500}, {"CODE": 5, "COMPILE_MS": 2500}, {"CODE": 1}, {"CODE": 2})
    ):
        rig.pipeline.submit(Request(number, Config({"KIND": "good", **config})))
    found: dict[int, Evaluation] = {}
    end = time.monotonic() + 20
    while len(found) < 4 and time.monotonic() < end:
        found |= {answer.number: answer.evaluation for answer in rig.pipeline.poll(0.2)}
    rig.close()
    assert list(found) == [2, 3, 0, 1]
    assert [found[n].outcome for n in (2, 3, 0, 1)] == ["measured", "measured", "duplicate", "measured"]
    assert found[0].evidence["duplicate_of"] == 2


def test_a_hang_of_what_prints_says_so(rig: Rig) -> None:
    """Printing from every thread takes a GPU seconds: who is hung and calls printf is told what to do."""
    found = rig.answers({"KIND": "hangs", "PRINTS": 1}, {"KIND": "hangs"})
    assert [found[n].outcome for n in (0, 1)] == ["hung", "hung"]
    assert found[0].reason.startswith("still running after 0.5 s; it calls printf")
    assert "let one thread print" in found[0].reason
    assert found[1].reason == "still running after 0.5 s"


def test_what_failed_once_fails_again_without_running(rig: Rig) -> None:
    """A duplicate of a wrong or crashed candidate has that outcome, and names the trial that was answered first."""
    kinds = [("wrong", 5), ("poisons", 6), ("wrong", 5), ("poisons", 6)]
    found = rig.answers(*({"KIND": kind, "CODE": code, "COMPILE_MS": 150 * n} for n, (kind, code) in enumerate(kinds)))
    assert [found[n].outcome for n in (2, 3)] == [Outcome.WRONG, Outcome.CRASHED]
    assert found[2].evidence == {"check": "tolerance", "duplicate_of": 0}
    assert found[3].evidence == {"error": "CUDA_ERROR_ILLEGAL_ADDRESS", "duplicate_of": 1}
    assert [found[n].device_s for n in (2, 3)] == [0, 0]


def test_programs_of_earlier_sessions_are_not_run_again(server: ForkServer) -> None:
    """A fingerprint that the study knows answers at once with the trial that had it."""
    rig = Rig(server, {"code 3": (1234, Evaluation(Outcome.MEASURED, 5.0, fingerprint="code 3"))})
    found = rig.answers({"CODE": 3}, {"CODE": 4})
    assert (found[0].outcome, found[0].time_us) == (Outcome.DUPLICATE, 5.0)
    assert found[0].evidence["duplicate_of"] == 1234
    assert found[1].outcome is Outcome.MEASURED
    rig.close()


def test_a_kernel_that_raises_for_a_candidate_is_that_candidate_s_outcome(rig: Rig) -> None:
    """However many there are, before the compile or after it: each says what was raised, and the search goes on."""
    kinds = ["unsound", "unsound there"] * 2 + ["good"]
    found = rig.answers(*({"KIND": kind} for kind in kinds))
    assert [found[n].outcome for n in range(5)] == ["crashed"] * 4 + ["measured"]
    assert found[0].reason == "kernel.py: tensors raised ValueError: no such layout"
    assert found[1].reason == "kernel.py: reference raised ZeroDivisionError"


def test_a_compiler_that_cannot_be_loaded_ends_the_search_with_its_message(rig: Rig) -> None:
    """What the user must mend, and what is true for every candidate, comes out of `poll`."""
    rig.pipeline.submit(Request(0, Config({"KIND": "no_compiler", "CODE": 0})))
    with pytest.raises(DeviceError, match="cannot be loaded"):
        for _ in range(50):
            rig.pipeline.poll(0.2)


def test_a_fault_of_the_executor_is_excused_but_not_a_series(rig: Rig) -> None:
    """Candidates that make the executor stumble are recorded as crashed; eight in a row end the search."""
    found = rig.answers({"KIND": "broken"}, {"KIND": "good"}, {"KIND": "broken"})
    assert [found[n].outcome for n in range(3)] == ["crashed", "measured", "crashed"]
    assert "ValueError: a bug" in found[0].evidence["error"]
    with pytest.raises(InternalError, match="a bug"):
        for number in range(3, 11):
            rig.pipeline.submit(Request(number, Config({"KIND": "broken", "CODE": number})))
        for _ in range(40):
            rig.pipeline.poll(0.2)


def kept_at_work(server: ForkServer) -> float:
    """Run 64 candidates of 18 ms each for a caller that thinks 14 ms about each; return the executor's busy share."""
    compilers = WorkerPool(server, WorkerSpec("worker_handlers:Compiler", None), size=6)
    executors = WorkerPool(server, WorkerSpec("worker_handlers:Executor", None), size=1, depth=3)
    compilers.wait_ready(6)
    executors.wait_ready()
    pipeline = Pipeline(compilers, executors, job=whole_job_of, deadline_s=5.0, known={})
    pipeline.begin()
    submitted, answered = 0, 0
    began = time.perf_counter()
    while answered < 64:
        if submitted < min(64, answered + 24):
            thinks_until = time.perf_counter() + 0.014
            while time.perf_counter() < thinks_until:
                pass
            pipeline.submit(Request(submitted, Config({"KIND": "good", "CODE": submitted, **DURATIONS})))
            submitted += 1
        answered += len(pipeline.poll(0.0 if submitted < min(64, answered + 24) else 0.1))
    share = 64 * DURATIONS["RUN_MS"] / 1000 / (time.perf_counter() - began)
    pipeline.close()
    compilers.close()
    executors.close()
    return share


DURATIONS = {"COMPILE_MS": 60, "RUN_MS": 18}


def whole_job_of(work: CompiledRequest) -> tuple[int, Config, Built]:
    return work.number, work.request.config, work.built.without_ptx()


@pytest.mark.thorough
def test_the_executor_is_kept_at_work_while_the_caller_thinks(server: ForkServer) -> None:
    """Compiled candidates wait at the executor: it idles less than a fifth of the time, start and end included.

    Candidates take 18 ms and compiles 60 ms on six workers, as 400 ms do on forty; a third try is granted to a machine
    that is busy with something else.
    """
    before = sys.getswitchinterval()
    assert any(kept_at_work(server) > 0.8 for _ in range(3))
    assert sys.getswitchinterval() == before


def test_jobs_before_the_search_answer_or_raise(server: ForkServer) -> None:
    """One job alone gives its value, or what the handler raised."""
    pool = WorkerPool(server, WorkerSpec("worker_handlers:Compiler", None), size=1)
    assert run_single_job(pool, {"KIND": "good", "CODE": 1}, 10.0, "test").fingerprint == "code 1"
    with pytest.raises(KernelError):
        run_single_job(pool, {"KIND": "unsound"}, 10.0, "test")
    pool.close()


def test_a_job_alone_is_not_answered_by_what_a_pipeline_left_behind(server: ForkServer) -> None:
    """Candidates still on the executor when a search ends do not pass for the answer of a later job."""
    pool = WorkerPool(server, WorkerSpec("worker_handlers:Obedient", None), size=1, depth=2)
    pool.submit(3, ("echo", "a candidate"), 10.0)
    assert "the rates" == run_single_job(pool, ("echo", "the rates"), 10.0, "rates")
    pool.close()
