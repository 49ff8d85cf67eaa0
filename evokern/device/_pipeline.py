"""Compile pool → duplicates → execution → answers: what every device that executes candidates shares.

A thread moves candidates along while the caller thinks about the next ones. A candidate whose machine code and launches
another one has is not executed again. Of candidates that are the same the one with the smallest number owns the
measured time, however their compiles raced: it waits until every smaller number has been compiled. What lost its race
or failed does so whoever owns it, and is answered at once.

What a candidate does becomes its outcome, and so does a function of the kernel that raises for it alone. What this
machine does (a process killed from outside, memory that ran out) is no verdict: the candidate is asked about once more,
and where that fails too its trial is `lost`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from evokern.compile.records import Built, prints
from evokern.declaration.genes import Config
from evokern.device._ahead import FIRST_KEY, CompileAhead
from evokern.device.contract import Answer, ExecutorState, Request
from evokern.errors import DeviceError, EvokernError, InternalError, UsageError
from evokern.study.trial import Evaluation, Outcome, Span
from evokern.workers.host_memory import in_words
from evokern.workers.jobs import JobPool
from evokern.workers.pool import JobResult, wait

COMPILE_DEADLINE_S = 120.0
"""Seconds after which a compile counts as failed."""
FOREIGN_PATIENCE_S = 10.0
"""Seconds after which the compile of a foreign source holds back no other; kernels of a search take a few at most, and
there every compile is waited for, so that nothing that is recorded depends on how long it took."""
_FAULTS_IN_A_ROW = 8
"""Candidates in a row at which evokern itself may break: where one choice in four does it, three are no rarity."""
_LOST_IN_A_ROW = 8
"""Lost trials without an answer between them after which the machine is taken for unfit, and the search ends."""
_SWITCH_S = 5e-4
"""How soon the pipeline's thread gets its turn while the searching thread computes. Python's own 5 ms are paid again at
each of the thread's system calls: five or more of them for each candidate, which the device would spend idle."""


@dataclass(frozen=True)
class CompiledRequest:
    """One candidate to execute."""

    number: int
    """Trial number."""
    built: Built
    """What to run."""
    request: Request
    """What was asked."""


@dataclass
class _Claim:
    """Trials with one fingerprint."""

    members: dict[int, float] = field(default_factory=dict)
    """Trial → seconds of its own compile, of those not answered yet."""
    owner: int | None = None
    evaluation: Evaluation | None = None


@runtime_checkable
class _ToldApart(Protocol):
    """An executor pool whose members have names."""

    @property
    def names(self) -> Sequence[str]:
        """What each is called."""

    @property
    def states(self) -> Sequence[str]:
        """What keeps each from working, or happened to it."""


