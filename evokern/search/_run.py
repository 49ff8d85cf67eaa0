"""Run one session: open the store, create or resume the study, search, verify the champion, close the store."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from evokern.compile.failure_cause import Cause, genes_acting_alone, genes_reaching
from evokern.device import Device, Task
from evokern.device.contract import DEFAULT_US, MeasuresRates, MeasuresRounds, Remeasures, StartReport, StartStep
from evokern.device.recorded.table import TableDevice
from evokern.errors import DeviceError, InternalError, StoreError
from evokern.samplers import History, Sampler
from evokern.samplers.sampler_process import SamplerProcess
from evokern.search._failures import FailureWatch
from evokern.search._report import ProgressReporter
from evokern.search._stop import Stop, handle_stop_signals
from evokern.search._warm import control_of, create_sampler, load_requested_prior, sampler_of, schedule_of, warm_start
from evokern.search.baseline_comparison import compare_with_baseline
from evokern.search.champion import INTERRUPTED, TIME_WITHOUT_BUDGET_S, ChampionVerification, reserve
from evokern.search.diagnosis import run_diagnosed
from evokern.search.identity import (
    AdviceFunction,
    SearchTarget,
    check_candidates,
    check_timing_rule,
    fresh_advice,
    reconcile_record,
    same_genes,
)
from evokern.search.loop import Limits, Loop
from evokern.search.neighbours import infeasible_neighbours
from evokern.search.request import WHOLE, SessionPart, SessionRequest, WorkerFactories
from evokern.search.results import EndReason, OnProgress, SessionResult
from evokern.store import Session, Store, StudyRecord, fastest_baseline, open_readonly
from evokern.study.settings import check_control
from evokern.study.trial import Proposal, Trial
from evokern.wording import count_noun, duration

COMPARISON_S = 4.0
"""Seconds for measuring champion and baseline alternately; eight rounds of an attention kernel on a small problem take
about 2 s (H200)."""
IN_TURN_SHARE = 0.25
"""Largest fraction of the reserved verification time for this measurement; it runs concurrently with verification."""
LEAST_IN_TURN_S, LEAST_IN_TURN_SHARE = 12.0, 0.6
"""The same two limits for the minimum number of rounds. One round takes about 0.7 s for an 8192³ product, and 1 s for
a normalisation of 65536 rows with four tensors (H100)."""


def run(
    target: SearchTarget,
    db: Path,
    request: SessionRequest,
    on_progress: OnProgress,
    factories: WorkerFactories,
    part: SessionPart = WHOLE,
) -> SessionResult:
    """Create or resume a study, search it, and close its device.

    Args:
        target: study, kernel, device and space to search.
        db: database for the results.
        request: options of this session.
        on_progress: called at every event.
        factories: workers that explain crashes and that verify the champion.
        part: the part of the study that this session searches.

    Raises:
        UsageError: the study cannot be searched or resumed with these options.
    """
    clock = clock_of(target)
    began = clock()
    name = target.study.name
    with ExitStack() as stack:
        stack.callback(target.device.close)
        # Check sampler and options before a database is created or an earlier study is renamed.
        sampler_of(target.record(request), target)
        store = stack.enter_context(Store(db))
        old = store.study(name)
        begins = request.fresh or old is None or not store.has_trials(old)
        if old is not None and not begins and old.settings.get("gate", {}).get("inputs") == "normal":
            # The option of the first session applies to all.
            target = replace(target, study=replace(target.study, gate=replace(target.study.gate, inputs="normal")))

        def restart_advice() -> str:
            return part.fresh_advice or fresh_advice(store, name)

        offer = load_requested_prior(store, None if begins else old, target, request.warm_start, restart_advice)
        planned = plan(store, None if request.fresh else old, target, request, restart_advice)
        old_name = store.rename_old_study(name) if request.fresh and old else ""
        record = begin(store, None if request.fresh else old, planned, target)
        killed = store.unfinished_session_start(record)
        session = store.session(record, target.space)
        proposals, trials = session.recorded_trials()
        check_candidates(record, target.space, proposals, restart_advice)
        reporter = ProgressReporter(on_progress, target, record, len(trials), old_name)
        for note in part.notes:
            reporter.note(note)
        with handle_stop_signals() as stop:
            if killed:
                again = len(proposals) - len(trials)
                reporter.note(
                    f"the session started at {killed} was interrupted (killed or power loss). All recorded results are "
                    f"intact; running the {count_noun(again, 'trial')} in flight"
                )
            if old is not None and not begins and (record.budget_s or math.inf) < (old.budget_s or 0.0):
                reporter.note(
                    f"the budget is now {duration(record.budget_s or 0.0)} instead of {duration(old.budget_s or 0.0)}; "
                    "it includes all earlier sessions of the study"
                )
            try:
                prior = warm_start(
                    store, record, target, request.warm_start, offer, reporter.note, begins=begins,
                    neighbours=part.neighbours,
                )  # fmt: skip
                sampler = create_sampler(stack, record, target, prior)
                end = _one_session(
                    target, session, proposals, trials, reporter, stop, began, sampler, request, factories, part
                )
            except KeyboardInterrupt:
                end = "interrupted"
            except BaseException:
                stop.ending = True
                with suppress(StoreError):  # the first error is the one to report
                    session.ended(clock() - began, "failed")
                raise
            stop.ending = True
            _store_infeasible_neighbours(db, target, session)
            session.ended(clock() - began, end)
            if changed := target.changed_files():
                reporter.note(
                    f"{', '.join(changed)} changed during this session, which used the content from its start; "
                    f"use --fresh to search the new code"
                )
            if held := store.fold_in():
                reporter.note(held)
    with open_readonly(db) as reader:
        return SessionResult(db, record, end, reader.best(record), reader.summary(record))


def _one_session(
    target: SearchTarget,
    session: Session,
    proposals: Sequence[Proposal],
    trials: Sequence[Trial],
    reporter: ProgressReporter,
    stop: Stop,
    began: float,
    sampler: Sampler,
    request: SessionRequest,
    factories: WorkerFactories,
    part: SessionPart,
) -> EndReason:
    record = session.study
    verifies = request.verify and target.device.verifiable
    kept_s = reserve(record.budget_s, target.device.predicted) if verifies else 0.0
    own = Limits(schedule_of(record), record.budget_s and record.budget_s - kept_s, record.trials_limit)
    loop = Loop(
        History(target.space),
        sampler,
        target.device,
        session,
        own.within(part),
        target.violation,
        control=(History(target.space), control_of(record, target)) if record.control != "none" else None,
        watch=None if request.keep_going else _failure_watch(target, session),
        before_s=session.before_s,
        clock=clock_of(target),
        began=began,
    )
    session.complete_optuna_rows(proposals, loop.restore(proposals, trials))
    end = loop.already_ended()
    if end is not None:
        end = own.end_reason(loop, end)
        overdue_s = _pending_verification_s(session, loop, kept_s, TIME_WITHOUT_BUDGET_S[target.device.predicted], part)
        if overdue_s is not None and verifies:
            _verify_finished_search(target, session, loop, reporter, stop, overdue_s, factories)
            end = "interrupted" if loop.stop_requested else end
    else:
        reporter.opening(loop)
        if isinstance(sampler, SamplerProcess):
            sampler.stopped = lambda: loop.stop_requested
            sampler.start()
        default_us = tuple(session.first_environment(DEFAULT_US) or ())
        task = _task(target, record, trials, reporter.step, default_us)
        report = target.device.start(task)
        session.write_start_report(report)
        reporter.start(report)
        with _verifying(target, session, loop, reporter, stop, factories) as verification:

            def after_event(event: Literal["trial", "idle"]) -> None:
                if isinstance(target.device, Remeasures) and (found := target.device.remeasured()):
                    session.remeasured(found)
                if verifies and not part.pauses:
                    verification.advance(loop.best, loop.left_s)
                reporter.event(event)

            end = own.end_reason(loop, run_diagnosed(loop, target, session, trials, after_event, factories.diagnoser))
            whole = end not in ("interrupted", "paused")
            if whole:
                _store_rates(target.device, session, reporter)
            if whole and verifies:
                share_s = math.inf if record.budget_s is None else kept_s
                all_s = min(COMPARISON_S, IN_TURN_SHARE * share_s)
                least_s = min(LEAST_IN_TURN_S, LEAST_IN_TURN_SHARE * share_s)
                _compare_with_baseline(target.device, task, loop, report, session, reporter, all_s, least_s)
            if whole and verifies:
                target.device.close()  # leaves the CPU cores to the verification
                budget_s = session.study.budget_s
                seconds = (
                    TIME_WITHOUT_BUDGET_S[target.device.predicted] if budget_s is None else budget_s - loop.elapsed_s
                )
                verification.finish(seconds, lambda: loop.stop_requested, budget=budget_s is not None)
                if loop.stop_requested:
                    end, stop.late = "interrupted", True
    reporter.end(loop, end)
    return end


def _failure_watch(target: SearchTarget, session: Session) -> FailureWatch:
    """Return the rule that ends a search without correct candidates; it ignores trials of earlier kernel code."""

    def reaching(cause: Cause) -> frozenset[str]:
        if target.table is not None:  # a recording has no source
            return frozenset(gene.name for gene in target.space.genes)
        return genes_reaching(target.kernel, target.space, target.problems[0], cause)

    def alone() -> frozenset[str]:
        if target.table is not None:
            return frozenset()
        return genes_acting_alone(target.kernel, target.space, target.problems[0])

    return FailureWatch(target.space, reaching, frozenset(session.of_earlier_code), alone)


def _pending_verification_s(
    session: Session, loop: Loop, kept_s: float, unlimited_s: float, part: SessionPart
) -> float | None:
    """Return the seconds for verifying the champion of a finished search; None if no verification is needed.

    A verification is needed if the user interrupted the verification at the end of the search.

    Args:
        session: the study's session.
        loop: the loop, after `restore`.
        kept_s: seconds of the budget reserved for the verification.
        unlimited_s: seconds allowed if the study has no budget.
        part: the part of the study that this session searches.
    """
    if part.verification_s is not None or loop.best is None:
        return part.verification_s
    why = session.verification_stopped(loop.best.number)
    return (kept_s or unlimited_s) if why == INTERRUPTED else None


def _verify_finished_search(
    target: SearchTarget,
    session: Session,
    loop: Loop,
    reporter: ProgressReporter,
    stop: Stop,
    seconds: float,
    factories: WorkerFactories,
) -> None:
    """Verify the champion of a finished search whose last session did not verify it."""
    target.device.close()
    reporter.opening(loop)
    with _verifying(target, session, loop, reporter, stop, factories) as verification:
        verification.finish(seconds, lambda: loop.stop_requested)


@contextmanager
def _verifying(
    target: SearchTarget,
    session: Session,
    loop: Loop,
    reporter: ProgressReporter,
    stop: Stop,
    factories: WorkerFactories,
) -> Iterator[ChampionVerification]:
    """Yield the verification of champions; while it exists, signals stop the loop."""
    cores = len(os.sched_getaffinity(0))
    stop.loop = loop
    verification = ChampionVerification(
        target, session, factories.verifier, reporter.after_loop, reporter.verified, cores=cores
    )
    try:
        yield verification
    finally:
        stop.loop = None
        verification.close()


def _store_rates(device: Device, session: Session, reporter: ProgressReporter) -> None:
    """Store the device's copy and multiply rates; called last, so that no candidate has to wait."""
    if not isinstance(device, MeasuresRates):
        return
    try:
        session.write_rates(device.rates())
    except (DeviceError, InternalError) as error:
        reporter.note(f"could not measure the GPU's rates; the roofline bound uses the vendor's peak rates: {error}")


