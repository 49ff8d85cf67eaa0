"""Evaluator of external sources on a device that is started once and then reused."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evokern.analysis.check.folder import known_problems, studies_of
from evokern.analysis.evaluate.result import Source, SourceResult, given_source
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
"""Time in seconds without a result after which a device counts as failed."""
_NOTHING = ForeignSource("", "")
_CLOSED = "this evaluator is closed and its processes have ended; create a new evaluator"
OnResult = Callable[[SourceResult], None]
"""Function called with each result as it arrives, in any order."""


class Evaluator:
    """Evaluator of external sources for one kernel, one problem and one device.

    Sources are compiled and executed in the same separate worker processes as in a search. If a source crashes, hangs
    or exhausts memory, only its worker process ends, and the source gets that outcome. Results are not written to a
    database. Compiled programs are stored in the same cache as those of a search.

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
        """Find the kernel, problem and device; the device starts with the first source or the `with` statement.

        Args:
            kernel: the kernel whose signature the sources share, or its name or folder.
            problem: shapes and options such as `2,8,512,64`; None for the problem of the kernel's first study or, if it
                has no study, its first small problem.
            device: `auto`, `cuda:N`, `sim:CHIP`, or a device that is not started.
            genes: gene values for `launches` and macros that differ from the default.
            grid: number of blocks of the launch; overrides `launches`.
            block: threads per block; overrides `launches`.
            shared_bytes: bytes of dynamic shared memory per block; overrides `launches`.
            trust: whether to trust the kernel folder, now and later.
            study: study with the gate, timing and simulation settings; None for the kernel's first study.
            best_us: time to beat in µs. A simulated device runs sources that are predicted to be faster completely (if
                the problem is small enough), and some blocks of other sources. None treats every source as faster.

        Raises:
            UsageError: the kernel, problem, genes or device cannot be used.
        """
        self.kernel = kernel if isinstance(kernel, Kernel) else find_kernel(str(kernel), trust=trust)
        self.problem = _problem(self.kernel, problem)
        self._device = open_device(device) if isinstance(device, str) else device
        if not self._device.verifiable:
            raise DeviceError(f"{self._device.identity} replays results and runs no kernel; use cuda:N or sim:CHIP")
        self._geometry = LaunchGeometry(grid, block, shared_bytes)
        self._like, self._best_us = study, best_us
        self._report: StartReport | None = None
        self._closed = False
        self._names: list[str] = []
        try:
            self._config = self._base_config(genes or {})
            self._without_effect = self.kernel.space.without_effect(self._config, genes or {})
            self._candidate(_NOTHING)
        except BaseException:
            self.close()  # processes are already starting
            raise

    @property
    def device(self) -> str:
        """Identity of the device, for example `NVIDIA H200` or `sim:l4`."""
        return self._device.identity

    @property
    def predicted(self) -> bool:
        """Whether times are predicted."""
        return self._device.predicted

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user: configured genes that have no effect, and the notes of the device."""
        return (*self._without_effect, *self.start().notes)

    @property
    def baseline(self) -> tuple[str, float] | None:
        """Name and time in µs of the fastest correct baseline, or None."""
        timed = [(one.name, one.timings[0].median_us) for one in self.start().baselines if not one.error]
        return min(timed, key=lambda one: one[1], default=None)

    def start(self) -> StartReport:
        """Start the workers, test the gate's sensitivity, and time the baselines. Later calls have no effect.

        Raises:
            UsageError: the device, compiler, kernel folder or workload does not work.
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
            source: a path, a text, or a named source.
            on_result: called with the result.

        Raises:
            UsageError: the source cannot be read, or the device does not work.
        """
        (result,) = self.evaluate_all([source], on_result)
        return result

    def evaluate_all(self, sources: Iterable[Source], on_result: OnResult | None = None) -> list[SourceResult]:
        """Evaluate sources concurrently: while one source runs, the next sources are compiled.

        Args:
            sources: paths, texts or named sources; the iterable is consumed as the device has capacity.
            on_result: called with each result as it arrives.

        Returns:
            Results in the order of the sources.

        Raises:
            UsageError: a source cannot be read, or the device does not work.
        """
        found: dict[int, SourceResult] = {}
        for number, result in self._results(sources):
            found[number] = result
            if on_result is not None:
                on_result(result)
        return [found[number] for number in sorted(found)]

    def close(self) -> None:
        """Stop all processes. Later calls have no effect."""
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
        """Return the facts that all results share as a JSON-serialisable dictionary."""
        baseline = self.baseline
        return {
            "kernel": self.kernel.name,
            "problem": self.problem.key,
            "device": self.device,
            "predicted": self.predicted,
            "baseline": None if baseline is None else {"name": baseline[0], "time_us": baseline[1]},
        }

    def _results(self, sources: Iterable[Source]) -> Iterator[tuple[int, SourceResult]]:
        """Yield the number and result of each source as results arrive."""
        self.start()
        if self._closed:
            raise UsageError(_CLOSED)
        waiting: set[int] = set()
        first = len(self._names)
        candidates: Iterable[ForeignCandidate] = (
            self._candidate(given_source(source, number)) for number, source in enumerate(sources, first)
        )
        if isinstance(sources, Sequence):
            # Validate all sources first, so that an error in the last one is reported immediately.
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
            yield from self._results_until(waiting, self._device.window - 1)
        yield from self._results_until(waiting, 0)

    def _results_until(self, waiting: set[int], most: int) -> Iterator[tuple[int, SourceResult]]:
        """Yield the available results, and wait until at most `most` sources are in flight.

        Raises:
            InternalError: the device returns no result for `SILENT_S` seconds.
        """
        last = time.monotonic()
        while True:
            for answer in self._device.poll(1.0 if len(waiting) > most else 0.0):
                last = time.monotonic()
                if answer.number in waiting:  # other results belong to an interrupted call
                    waiting.discard(answer.number)
                    yield answer.number, self._result(answer)
            if len(waiting) <= most:
                return
            if time.monotonic() - last > SILENT_S:
                raise InternalError(f"{self.device} returned no result for {SILENT_S:g} s")

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
        """Return a source as a candidate with its own genes and launch.

        Raises:
            UsageError: a gene or value does not exist, or the launch to which the geometry applies is ambiguous.
        """
        config = self.kernel.space.with_changes(self._config, source.genes) if source.genes else self._config
        candidate = ForeignCandidate(config, source, self._geometry.changed(source.geometry))
        if candidate.geometry.given:
            launches_of(self.kernel, candidate, self.problem)
        return candidate

    def _base_config(self, genes: Mapping[str, Value]) -> Config:
        """Return the configuration for macros and launches.

        Without given genes, return the default candidate, or a feasible candidate near it.
        """
        space = self.kernel.space
        if genes:
            return space.with_changes(space.default(), genes)
        bound = feasible_space(self.kernel, [self.problem], self._device.profile)
        return bound.first_feasible() or space.default()


def _study(kernel: Kernel, problem: Problem, like: Study | None) -> Study:
    """Return the settings of the given study or the kernel's first study, without racing."""
    name, folder, problems = f"evaluate-{kernel.name}", str(kernel.folder), (dict(problem),)
    like = like or next(studies_of(kernel), None) or Study(name, folder, problems)
    # Without racing, every source is timed completely.
    timing = replace(like.timing, race=0.0)
    return Study(name, folder, problems, gate=like.gate, timing=timing, simulation=like.simulation)


def _problem(kernel: Kernel, given: str | Mapping[str, Value | bool] | None) -> Problem:
    """Return the given problem, or the kernel's first known problem.

    Raises:
        KernelError: the kernel does not accept the problem, or no problem is known.
    """
    if given is not None:
        return kernel.problem(given)
    known = known_problems(kernel)
    if not known:
        fields = ",".join(kernel.field_names)
        raise KernelError(f"no problem of kernel {kernel.name} is known; set a problem with --problem {fields}")
    return known[0]
