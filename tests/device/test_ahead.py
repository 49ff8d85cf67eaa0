"""Compiles ahead: what is asked for later is there already, no answer changes, and who asked goes first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from engine_helpers import small_table, study

from evokern.declaration.genes import Config
from evokern.device._ahead import FIRST_KEY, MAX_KEPT, CompileAhead
from evokern.device._pipeline import CompiledRequest, Pipeline
from evokern.device.contract import Request
from evokern.device.recorded.table import TableDevice
from evokern.samplers import History, TrialSchedule, make_sampler
from evokern.search.loop import Limits, Loop, NullRecorder
from evokern.study.trial import Evaluation
from evokern.workers.jobs import JobResult
from evokern.workers.pool import ForkServer, WorkerPool, WorkerSpec

WORKERS = 3


def config(code: int, kind: str = "good", **more: Any) -> Config:
    return Config({"KIND": kind, "CODE": code, **more})


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    server = ForkServer(preload=("worker_handlers",))
    compilers = WorkerPool(server, WorkerSpec("worker_handlers:Compiler", None), size=WORKERS)
    executors = WorkerPool(server, WorkerSpec("worker_handlers:Executor", None), size=1)

    def job_of(work: CompiledRequest) -> tuple[int, Config]:
        return work.number, work.request.config

    made = Pipeline(compilers, executors, job=job_of, deadline_s=5.0, known={}, ahead=WORKERS)
    made.begin()
    yield made
    made.close()
    compilers.close()
    executors.close()
    server.close()


def answered(pipeline: Pipeline, requests: Sequence[Request]) -> dict[int, Evaluation]:
    for request in requests:
        pipeline.submit(request)
    found: dict[int, Evaluation] = {}
    end = time.monotonic() + 60
    while len(found) < len(requests) and time.monotonic() < end:
        found |= {answer.number: answer.evaluation for answer in pipeline.poll(1.0)}
    return found


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_guess_that_is_asked_for_was_compiled_before(pipeline: Pipeline) -> None:
    """A program that is there, or on its way, is taken over; the answer is that of any other trial."""
    done, coming = config(0), config(1, COMPILE_MS=400)
    pipeline.compile_ahead([done, coming])
    until(lambda: done in pipeline._ahead._kept and coming in pipeline._ahead._running.values())
    before = time.monotonic()
    found = answered(pipeline, [Request(0, done), Request(1, coming), Request(2, config(2))])
    assert ["measured"] * 3 == [found[number].outcome for number in range(3)]
    assert [True, True, False] == [found[number].spans[0].began_s < before for number in range(3)]
    assert ["code 0", "code 1", "code 2"] == [found[number].fingerprint for number in range(3)]


def test_a_guess_fails_as_the_trial_would(pipeline: Pipeline) -> None:
    """What was refused or killed the compiler ahead of time is the same outcome when it is asked for."""
    kinds = ("refused", "compiler_dies", "unsound")
    guesses = [config(number, kind) for number, kind in enumerate(kinds)]
    pipeline.compile_ahead(guesses)
    until(lambda: not pipeline._ahead._running and guesses[0] in pipeline._ahead._kept)
    found = answered(pipeline, [Request(number, guess) for number, guess in enumerate(guesses)])
    assert ["compile_error", "compile_error", "crashed"] == [found[number].outcome for number in range(3)]
    begun = pipeline._ahead._key
    pipeline.compile_ahead(guesses[1:])
    assert "measured" == answered(pipeline, [Request(3, config(3))])[3].outcome
    assert begun == pipeline._ahead._key  # what fails ahead of time is not guessed again


def test_a_guess_with_a_known_program_is_a_duplicate(pipeline: Pipeline) -> None:
    """The trial with the smallest number owns a program, however early another compile of it was."""
    pipeline.compile_ahead([config(7, WIDTH=2)])
    until(lambda: bool(pipeline._ahead._kept))
    found = answered(pipeline, [Request(0, config(7, WIDTH=1, COMPILE_MS=100)), Request(1, config(7, WIDTH=2))])
    assert ["measured", "duplicate"] == [found[number].outcome for number in range(2)]


class FakePool:
    """A pool that keeps what it was given."""

    def __init__(self) -> None:
        self.given: dict[int, Config] = {}

    def submit(self, key: int, job: Config, deadline_s: float) -> None:
        self.given[key] = job


def test_who_asked_goes_first_and_what_is_kept_is_bounded() -> None:
    """A worker is left to each candidate that was asked for; the latest guesses replace those that wait."""
    pool = FakePool()
    ahead = CompileAhead(pool, 4, 1.0)  # type: ignore[arg-type]
    ahead.replace_candidates([config(number) for number in range(6)])
    ahead.feed(asked=4)
    assert {} == pool.given
    ahead.feed(asked=2)
    assert [config(0), config(1)] == list(pool.given.values())
    ahead.replace_candidates([config(1), config(9)])
    assert ahead.finished(JobResult(FIRST_KEY, "done", "program 0", 0.1)) is None
    ahead.feed(asked=2)
    assert [config(0), config(1), config(9)] == list(pool.given.values())
    taken = ahead.claim(12, config(0))
    assert isinstance(taken, JobResult)
    assert (12, "program 0") == (taken.key, taken.value)
    assert ahead.claim(13, config(1))
    assert not ahead.claim(14, config(0))
    lost = JobResult(FIRST_KEY - 1, "lost", "killed", 0.1)
    assert ahead.finished(lost) is None
    assert config(1) == pool.given[13]  # by itself, as if nothing had been guessed
    for number in range(100, 100 + 2 * MAX_KEPT):
        ahead.replace_candidates([config(number)])
        ahead.feed(asked=0)
        assert ahead.finished(JobResult(min(pool.given), "done", number, 0.1)) is None
    assert MAX_KEPT == len(ahead._kept)
    assert config(99 + 2 * MAX_KEPT) in ahead._kept


class Ahead(TableDevice):
    """A recording that keeps what it might compile ahead."""

    def __init__(self) -> None:
        super().__init__(small_table())
        self.guessed: list[Config] = []
        self.hits = 0

    def compile_ahead(self, configs: Sequence[Config]) -> None:
        self.guessed += configs

    def submit(self, request: Request) -> None:
        self.hits += request.config in self.guessed
        super().submit(request)


def test_a_search_tells_what_it_may_ask_for_and_proposes_the_same() -> None:
    """Guesses are feasible, many of them are asked for, and the trials are those of a device that asks for none."""
    from evokern.device import Task

    def trials(device: TableDevice) -> list[Config]:
        table, schedule = small_table(), TrialSchedule(16)
        history = History(table.space())
        sampler = make_sampler("evo", table.space(), {}, 3, schedule)
        loop = Loop(history, sampler, device, NullRecorder(), Limits(schedule, trials=60), table.violation)
        device.start(Task(table.kernel(), (), study()))
        loop.run()
        device.close()
        return [proposal.config for proposal in history.proposals]

    ahead = Ahead()
    found = trials(ahead)
    assert trials(TableDevice(small_table())) == found
    space = small_table().space()
    assert ahead.guessed
    assert all(space.feasible(guess) for guess in ahead.guessed)
    assert ahead.hits >= 0.3 * len(found)
