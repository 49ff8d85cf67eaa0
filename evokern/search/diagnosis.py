"""Diagnose crashes and hangs on the simulated device, once per pattern, concurrently with the search.

For a crash, a GPU reports only text such as "misaligned address". The crashed trial is recorded at once. One process,
started at the first crash, then simulates the same launch and checks every access. The diagnosis is added to the
records of all affected trials; samplers do not see it.

A pattern is a CUDA error's name (or `hung`) with the values of the outer genes. Candidates with the same pattern hit
the same error in the same code, so only the first of them is diagnosed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from evokern.declaration.genes import Config, Gene, Value
from evokern.errors import EvokernError
from evokern.search.identity import SearchTarget
from evokern.search.loop import AfterEvent, Loop
from evokern.search.results import EndReason
from evokern.store import Session
from evokern.study.discovery import WorkerContext
from evokern.study.trial import Outcome, Trial
from evokern.wording import first_line
from evokern.workers.pool import JobResult, OwnServerPool, WorkerSpec, wait

DEADLINE_S = 120.0
"""Time limit of a diagnosis in seconds; diagnoses run at low priority, so they may take long."""
LAST_WAIT_S = 2.0
"""Seconds to wait for a running diagnosis at the end of a search; a resumed search requests missing diagnoses again."""
KEYS = ("diagnosis", "finding", "finding_problem", "undiagnosed", "diagnosed_trial")
"""Evidence keys of a diagnosis: the defect, the reason why there is no diagnosis, and the diagnosed trial."""

Pattern = tuple[str, tuple[tuple[str, Value | None], ...]]
"""CUDA error name or `hung`, and the values of the outer genes."""


@dataclass(frozen=True)
class DiagnosisJob:
    """A candidate to diagnose; the result is evidence."""

    config: Config
    """Configuration of the candidate."""
    hung: bool
    """Whether the candidate hung; otherwise, it crashed."""


def run_diagnosed(
    loop: Loop,
    target: SearchTarget,
    session: Session,
    recorded: Sequence[Trial],
    after_event: AfterEvent,
    diagnoser: str,
) -> EndReason:
    """Run a search, diagnose its crashes unless the device does so, and return the reason why the search ended.

    Args:
        loop: the search, after `restore`.
        target: study, kernel, device and space to search.
        session: stores the evidence.
        recorded: trials of earlier sessions.
        after_event: as in `Loop.run`.
        diagnoser: as in `Diagnoses`.
    """
    if not target.device.diagnoses:
        return loop.run(after_event)

    def keep(trials: Sequence[Trial]) -> None:
        session.annotate(trials)
        loop.annotate(trials)

    def after(event: Literal["trial", "idle"]) -> None:
        if event == "trial" and loop.last is not None:
            diagnoses.observe(loop.last)
        diagnoses.advance()
        after_event(event)

    context = WorkerContext.of(target.kernel, target.problems, target.limits)
    diagnoses = Diagnoses(diagnoser, context, target.space.genes, keep)
    try:
        diagnoses.restore(recorded)
        end = loop.run(after)
        diagnoses.finish(lambda: loop.stop_requested)
    finally:
        diagnoses.close()
    return end


def pattern_of(trial: Trial, genes: Sequence[Gene]) -> Pattern | None:
    """Return the pattern of a trial to diagnose; None for other trials.

    Running out of GPU memory needs no diagnosis.
    """
    if trial.outcome is Outcome.HUNG:
        how = "hung"
    elif trial.outcome is Outcome.CRASHED:
        how = str(trial.evaluation.evidence["error"])
    else:
        return None
    if how == "CUDA_ERROR_OUT_OF_MEMORY":
        return None
    return how, tuple((gene.name, trial.config.get(gene.name)) for gene in genes if gene.layer == "mutation")


class Diagnoses:
    """Diagnoses of one session."""

    def __init__(
        self,
        diagnoser: str,
        context: WorkerContext,
        genes: Sequence[Gene],
        keep: Callable[[Sequence[Trial]], None],
    ) -> None:
        """Store the settings; the process starts at the first crash.

        Args:
            diagnoser: factory of the worker, as in `WorkerSpec`; takes `context` and returns evidence for each
                `DiagnosisJob`. A parameter, because the search layer must not import the diagnosing code.
            context: context of the worker.
            genes: the study's genes.
            keep: called with the trials that got evidence.
        """
        self._diagnoser = diagnoser
        self._context = context
        self._genes = genes
        self._keep = keep
        self._known: dict[Pattern, Mapping[str, Any]] = {}
        self._waiting: dict[Pattern, list[Trial]] = {}
        self._asked: dict[int, Pattern] = {}
        self._pool: OwnServerPool | None = None

    def restore(self, recorded: Sequence[Trial]) -> None:
        """Restore the diagnoses of earlier sessions and request the missing ones."""
        for trial in recorded:
            pattern = pattern_of(trial, self._genes)
            if pattern is not None and _explained(trial):
                found = trial.evaluation.evidence
                self._known.setdefault(pattern, {key: found[key] for key in KEYS if key in found})
        for trial in recorded:
            self.observe(trial)

    def observe(self, trial: Trial) -> None:
        """Diagnose a newly recorded trial if it crashed or hung."""
        pattern = pattern_of(trial, self._genes)
        if pattern is None or _explained(trial):
            return
        if pattern in self._known:
            self._explain([trial], self._known[pattern])
        elif pattern in self._waiting:
            self._waiting[pattern].append(trial)
        else:
            self._waiting[pattern] = [trial]
            self._ask(pattern, trial)

    def advance(self, timeout_s: float = 0.0) -> None:
        """Store the results that have arrived, waiting at most `timeout_s` seconds for the first."""
        if self._pool is None or not self._asked:
            return
        try:
            results = wait([self._pool], timeout_s)
        except EvokernError as error:  # a worker that cannot start must not end the search
            for pattern in list(self._asked.values()):
                self._settle(pattern, {"undiagnosed": first_line(error)})
            self._asked.clear()
            return
        for result in results:
            trial = result.key
            self._settle(self._asked.pop(trial), {**_evidence(result), "diagnosed_trial": trial})

    def finish(self, stopped: Callable[[], bool]) -> None:
        """Wait briefly for running diagnoses, unless the user wants to stop."""
        limit = time.monotonic() + LAST_WAIT_S
        while self._asked and not stopped() and (left := limit - time.monotonic()) > 0:
            self.advance(min(0.1, left))

    def close(self) -> None:
        """End the process; repeated calls are safe."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _ask(self, pattern: Pattern, trial: Trial) -> None:
        try:
            if self._pool is None:
                # The PTX machine needs only the CPU; a process that loads the kernel must not have access to a GPU.
                environment = {"CUDA_CACHE_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
                self._pool = OwnServerPool(WorkerSpec(self._diagnoser, self._context, environment))
            self._pool.submit(trial.number, DiagnosisJob(trial.config, trial.outcome is Outcome.HUNG), DEADLINE_S)
        except (EvokernError, OSError) as error:
            self._settle(pattern, {"undiagnosed": first_line(error)})
            return
        self._asked[trial.number] = pattern

    def _settle(self, pattern: Pattern, evidence: Mapping[str, Any]) -> None:
        self._known[pattern] = evidence
        self._explain(self._waiting.pop(pattern), evidence)

    def _explain(self, trials: Sequence[Trial], evidence: Mapping[str, Any]) -> None:
        self._keep([_with(trial, evidence) for trial in trials])


def _explained(trial: Trial) -> bool:
    evidence = trial.evaluation.evidence
    return "diagnosis" in evidence or "undiagnosed" in evidence


def _with(trial: Trial, evidence: Mapping[str, Any]) -> Trial:
    evaluation = trial.evaluation
    return replace(trial, evaluation=replace(evaluation, evidence={**evaluation.evidence, **evidence}))


def _evidence(result: JobResult) -> Mapping[str, Any]:
    match result.status:
        case "done":
            found: Mapping[str, Any] = result.value
            return found
        case "overran":
            return {"undiagnosed": f"the simulated device took longer than {result.value:g} s"}
        case "died" | "lost":
            return {"undiagnosed": f"the diagnosing process ended: {result.value}"}
        case _:
            return {"undiagnosed": first_line(result.value)}
