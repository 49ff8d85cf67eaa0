"""Run a sweep: search time slices and verify champions until all studies are finished or the budget is used up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Literal

from evokern.errors import UsageError
from evokern.search import (
    OnProgress,
    Progress,
    SessionPart,
    SessionRequest,
    SessionResult,
    search_study,
    signal_handler,
)
from evokern.search.champion import TIME_WITHOUT_BUDGET_S, reserve
from evokern.sweep.check import check_sweep
from evokern.sweep.journal import Journal, SweepSlice, sweep_lock
from evokern.sweep.plan import PlannedStudy, Sweep
from evokern.sweep.request import SweepRequest, SweepResult
from evokern.sweep.rule import is_source, next_slice_end, next_study
from evokern.sweep.study_state import StudyState, state_of, totals
from evokern.wording import duration, microseconds
from evokern.workers.fork_server import keeping_servers

LEAST_S = 30.0
"""Minimum seconds for verifying a champion, even if less of the sweep's budget is left; an attention kernel takes about
20 s."""
OnLine = Callable[[str], None]
"""Function that is called with a progress line."""


def run_sweep(
    sweep: Sweep, folder: Path, request: SweepRequest, report: OnLine, on_progress: OnProgress = lambda progress: None
) -> SweepResult:
    """Search the studies of a sweep, or resume them.

    Args:
        sweep: sweep, with the devices of the request.
        folder: folder for its databases, created if necessary.
        request: options of this run.
        report: called with a progress line for each slice and study.
        on_progress: called at every event of each study's search; `sweep` has the progress of all studies.

    Raises:
        UsageError: a study cannot be searched, or the folder is in use or has other studies.
    """
    budget_s = request.budget_s
    check_sweep(sweep, folder, bounded=budget_s is not None, allow_changes=request.allow_changes)
    with ExitStack() as stack:
        stack.enter_context(_interruptible())
        stack.enter_context(keeping_servers())
        stack.enter_context(sweep_lock(folder))
        journal = Journal.of(folder)
        journal.opened(request.device)
        turn = _SweepRun(sweep, folder, request, journal, report, on_progress, budget_s)
        try:
            end = turn.run()
        except KeyboardInterrupt:
            end = "interrupted"
        return SweepResult(end, tuple(turn.state(one) for one in sweep.studies), turn.refused)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP act like Ctrl-C between two sessions; a session has its own handlers."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with signal_handler(stop):
        yield


class _SweepRun:
    """One run of a sweep: its studies and their slices."""

    def __init__(
        self,
        sweep: Sweep,
        folder: Path,
        request: SweepRequest,
        journal: Journal,
        report: OnLine,
        on_progress: OnProgress,
        budget_s: float | None,
    ) -> None:
        self._on_progress = on_progress
        self._sweep, self._folder, self._request, self._journal, self._report = sweep, folder, request, journal, report
        self._budget_s = budget_s
        self._verified: set[str] = set()
        self._ended: set[str] = set()
        self._notes: set[str] = set()
        self._known: dict[str, StudyState] = {}
        self.refused: dict[str, str] = {}
        """Reasons why studies could not be searched, by name of the study."""

    def state(self, planned: PlannedStudy) -> StudyState:
        """Return a study's state, which is read again after each of its sessions."""
        if planned.name not in self._known:
            # A study without correct candidates is finished, unless this run is to continue it or may run other code.
            retry = (self._request.keep_going or self._request.allow_changes) and planned.name not in self._ended
            self._known[planned.name] = state_of(planned, self._folder, retry=retry)
        return self._known[planned.name]

    def run(self) -> Literal["done", "budget", "interrupted"]:
        """Search until no study or budget is left, and verify the champions."""
        left = self._left(self._states())
        if left is not None and left <= 0:
            self._report(f"the sweep's budget of {duration(self._budget_s or 0.0)} is used up")
        while True:
            states = self._states()
            going = self._going(states)
            due = [one for one in going if states[one.name].state == "unverified"]
            if due:
                if not self._verify(due[0], states[due[0].name], None):
                    return "interrupted"
                continue
            left = self._left(states)
            if not [one for one in going if not states[one.name].searched]:
                return "done"
            if left is not None and left <= 0:
                return "budget" if self._verify_all(states) else "interrupted"
            if not self._slice(going, states, left):
                return "interrupted"

    def _states(self) -> dict[str, StudyState]:
        return {one.name: self.state(one) for one in self._sweep.studies}

    def _going(self, states: dict[str, StudyState]) -> list[PlannedStudy]:
        """Return the studies that this run can still search or verify."""
        return [
            one
            for one in self._sweep.studies
            if one.name not in self.refused
            and (
                self._request.verify and one.name not in self._verified
                if states[one.name].state == "unverified"
                else states[one.name].state != "finished" and one.name not in self._ended
            )
        ]

    def _left(self, states: dict[str, StudyState]) -> float | None:
        """Return the seconds of the sweep's budget left for searching; None without a budget."""
        if self._budget_s is None:
            return None
        begun = [one for one in states.values() if one.state != "waiting"]
        share_s, predicted = self._budget_s / len(states), any(one.predicted for one in begun)
        due = [
            one
            for one in self._sweep.studies
            if not states[one.name].searched and not one.study.device.startswith("replay:")
        ]
        kept_s = len(due) * reserve(share_s, predicted) if self._request.verify else 0.0
        return self._budget_s - kept_s - sum(one.elapsed_s for one in begun)

    def _slice(self, going: Sequence[PlannedStudy], states: dict[str, StudyState], left: float | None) -> bool:
        """Search one slice; return False if the user interrupted it."""
        decision = self._journal.open_slice
        planned = next((one for one in going if decision and one.name == decision.study), None)
        reached = decision and planned and decision.last and states[planned.name].trials >= decision.last
        if decision is not None and (planned is None or reached):
            known = {one.name: one for one in self._sweep.studies}.get(decision.study)
            self._conclude(self.state(known) if known else None, decision)
            return True
        if decision is None or planned is None:
            able = [one for one in self._sweep.studies if one in going or states[one.name].searched]
            planned, why = next_study(able, states, self._journal, warm=self._request.warm_start == "auto")
            now = states[planned.name]
            decision = SweepSlice(
                planned.name, now.trials, next_slice_end(planned, now.trials), why, now.best_us, now.elapsed_s
            )
            self._journal.decide(decision)
        now = states[planned.name]
        limit = decision.last or planned.study.trials
        until = "its end" if limit is None else str(limit)
        self._report(f"{planned.name}: trials {now.trials} to {until} ({decision.why})")
        paused_s = None if left is None else now.elapsed_s + left
        sources = tuple(
            one.database(self._folder)
            for one in self._sweep.studies
            if one is not planned and is_source(one, states[one.name], self._journal)
        )
        part = SessionPart(trials=decision.last, elapsed_s=paused_s, neighbours=sources)
        result = self._session(planned, now, part)
        if result is None:
            self._conclude(self.state(planned), decision)
            return True
        if result.interrupted:
            return False
        if result.end != "paused":
            self._ended.add(planned.name)
        after = self.state(planned)
        if result.end != "paused" or decision.last is None or after.trials >= decision.last:
            self._conclude(after, decision)
        self._say_result(now, after)
        return True

    def _conclude(self, now: StudyState | None, decision: SweepSlice) -> None:
        best_us, elapsed_s = (now.best_us, now.elapsed_s) if now else (None, decision.before_s)
        self._journal.conclude(best_us, elapsed_s - decision.before_s)

    def _say_result(self, before: StudyState, after: StudyState) -> None:
        was = f" (was {microseconds(before.best_us)})" if before.best_us and before.best_us != after.best_us else ""
        self._report(f"{after.name}: {after.in_words()}{was}, {duration(after.elapsed_s - before.elapsed_s)}")
        if after.state == "unverified" and self._request.verify:
            self._report(f"{after.name}: {after.reason}")

    def _verify_all(self, states: dict[str, StudyState]) -> bool:
        """Verify the champions of studies that the sweep's budget ended; return False if the user interrupted it."""
        due = [
            one
            for one in self._sweep.studies
            if self._request.verify
            and states[one.name].verifiable
            and states[one.name].verified is None
            and one.name not in self.refused
        ]
        for place, planned in enumerate(due):
            spent_s = sum(one.elapsed_s for one in self._states().values())
            seconds = max(LEAST_S, ((self._budget_s or 0.0) - spent_s) / (len(due) - place))
            if not self._verify(planned, states[planned.name], seconds):
                return False
        return True

    def _verify(self, planned: PlannedStudy, now: StudyState, seconds: float | None) -> bool:
        """Verify a champion that no session verified; return False if the user interrupted it."""
        self._verified.add(planned.name)
        seconds = TIME_WITHOUT_BUDGET_S[now.predicted] if seconds is None else seconds
        self._report(f"{planned.name}: verifying its champion (at most {duration(seconds)})")
        result = self._session(planned, now, SessionPart(trials=0, verification_s=seconds))
        if result is not None and not result.interrupted:
            self._say_result(now, self.state(planned))
        return result is None or not result.interrupted

    def _session(self, planned: PlannedStudy, now: StudyState, part: SessionPart) -> SessionResult | None:
        """Search a part of a study; return None, after reporting the error, if that is not possible."""
        from evokern.api import FACTORIES

        study, asked = planned.study, self._request
        request = SessionRequest(
            cluster=asked.cluster,
            budget=study.budget_s,
            trials=study.trials,
            warm_start="none" if asked.warm_start == "none" and now.state == "waiting" else None,
            allow_changes=asked.allow_changes,
            trust=asked.trust,
            inputs=asked.inputs,
            keep_going=asked.keep_going,
            verify=asked.verify,
        )

        summary = totals([*self._states().values()])

        def watch(progress: Progress) -> None:
            self._on_progress(replace(progress, notes=(), sweep=summary))
            for note in progress.notes:
                if note not in self._notes:  # a device repeats its notes at each start
                    self._notes.add(note)
                    self._report(f"{planned.name}: {note}")

        self._known.pop(planned.name, None)
        try:
            return search_study(
                study,
                request,
                db=planned.database(self._folder),
                on_progress=watch,
                factories=FACTORIES,
                part=replace(part, fresh_advice="choose another folder with --db"),
            )
        except UsageError as error:
            self.refused[planned.name] = str(error)
            self._report(f"{planned.name} cannot be searched: {error}")
            return None
