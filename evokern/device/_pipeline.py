"""Pipeline of every device that runs candidates: compilation, duplicate detection, execution and results.

A thread moves candidates along while the caller proposes the next ones. A candidate with the same machine code and
launches as another is not executed again. Among identical candidates the one with the lowest trial number is the
original and gets the measured time. It is reported only after every lower trial number has been compiled, so the order
in which compiles finish does not matter. A candidate that failed or lost its race is reported at once.

A candidate's behaviour determines its outcome, and so does an exception that a function in `kernel.py` raises for this
candidate alone. A failure of the machine (a killed process, exhausted memory) is not a verdict on the candidate. The
candidate is retried once; if the retry fails too, the trial is `lost`.
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
from evokern.errors import CodeChangedError, DeviceError, EvokernError, InternalError, UsageError
from evokern.study.trial import Evaluation, Outcome, Span
from evokern.workers.host_memory import memory_text
from evokern.workers.jobs import JobPool
from evokern.workers.pool import JobResult, wait

COMPILE_DEADLINE_S = 120.0
"""Timeout of one compile, in seconds."""
EXTERNAL_COMPILE_WAIT_S = 10.0
"""Seconds after which the compile of an external source no longer delays other results. Compiles of a search are always
awaited, so that recorded results do not depend on compile times."""
_MAX_CONSECUTIVE_ERRORS = 8
"""Number of consecutive internal errors that end a search. Three are common if a quarter of the values cause one."""
_MAX_CONSECUTIVE_LOST = 8
"""Number of consecutive lost trials after which the machine counts as unusable and the search ends."""
_SWITCH_S = 5e-4
"""Thread switch interval during a search, in seconds. Python's default of 5 ms delays the pipeline's thread at each
system call. It makes five or more per candidate, while the device idles."""


@dataclass(frozen=True)
class CompiledRequest:
    """Request whose candidate is compiled and ready to run."""

    number: int
    """Trial number."""
    built: Built
    """Compiled program and launches."""
    request: Request
    """The original request."""


@dataclass
class _DuplicateGroup:
    """Trials that share one fingerprint."""

    members: dict[int, float] = field(default_factory=dict)
    """Trial → seconds of its own compile, for trials that were not reported yet."""
    owner: int | None = None
    evaluation: Evaluation | None = None


@runtime_checkable
class _NamedExecutors(Protocol):
    """Executor pool with named members."""

    @property
    def names(self) -> Sequence[str]:
        """Name of each member."""

    @property
    def states(self) -> Sequence[str]:
        """Reason why each member is idle, or its last event."""


class Pipeline:
    """Pipeline from a compile pool to an executor pool."""

    def __init__(
        self,
        compilers: JobPool,
        executors: JobPool,
        *,
        job: Callable[[CompiledRequest], Any],
        deadline_s: float,
        known: Mapping[str, tuple[int, Evaluation]],
        hang_s: float | None = None,
        overran: Evaluation | None = None,
        ahead: int = 0,
    ) -> None:
        """Create a pipeline; `begin` starts it.

        Args:
            compilers: pool that compiles a `Config` to a `Built`, or returns an `Evaluation`.
            executors: pool that runs the jobs made by `job` and returns an `Evaluation` for each.
            job: function that converts a `CompiledRequest` to an executor's job.
            deadline_s: seconds after which an unresponsive executor is killed.
            known: fingerprint → (trial, evaluation) of earlier sessions.
            hang_s: limit recorded for `hung` when an executor is killed; None for `deadline_s`.
            overran: result of a candidate whose executor is killed; None for `hung`.
            ahead: maximum number of concurrent compiles when compiling ahead; 0 disables compiling ahead.
        """
        self._compilers = compilers
        self._ahead = CompileAhead(compilers, ahead, COMPILE_DEADLINE_S)
        self._executors = executors
        self._named_executors = executors if isinstance(executors, _NamedExecutors) else None
        self._job = job
        self._deadline_s = deadline_s
        limit_s = deadline_s if hang_s is None else hang_s
        self._overran = overran or Evaluation(Outcome.HUNG, evidence={"limit_s": limit_s})
        self._duplicate_groups: dict[str, _DuplicateGroup] = {
            fingerprint: _DuplicateGroup(owner=number, evaluation=evaluation)
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
        """Accept one candidate; returns immediately."""
        self._requests.put(request)
        self._wake()

    def compile_ahead(self, configs: Sequence[Config]) -> None:
        """Compile likely next candidates on idle workers, the likeliest first; returns immediately."""
        self._ahead.replace_candidates(configs)
        self._wake()

    def poll(self, timeout_s: float) -> list[Answer]:
        """Return the results that are ready; wait at most `timeout_s` for the first.

        Raises:
            EvokernError: the kernel folder, the compiler or the device is unusable.
        """
        ready: list[Answer] = []
        try:
            item = self._answers.get(timeout=timeout_s) if timeout_s > 0 else self._answers.get_nowait()
            while True:
                if isinstance(item, EvokernError):
                    if not ready:
                        raise item
                    # Return the results that precede the error first.
                    self._answers.put(item)
                    return ready
                ready.append(item)
                item = self._answers.get_nowait()
        except queue.Empty:
            return ready

    def stages(self) -> tuple[int, int]:
        """Return the number of candidates being compiled, and the number waiting for an executor or running."""
        return len(self._compiling) + self._requests.qsize(), len(self._running)

    def executors(self) -> tuple[ExecutorState, ...]:
        """Return the state of each executor; empty for a single or unnamed executor."""
        pool = self._named_executors
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
        """Return the seconds during which candidates occupied an executor."""
        return self._busy_s

    def close(self) -> None:
        """Stop moving candidates; the pools stay open. Can be called twice."""
        self._stop = True
        self._wake()
        if self._thread is not None:
            self._thread.join(10.0)
            self._thread = None
            sys.setswitchinterval(self._switch_s)
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _wake(self) -> None:
        # A full pipe wakes the thread anyway, and a closed pipe has no reader.
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
            fault = InternalError(f"internal error in the pipeline: {type(error).__name__}: {error}")
            fault.__cause__ = error
            self._answers.put(fault)

    def _accept(self) -> list[JobResult]:
        """Accept new requests; return the compile results of those that were compiled ahead."""
        ready: list[JobResult] = []
        with contextlib.suppress(queue.Empty):
            while True:
                request = self._requests.get_nowait()
                self._asked[request.number] = request
                self._compiling.add(request.number)
                compiled = self._ahead.claim(request.number, request.config)
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
            how = f"{result.value}, twice" if result.status == "died" else f"timeout after {result.value:g} s"
            evidence = {
                "log": result.log or f"the compiler process failed: {how}",
                "message": f"the compiler failed: {how}",
            }
            self._answer(result.key, Evaluation(Outcome.COMPILE_ERROR, evidence=evidence, compile_s=result.seconds))
        elif isinstance(result.value, Evaluation):
            self._answer(result.key, result.value)
        else:
            self._claim(result.key, result.value)

    def _claim(self, number: int, built: Built) -> None:
        claim = self._duplicate_groups.setdefault(built.fingerprint, _DuplicateGroup())
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
            evaluation = replace(self._overran, device_s=result.seconds)
        else:
            evidence = {"error": f"worker process {result.value}", "log": result.log}
            evaluation = Evaluation(Outcome.CRASHED, evidence=evidence, device_s=result.seconds)
        # Only a GPU has a limit in seconds. The simulated chip counts instructions, and prints do not count there.
        if evaluation.outcome is Outcome.HUNG and evaluation.evidence["limit_s"] and prints(built):
            evaluation = replace(evaluation, evidence={**evaluation.evidence, "prints": True})
        self._busy_s += evaluation.device_s
        whole = _span("evaluate", result, "executor")
        spans = (whole, *(replace(span, worker=whole.worker) for span in evaluation.spans))
        self._duplicate_groups[fingerprint].evaluation = replace(
            evaluation, fingerprint=fingerprint, resources=evaluation.resources or built.resources, spans=spans
        )

    def _raised(self, error: EvokernError) -> Evaluation:
        """Return the outcome of a candidate for which a kernel function, or evokern itself, raised an exception.

        Raises:
            EvokernError: the compiler or the device is unusable, or evokern failed for several candidates in a row.
        """
        first = str(error).splitlines()[0]
        if isinstance(error, UsageError) and not isinstance(error, (DeviceError, CodeChangedError)):
            # The default candidate ran before the search began, so the error concerns this candidate only.
            evidence = {"error": "declaration", "message": first, "diagnosis": f"kernel.py: {first}"}
            return Evaluation(Outcome.CRASHED, evidence=evidence)
        self._faults += 1
        if not isinstance(error, InternalError) or self._faults >= _MAX_CONSECUTIVE_ERRORS:
            raise error
        return Evaluation(Outcome.CRASHED, evidence={"error": first, "log": str(error)})

    def _lose(self, result: JobResult, fingerprint: str, built: Built) -> None:
        """Report a trial as lost; execute the next trial that has the same program."""
        claim = self._duplicate_groups[fingerprint]
        del claim.members[result.key]
        self._busy_s += result.seconds
        self._answer(result.key, self._lost_evaluation(result, "worker"))
        if claim.members:
            self._execute(min(claim.members), built)
        else:
            del self._duplicate_groups[fingerprint]
            self._open.discard(fingerprint)

    def _lost_evaluation(self, result: JobResult, what: str) -> Evaluation:
        """Return the outcome of a candidate whose process died twice.

        Raises:
            DeviceError: too many trials in a row were lost.
        """
        memory = memory_text(result.memory)
        reason = f"its {what} processes died for a reason outside the candidate: {result.value}; {memory}"
        self._lost += 1
        if self._lost > _MAX_CONSECUTIVE_LOST:
            raise DeviceError(
                f"{self._lost} candidates in a row were lost: the {what} processes of the last one died "
                f"({result.value}; {memory_text(result.memory)}); free memory or stop the program that kills them, "
                "then run the same command again"
            )
        evidence = {"reason": reason, "memory": dict(result.memory), "log": result.log}
        return Evaluation(Outcome.LOST, evidence=evidence, device_s=result.seconds if what == "worker" else 0.0)

    def _release(self) -> None:
        """Report every trial whose evaluation is known; measured trials only once their original is final.

        Trials without a time need only their evidence, so they do not wait for the original
        (docs/lab/2026-11-27-timing.md#release-of-results).
        """
        # An overdue compile delays no other result. If it yields a known program, it becomes the duplicate of a later
        # trial.
        first_unknown = min(self._compiling - self._compilers.overdue(), default=None)
        for fingerprint in list(self._open):
            claim = self._duplicate_groups[fingerprint]
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
    """Return the evaluation of a trial that has the same program as another trial.

    A measured time is shared as `duplicate`. A failure is repeated with the same outcome, and `duplicate_of` names the
    original trial.
    """
    outcome = Outcome.DUPLICATE if evaluation.outcome is Outcome.MEASURED else evaluation.outcome
    evidence = {**evaluation.evidence, "duplicate_of": owner}
    return replace(evaluation, outcome=outcome, evidence=evidence, device_s=0.0, spans=())