class Pipeline:
    """Moves candidates through a compile pool and an executor pool."""

    def __init__(
        self,
        compilers: JobPool,
        executors: JobPool,
        *,
        job: Callable[[CompiledRequest], Any],
        deadline_s: float,
        known: Mapping[str, tuple[int, Evaluation]],
        hang_s: float | None = None,
        ahead: int = 0,
    ) -> None:
        """Make a pipeline; `begin` starts it.

        Args:
            compilers: answers a `Config` with a `Built` or an `Evaluation`.
            executors: answers what `job` makes of a `CompiledRequest` with an `Evaluation`.
            job: turns work into an executor's job.
            deadline_s: seconds after which an executor that does not answer is killed.
            known: fingerprint → (trial, evaluation) of earlier sessions.
            hang_s: limit that a `hung` record names when an executor is killed; None for `deadline_s`.
            ahead: compiles that run at a time where some of them may be ahead of what was asked; 0 for none ahead.
        """
        self._compilers = compilers
        self._ahead = CompileAhead(compilers, ahead, COMPILE_DEADLINE_S)
        self._executors = executors
        self._told_apart = executors if isinstance(executors, _ToldApart) else None
        self._job = job
        self._deadline_s = deadline_s
        self._hang_s = deadline_s if hang_s is None else hang_s
        self._claims: dict[str, _Claim] = {
            fingerprint: _Claim(owner=number, evaluation=evaluation)
            for fingerprint, (number, evaluation) in known.items()
        }
        self._open: set[str] = set()
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer | EvokernError] = queue.SimpleQueue()
        self._asked: dict[int, Request] = {}
        self._compiling: set[int] = set()
        self._compiles: dict[int, Span] = {}
        self._running: dict[int, tuple[str, Built]] = {}
        self._busy_s = 0.0
        self._began = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque()
        self._counts: Counter[int] = Counter()
        self._counting = threading.Lock()
        self._faults = 0
        self._lost = 0
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._switch_s = sys.getswitchinterval()
        self._stop = False

    def begin(self) -> None:
        """Start moving candidates."""
        self._began = time.monotonic()
        sys.setswitchinterval(min(_SWITCH_S, self._switch_s))
        self._thread = threading.Thread(target=self._run, name="evokern-pipeline", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Accept one candidate; returns at once."""
        self._requests.put(request)
        self._wake()

    def compile_ahead(self, configs: Sequence[Config]) -> None:
        """Compile candidates that may be asked for next where workers idle, the likeliest first; returns at once."""
        self._ahead.want(configs)
        self._wake()

    def poll(self, timeout_s: float) -> list[Answer]:
        """Return the answers that are ready, waiting at most `timeout_s` for the first.

        Raises:
            EvokernError: the kernel folder, the compiler or the device cannot go on.
        """
        ready: list[Answer] = []
        try:
            item = self._answers.get(timeout=timeout_s) if timeout_s > 0 else self._answers.get_nowait()
            while True:
                if isinstance(item, EvokernError):
                    if not ready:
                        raise item
                    # What was answered before the end is handed out first.
                    self._answers.put(item)
                    return ready
                ready.append(item)
                item = self._answers.get_nowait()
        except queue.Empty:
            return ready

    def stages(self) -> tuple[int, int]:
        """Return how many candidates are being compiled, and how many wait for an executor or are with one."""
        return len(self._compiling) + self._requests.qsize(), len(self._running)

    def executors(self) -> tuple[ExecutorState, ...]:
        """Return how each executor stands, where they are told apart and several."""
        pool = self._told_apart
        if pool is None or len(pool.names) < 2:
            return ()
        now = time.monotonic()
        with self._counting:
            while self._recent and self._recent[0][0] < now - 60:
                self._counts[self._recent.popleft()[1]] -= 1
        scale = 60 / min(max(now - self._began, 1.0), 60.0)
        rates = (scale * self._counts[place] for place in range(len(pool.names)))
        return tuple(map(ExecutorState, pool.names, rates, pool.states))

    def busy_s(self) -> float:
        """Return the seconds in which candidates held an executor."""
        return self._busy_s

    def close(self) -> None:
        """Stop moving candidates; the pools stay their owner's. Safe to call twice."""
        self._stop = True
        self._wake()
        if self._thread is not None:
            self._thread.join(10.0)
            self._thread = None
            sys.setswitchinterval(self._switch_s)
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _wake(self) -> None:
        # A full pipe already wakes, and a closed one has nobody to wake.
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    def _run(self) -> None:
        try:
            while not self._stop:
                results = wait([self._compilers, self._executors], 1.0, also=[self._wake_read])
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                results += self._accept()
                for result in results:
                    if result.key <= FIRST_KEY:
                        compiled = self._ahead.finished(result)
                        if compiled is not None:
                            self._compiled(compiled)
                    elif result.key in self._running:
                        self._executed(result)
                    else:
                        self._compiled(result)
                if results or self._compilers.overdue():
                    self._release()
                self._ahead.feed(len(self._asked))
        except EvokernError as error:
            self._answers.put(error)
        except Exception as error:
            fault = InternalError(f"the pipeline broke: {type(error).__name__}: {error}")
            fault.__cause__ = error
            self._answers.put(fault)

    def _accept(self) -> list[JobResult]:
        """Take up what was submitted; returns the compiles of those that were compiled ahead."""
        ready: list[JobResult] = []
        with contextlib.suppress(queue.Empty):
            while True:
                request = self._requests.get_nowait()
                self._asked[request.number] = request
                self._compiling.add(request.number)
                compiled = self._ahead.asked(request.number, request.config)
                if isinstance(compiled, JobResult):
                    ready.append(compiled)
                elif not compiled:
                    self._compilers.submit(request.number, request.config, COMPILE_DEADLINE_S)
        return ready

    def _compiled(self, result: JobResult) -> None:
        self._compiling.discard(result.key)
        self._compiles[result.key] = _span("compile", result, "compiler")
        if result.status == "lost":
            self._answer(result.key, self._lost_evaluation(result, "compiler"))
        elif result.status == "raised":
            self._answer(result.key, self._raised(result.value))
        elif result.status in ("died", "overran"):
            how = f"{result.value}, twice" if result.status == "died" else f"still busy after {result.value:g} s"
            evidence = {"log": result.log or f"the compiler's process: {how}", "message": f"the compiler failed: {how}"}
            self._answer(result.key, Evaluation(Outcome.COMPILE_ERROR, evidence=evidence, compile_s=result.seconds))
        elif isinstance(result.value, Evaluation):
            self._answer(result.key, result.value)
        else:
            self._claim(result.key, result.value)

    def _claim(self, number: int, built: Built) -> None:
        claim = self._claims.setdefault(built.fingerprint, _Claim())
        first = not claim.members and claim.owner is None
        claim.members[number] = built.compile_s
        self._open.add(built.fingerprint)
        if first:
            self._execute(number, built)

    def _execute(self, number: int, built: Built) -> None:
        self._running[number] = (built.fingerprint, built)
        job = self._job(CompiledRequest(number, built, self._asked[number]))
        self._executors.submit(number, job, self._deadline_s)

    def _executed(self, result: JobResult) -> None:
        fingerprint, built = self._running.pop(result.key)
        if result.status == "lost":
            self._lose(result, fingerprint, built)
            return
        with self._counting:
            self._recent.append((time.monotonic(), result.member))
            self._counts[result.member] += 1
        self._lost = 0
        if result.status == "done":
            self._faults = 0
            evaluation: Evaluation = result.value
        elif result.status == "raised":
            evaluation = replace(self._raised(result.value), device_s=result.seconds)
        elif result.status == "overran":
            evaluation = Evaluation(Outcome.HUNG, evidence={"limit_s": self._hang_s}, device_s=result.seconds)
        else:
            evidence = {"error": f"worker process {result.value}", "log": result.log}
            evaluation = Evaluation(Outcome.CRASHED, evidence=evidence, device_s=result.seconds)
        # A limit in seconds is a GPU's: the simulated chip counts instructions, and printing is none of those there.
        if evaluation.outcome is Outcome.HUNG and evaluation.evidence["limit_s"] and prints(built):
            evaluation = replace(evaluation, evidence={**evaluation.evidence, "prints": True})
        self._busy_s += evaluation.device_s
        whole = _span("evaluate", result, "executor")
        spans = (whole, *(replace(span, worker=whole.worker) for span in evaluation.spans))
        self._claims[fingerprint].evaluation = replace(
            evaluation, fingerprint=fingerprint, resources=evaluation.resources or built.resources, spans=spans
        )

    def _raised(self, error: EvokernError) -> Evaluation:
        """Return the outcome of a candidate for which a function of the kernel, or evokern itself, raised.

        Raises:
            EvokernError: compiler or device cannot be used at all, or evokern breaks at one candidate after the other.
        """
        first = str(error).splitlines()[0]
        if isinstance(error, UsageError) and not isinstance(error, DeviceError):
            # The default candidate ran before the search began, so that this is about one candidate.
            evidence = {"error": "declaration", "message": first, "diagnosis": f"kernel.py: {first}"}
            return Evaluation(Outcome.CRASHED, evidence=evidence)
        self._faults += 1
        if not isinstance(error, InternalError) or self._faults >= _FAULTS_IN_A_ROW:
            raise error
        return Evaluation(Outcome.CRASHED, evidence={"error": first, "log": str(error)})

    def _lose(self, result: JobResult, fingerprint: str, built: Built) -> None:
        """Give up a trial whose workers died; of others with the same program the next one is executed."""
        claim = self._claims[fingerprint]
        del claim.members[result.key]
        self._busy_s += result.seconds
        self._answer(result.key, self._lost_evaluation(result, "worker"))
        if claim.members:
            self._execute(min(claim.members), built)
        else:
            del self._claims[fingerprint]
            self._open.discard(fingerprint)

    def _lost_evaluation(self, result: JobResult, what: str) -> Evaluation:
        """Return the outcome of a candidate on which two processes died.

        Raises:
            DeviceError: so many in a row that nothing can be expected of going on.
        """
        reason = f"its {what} processes died, and it cannot be the cause: {result.value}; {in_words(result.memory)}"
        self._lost += 1
        if self._lost > _LOST_IN_A_ROW:
            raise DeviceError(
                f"{self._lost} candidates in a row were lost: the last one's {what} processes died ({result.value}; "
                f"{in_words(result.memory)}); free memory, or end what kills them, and run the same command again"
            )
        evidence = {"reason": reason, "memory": dict(result.memory), "log": result.log}
        return Evaluation(Outcome.LOST, evidence=evidence, device_s=result.seconds if what == "worker" else 0.0)

    def _release(self) -> None:
        """Answer every trial whose evaluation is known, measured ones once their owner can no longer change.

        Who owns what has no time is told by evidence alone. On two H200s nobody was answered in 32 of 62 s, each time
        because a compile took several times as long as most, although nine in ten of what waited behind it had lost
        its race or failed.
        """
        # Who is overdue holds nobody back: should it be the same program, it is the duplicate of a later one.
        first_unknown = min(self._compiling - self._compilers.overdue(), default=None)
        for fingerprint in list(self._open):
            claim = self._claims[fingerprint]
            if claim.evaluation is None:
                continue
            if claim.owner is None:
                measured = claim.evaluation.outcome is Outcome.MEASURED
                if measured and first_unknown is not None and first_unknown < min(claim.members):
                    continue
                claim.owner = min(claim.members)
            for number in sorted(claim.members):
                own = replace(claim.evaluation, compile_s=claim.members[number])
                self._answer(number, own if number == claim.owner else duplicate_of(claim.owner, own))
            claim.members.clear()
            self._open.discard(fingerprint)

    def _answer(self, number: int, evaluation: Evaluation) -> None:
        self._asked.pop(number)
        spans = (self._compiles.pop(number), *evaluation.spans)
        self._answers.put(Answer(number, replace(evaluation, spans=spans)))


def _span(phase: str, result: JobResult, worker: str) -> Span:
    return Span(phase, result.began_s, result.seconds, f"{worker} {result.worker}")


def duplicate_of(owner: int, evaluation: Evaluation) -> Evaluation:
    """Return what a trial gets whose program another trial has.

    A measured time is shared as `duplicate`. What failed fails in the same way: the outcome stays, and `duplicate_of`
    names the trial that was answered first.
    """
    outcome = Outcome.DUPLICATE if evaluation.outcome is Outcome.MEASURED else evaluation.outcome
    evidence = {**evaluation.evidence, "duplicate_of": owner}
    return replace(evaluation, outcome=outcome, evidence=evidence, device_s=0.0, spans=())
