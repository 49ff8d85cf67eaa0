"""A warm device that evaluates foreign sources: started once, then asked as often as wanted."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evokern.analysis.check.folder import known_problems, studies_of
from evokern.analysis.evaluate.result import SourceResult
from evokern.analysis.evaluate.sources import Source, given_source
from evokern.declaration.feasibility import check, feasible_space, launches_of
from evokern.declaration.foreign import Extent, ForeignCandidate, ForeignSource, LaunchGeometry
from evokern.declaration.genes import Config, Value
from evokern.declaration.kernel import Kernel, Problem
from evokern.device import Answer, Device, Request, StartReport, Task
from evokern.device.opening import open_device
from evokern.errors import DeviceError, InternalError, KernelError, UsageError
from evokern.study.discovery import find_kernel
from evokern.study.settings import Study
from evokern.study.trial import Evaluation, Outcome

SILENT_S = 600.0
"""Seconds without an answer after which a device is given up."""
_NOTHING = ForeignSource("", "")
_CLOSED = "this evaluator is closed, and its processes are gone; make another one"
OnResult = Callable[[SourceResult], None]
"""Called with each result as it comes, in no certain order."""


class Evaluator:
    """Evaluates foreign sources of one kernel at one problem on one device.

    Everything that a source does happens in processes of its own kind: compile workers ahead of an executor, the ones
    that a search uses. A crash, a hang or an exhausted memory ends such a process and is that source's outcome.
    Nothing is written to a database; compiled programs go to the cache as those of a search do.

        with evokern.Evaluator("rmsnorm", problem="8192,8192") as judge:
            result = judge.evaluate(Path("candidate.cu"))
    """

    def __init__(
        self,
        kernel: str | Path | Kernel,
        *,
        problem: str | Mapping[str, Value | bool] | None = None,
        device: str | Device = "auto",
        genes: Mapping[str, Value] | None = None,
        grid: Extent | None = None,
        block: Extent | None = None,
        shared_bytes: int | None = None,
        trust: bool = False,
        study: Study | None = None,
        best_us: float | None = None,
    ) -> None:
        """Find kernel, problem and device; the device starts with the first source, or with the `with` statement.

        Args:
            kernel: name or folder of the kernel whose signature the sources have, or the kernel itself.
            problem: shapes and options, as `2,8,512,64`; None for that of the kernel's first study, else its first
                small problem.
            device: `auto`, `cuda:N`, `sim:CHIP`, or a device that was not started.
            genes: gene → value, where the kernel's `launches` and macros are to have another one than the default.
            grid: blocks of the launch, instead of what `launches` says.
            block: threads of a block, instead of what `launches` says.
            shared_bytes: dynamic shared memory of a block, instead of what `launches` says.
            trust: remember that the kernel folder's `kernel.py` may run.
            study: whose gate, timing and simulation settings hold; None for the kernel's first study.
            best_us: the time to beat, in µs. A simulated device runs at the problem all of what is predicted to be
                faster, as far as that is affordable, and of the rest some blocks. None: every source is run so far.

        Raises:
            UsageError: kernel, problem, genes or device are not usable as asked.
        """
        self.kernel = kernel if isinstance(kernel, Kernel) else find_kernel(str(kernel), trust=trust)
        self.problem = _problem(self.kernel, problem)
        self._device = open_device(device) if isinstance(device, str) else device
        if not self._device.verifiable:
            raise DeviceError(f"{self._device.identity} replays answers and runs no kernel; name cuda:N or sim:CHIP")
        self._geometry = LaunchGeometry(grid, block, shared_bytes)
        self._like, self._best_us = study, best_us
        self._report: StartReport | None = None
        self._closed = False
        self._names: list[str] = []
        try:
            self._config = self._chosen(genes or {})
            self._without_effect = self.kernel.space.without_effect(self._config, genes or {})
            self._candidate(_NOTHING)
        except BaseException:
            self.close()  # it has begun to start processes
            raise

    @property
    def device(self) -> str:
        """Model of the device."""
        return self._device.identity

    @property
    def predicted(self) -> bool:
        """Whether times are predicted."""
        return self._device.predicted

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know: genes asked for that do not count, and what the device says of itself."""
        return (*self._without_effect, *self.start().notes)

    @property
    def baseline(self) -> tuple[str, float] | None:
        """Name and time in µs of the fastest baseline that was right; None where none ran."""
        timed = [(one.name, one.timings[0].median_us) for one in self.start().baselines if not one.error]
        return min(timed, key=lambda one: one[1], default=None)

    def start(self) -> StartReport:
        """Start the device: workers, the gate's power, the baselines. Safe to call twice.

        Raises:
            UsageError: device, compiler, kernel folder or workload cannot work as asked.
        """
        if self._report is None:
            if self._closed:
                raise UsageError(_CLOSED)
            study = _study(self.kernel, self.problem, self._like)
            task = Task(self.kernel, (self.problem,), study, secret=secrets.randbits(62), foreign=True)
            try:
                self._report = self._device.start(task)
            except BaseException:
                self.close()
                raise
        return self._report

    def evaluate(self, source: Source, on_result: OnResult | None = None) -> SourceResult:
        """Evaluate one source.

        Args:
            source: a path, the text itself, or a named source.
            on_result: called with the result.

        Raises:
            UsageError: the source cannot be read, or the device cannot work.
        """
        (result,) = self.evaluate_all([source], on_result)
        return result

    def evaluate_all(self, sources: Iterable[Source], on_result: OnResult | None = None) -> list[SourceResult]:
        """Evaluate sources side by side: while one is executed, those behind it are compiled.

        Args:
            sources: paths, texts or named sources; asked for the next one while few are in flight.
            on_result: called with each result as it comes.

        Returns:
            Results in the order of the sources.

        Raises:
            UsageError: a source cannot be read, or the device cannot work.
        """
        found: dict[int, SourceResult] = {}
        for number, result in self._results(sources):
            found[number] = result
            if on_result is not None:
                on_result(result)
        return [found[number] for number in sorted(found)]

    def close(self) -> None:
        """Stop every process; safe to call twice."""
        self._closed = True
        self._device.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def facts(self) -> dict[str, Any]:
        """Return what all results share, as JSON values."""
        baseline = self.baseline
        return {
            "kernel": self.kernel.name,
            "problem": self.problem.key,
            "device": self.device,
            "predicted": self.predicted,
            "baseline": None if baseline is None else {"name": baseline[0], "time_us": baseline[1]},
        }

    def _results(self, sources: Iterable[Source]) -> Iterator[tuple[int, SourceResult]]:
        """Yield number and result of each source, as they come."""
        self.start()
        if self._closed:
            raise UsageError(_CLOSED)
        waiting: set[int] = set()
        first = len(self._names)
        candidates: Iterable[ForeignCandidate] = (
            self._candidate(given_source(source, number)) for number, source in enumerate(sources, first)
        )
        if isinstance(sources, Sequence):
            # Known as a whole: a mistake in the last one is told before the first one costs time.
            candidates = list(candidates)
        for number, candidate in enumerate(candidates, first):
            self._names.append(candidate.source.name)
            violation = check(self.kernel, candidate, [self.problem], self._device.profile)
            if violation is not None:
                answer = Answer(number, Evaluation(Outcome.INFEASIBLE, evidence=violation.evidence))
                yield number, self._result(answer)
                continue
            self._device.submit(Request(number, candidate, self._best_us))
            waiting.add(number)
            yield from self._collected(waiting, self._device.window - 1)
        yield from self._collected(waiting, 0)

    def _collected(self, waiting: set[int], most: int) -> Iterator[tuple[int, SourceResult]]:
        """Yield what is ready, and wait until at most so many sources are in flight.

        Raises:
            InternalError: no answer has come for long.
        """
        last = time.monotonic()
        while True:
            for answer in self._device.poll(1.0 if len(waiting) > most else 0.0):
                last = time.monotonic()
                if answer.number in waiting:  # others are of a call that its caller broke off
                    waiting.discard(answer.number)
                    yield answer.number, self._result(answer)
            if len(waiting) <= most:
                return
            if time.monotonic() - last > SILENT_S:
                raise InternalError(f"{self.device} did not answer for {SILENT_S:g} s")

    def _result(self, answer: Answer) -> SourceResult:
        owner = answer.evaluation.evidence.get("duplicate_of")
        return SourceResult(
            self._names[answer.number],
            answer.evaluation,
            self.predicted,
            self.baseline,
            None if owner is None else self._names[owner],
            self.kernel.fields,
        )

    def _candidate(self, source: ForeignSource) -> ForeignCandidate:
        """Return a source as a candidate, with the genes and the launch that it brings along.

        Raises:
            UsageError: there is no such gene or value, or nobody can tell what the geometry is for.
        """
        config = self.kernel.space.with_changes(self._config, source.genes) if source.genes else self._config
        candidate = ForeignCandidate(config, source, self._geometry.changed(source.geometry))
        if candidate.geometry.given:
            launches_of(self.kernel, candidate, self.problem)
        return candidate

    def _chosen(self, genes: Mapping[str, Value]) -> Config:
        """Return the configuration that macros and launches are made from.

        With nothing asked for it is the default candidate, or where that cannot run here a feasible one near it.
        """
        space = self.kernel.space
        if genes:
            return space.with_changes(space.default(), genes)
        bound = feasible_space(self.kernel, [self.problem], self._device.profile)
        return bound.first_feasible() or space.default()


def _study(kernel: Kernel, problem: Problem, like: Study | None) -> Study:
    """Return the settings: gate, timing and simulation as in a study or the kernel's first one, without racing."""
    name, folder, problems = f"evaluate-{kernel.name}", str(kernel.folder), (dict(problem),)
    like = like or next(studies_of(kernel), None) or Study(name, folder, problems)
    # Each source is timed to the end, whatever others took.
    timing = replace(like.timing, race=0.0)
    return Study(name, folder, problems, gate=like.gate, timing=timing, simulation=like.simulation)


def _problem(kernel: Kernel, given: str | Mapping[str, Value | bool] | None) -> Problem:
    """Return the problem that was asked for, or the first that is known of the kernel.

    Raises:
        KernelError: the kernel does not take it, or none is known.
    """
    if given is not None:
        return kernel.problem(given)
    known = known_problems(kernel)
    if not known:
        fields = ",".join(kernel.field_names)
        raise KernelError(f"no problem of kernel {kernel.name} is known; name one with --problem {fields}")
    return known[0]