def _store_infeasible_neighbours(db: str | Path, target: SearchTarget, session: Session) -> None:
    """Store which changes of one gene make the champion infeasible, because reports cannot load the kernel."""
    with open_readonly(db) as reader:
        best = reader.best(session.study)
        known = best is None or reader.infeasible_neighbours(session.study, best.number) is not None
    if best is not None and not known:
        # A recording cannot judge values that it does not contain.
        neighbours = infeasible_neighbours(target.space, target.violation, best.config, beyond=target.table is None)
        session.write_infeasible_neighbours(best.number, neighbours)


def _compare_with_baseline(
    device: Device,
    task: Task,
    loop: Loop,
    report: StartReport,
    session: Session,
    reporter: ProgressReporter,
    seconds: float,
    least_s: float,
) -> None:
    """Measure the champion and the fastest baseline alternately, and store the ratio, if the device supports this."""
    fastest, champion = fastest_baseline(report.baselines), loop.best
    if not isinstance(device, MeasuresRounds) or fastest is None or champion is None:
        return
    try:
        found = compare_with_baseline(device, task, champion, fastest[0], seconds, least_s, lambda: loop.stop_requested)
    except (DeviceError, InternalError) as error:
        reporter.after_loop(f"skipped the head-to-head comparison with {fastest[0]}: {error}")
        return
    if found is None:
        reporter.after_loop(f"skipped the head-to-head comparison with {fastest[0]}: one round takes too long")
    else:
        session.write_head_to_head(champion.number, found)


