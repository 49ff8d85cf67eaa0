"""Report the loop's state as `Progress`."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Literal

from evokern.device import StartReport
from evokern.device.contract import StartStep
from evokern.events import log_event
from evokern.search.identity import SearchTarget
from evokern.search.loop import Loop
from evokern.search.results import ArmProgress, EndReason, OnProgress, Progress
from evokern.store import StudyRecord, fastest_baseline
from evokern.study.trial import Trial


class ProgressReporter:
    """Reporter of the loop's state as `Progress`."""

    def __init__(
        self, on_progress: OnProgress, target: SearchTarget, record: StudyRecord, resumed: int, set_aside: str
    ) -> None:
        self._call = on_progress
        self._base = Progress(
            event="opening",
            study=record.name,
            device=target.device.identity,
            predicted=target.device.predicted,
            resumed=resumed,
            set_aside=set_aside,
            budget_s=record.budget_s,
            trials=resumed,
            trials_limit=record.trials_limit,
            genes=record.genes,
        )
        self._samplers = (record.sampler, record.control)
        self._loop: Loop | None = None

    def note(self, text: str) -> None:
        """Report a note before the device opens."""
        self._base = replace(self._base, notes=(*self._base.notes, text))
        self._log("note", text)
        self._call(self._base)

    def opening(self, loop: Loop) -> None:
        """Report that the device is about to open, together with the results of earlier sessions."""
        self._loop = loop
        resumed = self._base.resumed
        self._log("opening", f"opening the device; {resumed} trials known", device=self._base.device, trials=resumed)
        self._call(self._now(event="opening"))

    def step(self, step: StartStep) -> None:
        """Report a start-up step of the device."""
        self._base = replace(self._base, step=step)
        self._log("step", step.text, done=step.done, of=step.of)
        self._call(self._now(event="opening"))

    def start(self, report: StartReport) -> None:
        """Report that the loop is about to run."""
        self._base = replace(
            self._base,
            step=None,
            baseline=fastest_baseline(report.baselines),
            rejected_baselines={one.name: one.error for one in report.baselines if one.error},
            notes=(*self._base.notes, *report.notes),
        )
        for note in report.notes:
            self._log("note", note)
        name, time_us = self._base.baseline or (None, None)
        self._log("start", "the search starts", baseline=name, baseline_us=time_us)
        self.event("start")

    def event(self, name: Literal["start", "trial", "idle"]) -> None:
        """Report an event of the loop."""
        if name == "trial" and self._loop is not None and self._loop.last is not None:
            self._trial(self._loop.last, self._loop)
        self._call(self._now(event=name))

    def verified(self, trial: int, passed: bool) -> None:
        """Report a verification's result."""
        self._base = replace(self._base, proofs={**self._base.proofs, trial: passed})
        self._log("verified", f"trial {trial} is {'verified' if passed else 'refuted'}", trial=trial, passed=passed)

    def after_loop(self, text: str) -> None:
        """Report a note after the loop, before the end of the session."""
        self._base = replace(self._base, notes=(*self._base.notes, text))
        self._log("note", text)
        self.event("idle")

    def end(self, loop: Loop, reason: EndReason) -> None:
        """Report why the session ended."""
        self._loop = loop
        best = loop.best
        self._log(
            "end",
            f"the search ends: {reason}",
            reason=reason,
            elapsed_s=round(loop.elapsed_s, 3),
            trials=loop.recorded,
            best=best and best.number,
            best_us=best and best.evaluation.time_us,
        )
        self._call(self._now(event="end", end=reason))

    def _log(self, event: str, message: str, **fields: Any) -> None:
        log_event(event, message, study=self._base.study, **fields)

    def _trial(self, trial: Trial, loop: Loop) -> None:
        one, reason = trial.evaluation, trial.evaluation.reason
        log_event(
            "trial",
            f"trial {trial.number} {trial.outcome.value}: {reason}",
            logging.DEBUG,
            study=self._base.study,
            trial=trial.number,
            outcome=trial.outcome.value,
            reason=reason or None,
            time_us=one.time_us,
            gpu=one.evidence.get("gpu"),
            best_us=loop.best and loop.best.evaluation.time_us,
            elapsed_s=round(loop.elapsed_s, 3),
            in_flight=loop.in_flight,
        )

    def _now(self, **changes: Any) -> Progress:
        loop = self._loop
        assert loop is not None  # events are reported only with a loop
        return replace(
            self._base,
            elapsed_s=loop.elapsed_s,
            trials=loop.recorded,
            evaluated=loop.evaluated,
            in_flight=loop.in_flight,
            outcomes=dict(loop.outcomes),
            rejections=dict(loop.rejections.most_common()),
            best=loop.best,
            arms=self._arms(loop),
            trials_per_minute=loop.trials_per_minute,
            busy_share=loop.busy_share,
            last_failures=tuple(_failure_line(failure.trial) for failure in loop.failures.newest),
            failure_counts=tuple(failure.count for failure in loop.failures.newest),
            improvements=tuple(loop.improvements),
            stages=loop.stages,
            executors=loop.executors,
            last_trial=loop.last,
            **changes,
        )

    def _arms(self, loop: Loop) -> tuple[ArmProgress, ...]:
        both = loop.arms.all
        if len(both) == 1:
            return ()
        return tuple(
            ArmProgress(name, arm.control, arm.trials, arm.best) for name, arm in zip(self._samplers, both, strict=True)
        )


def _failure_line(trial: Trial) -> str:
    return f"trial {trial.number} {trial.outcome.value.replace('_', ' ')}: {trial.evaluation.reason}"