def clock_of(target: SearchTarget) -> Callable[[], float]:
    """Return the clock of a search: the recording's clock if the recording contains durations, else the real clock."""
    device = target.device
    return device.clock if isinstance(device, TableDevice) and device.table.timed else time.monotonic


def plan(
    store: Store, old: StudyRecord | None, target: SearchTarget, request: SessionRequest, restart_advice: AdviceFunction
) -> StudyRecord:
    """Return the study's record for this session, without writing the record.

    Args:
        store: the open database.
        old: the stored record; None for a new study.
        target: study, kernel, device and space to search.
        request: options of this session.
        restart_advice: returns the advice for starting over, for messages.

    Raises:
        UsageError: the study cannot be searched or resumed with these options.
    """
    now = target.record(request)
    if old is not None and store.has_trials(old):
        check_timing_rule(old, now, store)
        sources = store.source(old.kernel_digest)
        record = request.applied(reconcile_record(old, target, request, sources, restart_advice))
    else:
        # Without any trial there is nothing to contradict: a failed first attempt must not restrict the next one.
        new = now if old is None else replace(now, uuid=old.uuid, created=old.created)
        record = request.applied(new)
    check_control(record.control, record.sampler)
    return record


def begin(store: Store, old: StudyRecord | None, planned: StudyRecord, target: SearchTarget) -> StudyRecord:
    """Create the planned study in the database, or write its changes."""
    if old is None:
        return store.create(planned, target.sources())
    if planned != old:
        if not same_genes(planned.genes, old.genes):
            store.delete_prior(planned)  # stored as positions of gene values, which have changed
        store.update(planned, target.sources())
    return planned


def _task(
    target: SearchTarget,
    record: StudyRecord,
    recorded: Sequence[Trial],
    on_step: Callable[[StartStep], None],
    default_us: tuple[float, ...],
) -> Task:
    known = {
        trial.evaluation.fingerprint: (trial.number, trial.evaluation)
        for trial in reversed(recorded)
        if trial.evaluation.fingerprint and "duplicate_of" not in trial.evaluation.evidence
    }
    return Task(
        target.kernel, target.problems, target.study, known, record.secret, default_us=default_us, on_step=on_step
    )
