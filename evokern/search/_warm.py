"""Warm starts and samplers of a study: the prior from another study, a recording or the time model.

A warm start is fixed when a study starts, and is stored with the study. A resumed search therefore does not depend on
the source of the warm start.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from evokern.declaration.genes import Config
from evokern.errors import DeviceError, StudyError
from evokern.files import is_file
from evokern.samplers import SIMULATED, WARM, Prior, Sampler, TrialSchedule, make_sampler, objective
from evokern.samplers.sampler_process import SamplerPlan, SamplerProcess
from evokern.search._arms import ArmSchedule, control_seed
from evokern.search._model_search import search_model
from evokern.search._nearest_study import known_times, nearest_prior, share_enough_genes
from evokern.search.identity import AdviceFunction, SearchTarget
from evokern.store import Store, StudyRecord, database_of, open_readonly, open_recording
from evokern.study.discovery import WorkerContext

AUTO = "auto"
"""Warm start from the nearest study of the same kernel in the database, if there is one."""
NONE = "none"
"""No warm start."""
SIMULATED_TRIALS = 300
"""Number of trials of the simulated search (`sim`); with some seeds, it finds the fastest candidates only after 200."""
SIMULATED_SHARE = 0.4
"""Largest fraction of a budget for the simulated search; the rest is for the GPU."""

Notify = Callable[[str], None]
"""Function that is called with a progress message."""


def load_requested_prior(
    store: Store, resumed: StudyRecord | None, target: SearchTarget, source: str | None, restart_advice: AdviceFunction
) -> Prior | None:
    """Return the prior from the source of a warm start, before anything is written.

    Args:
        store: the open database.
        resumed: a study with trials to resume; None for a new study.
        target: study, kernel, device and space to search.
        source: `runs.db:study`, a recording, `sim`, `none` or `auto`; None means `auto`.
        restart_advice: returns the advice for starting over, for the message.

    Returns:
        The prior from a study or recording. None for `none`, `sim` and `auto`; the priors for `sim` and `auto` are
        created when the study starts.

    Raises:
        StudyError: the study started with another warm start, or the source is empty.
        UsageError: the source cannot be read, has none of these genes, or does not fit the device.
    """
    if source is not None and not source.strip():
        raise StudyError(f"--warm-start is empty; use {AUTO}, {NONE}, {SIMULATED}, DB:STUDY or FILE, or omit it")
    if source in (None, AUTO):
        return None
    if resumed is not None:
        kept, name = store.prior(resumed), resumed.name
        if source == (NONE if kept is None else kept.source):
            return None
        was = f"from {kept.source}" if kept else "without a warm start"
        raise StudyError(
            f"study {name} started {was}, which shaped its trials; omit --warm-start {source}, or start over: "
            + restart_advice()
        )
    if source == NONE:
        return None
    if source != SIMULATED:
        return recorded_prior(target, source)
    if target.table is not None or target.device.predicted:
        where = target.device.identity
        raise StudyError(f"--warm-start sim needs a GPU, but the device is {where}; omit --warm-start")
    return None


def warm_start(
    store: Store,
    record: StudyRecord,
    target: SearchTarget,
    source: str | None,
    offer: Prior | None,
    say: Notify,
    *,
    begins: bool,
    neighbours: tuple[Path, ...] = (),
) -> Prior | None:
    """Return a study's prior: the stored prior, or for a new study, the requested prior.

    Args:
        store: the open database; stores the prior.
        record: the study.
        target: study, kernel, device and space to search.
        source: as in `load_requested_prior`.
        offer: the result of `load_requested_prior`.
        say: called with progress messages.
        begins: whether the study has no trials yet. If a first attempt ended without trials, its prior is reused unless
            another source is requested.
        neighbours: further databases that `auto` searches.
    """
    kept = store.prior(record)
    if not begins or (kept is not None and source in (None, AUTO, kept.source)):
        return kept
    if source in (None, AUTO):
        found = _nearest((store.path, *neighbours), record, target)
        if found is None:
            return None
        prior, summary = found
    else:
        if kept is not None:
            store.delete_prior(record)
        if source == NONE:
            return None
        if record.sampler not in WARM:
            say(f"sampler {record.sampler} cannot use a warm start and ignores it; {', '.join(WARM)} can")
            return None
        prior = offer or _searched(target, record, say)
        summary = prior_summary(prior)
    store.write_prior(record, prior)
    say(summary)
    return prior


def _nearest(paths: tuple[Path, ...], record: StudyRecord, target: SearchTarget) -> tuple[Prior, str] | None:
    """Return the prior from the nearest study of the same kernel, with a summary sentence.

    Studies with a control and studies on recordings start without a prior, because their purpose is to compare
    searches.
    """
    if target.table is not None or record.control != "none" or record.sampler not in WARM:
        return None
    return nearest_prior(paths, record, target)


def recorded_prior(target: SearchTarget, source: str) -> Prior:
    """Return the prior from a recorded study or space.

    Args:
        target: study, kernel, device and space to search.
        source: `runs.db:study` or a recording's file.

    Raises:
        UsageError: the source cannot be read, is of another kernel, shares no gene, or has no trial with values that
            this kernel has.
    """
    database = database_of(source)
    if database is None:
        try:
            answers = open_recording(source).answers.items()
        except DeviceError as error:
            if is_file(Path(source)):
                raise
            raise DeviceError(f"{error}; or use {AUTO}, {NONE} or {SIMULATED}") from error
        seen = [(config, value) for config, answer in answers if (value := objective(answer)) is not None]
        return Prior.from_trials(target.space, seen, source)
    path, name = database
    with open_readonly(path) as reader:
        study = reader.study(name)
        ours = target.kernel.name
        played = target.table is not None or study.device.startswith("replay:")
        if study.kernel != ours and not played and not share_enough_genes(study.genes, target.space.genes):
            raise StudyError(
                f"study {study.name} of {path} is of kernel {study.kernel}, whose genes differ from those of {ours}; "
                f"choose a study of {ours}, or omit --warm-start"
            )
        times = known_times(reader, study)
    if not times:
        raise StudyError(
            f"study {study.name} of {path} has no timed trials to start from; continue its search, or omit --warm-start"
        )
    return Prior.from_trials(target.space, times, source)


def prior_summary(prior: Prior) -> str:
    """Return a sentence that summarises a prior: its source, its size, and the genes that are used or ignored."""
    ignored = f"; ignored: {', '.join(prior.ignored)}" if prior.ignored else ""
    used = ", ".join(prior.used) if prior.ignored else f"all {len(prior.used)}"
    return f"warm start from {prior.source}: {len(prior.entries)} candidates; genes used: {used}{ignored}"


def _searched(target: SearchTarget, record: StudyRecord, say: Notify) -> Prior:
    chip = target.device.profile
    say(f"warm start: searching the simulated {chip.model}, {SIMULATED_TRIALS} candidates")
    within_s = None if record.budget_s is None else SIMULATED_SHARE * record.budget_s
    found = search_model(target, chip, SIMULATED_TRIALS, record.seed, say, within_s)
    if not found:
        within = "" if within_s is None else f" within {within_s:.0f} s, {SIMULATED_SHARE:.0%} of the budget"
        longer = "" if within_s is None else "increase --budget, or "
        raise StudyError(f"no candidate ran on the simulated {chip.model}{within}; {longer}omit --warm-start sim")
    return Prior.from_trials(target.space, found, SIMULATED)


def create_sampler(stack: ExitStack, record: StudyRecord, target: SearchTarget, prior: Prior | None) -> Sampler:
    """Return a study's sampler; with several GPUs, it runs in its own process, which the stack closes.

    In the same process as the loop, the sampler would limit the rate to 46 trials per second (two H100s, 62 compilers).
    """
    if record.sampler != "evo" or target.table is not None or target.device.at_once == 1:
        return sampler_of(record, target, prior)
    process = SamplerProcess(
        SamplerPlan(
            WorkerContext.of(target.kernel, target.problems, target.limits),
            target.study.genes,
            record.sampler,
            record.sampler_options,
            record.seed,
            _own_schedule(record),
            prior,
        )
    )
    stack.callback(process.close)
    return process


def _own_schedule(record: StudyRecord) -> TrialSchedule:
    """Return the schedule of trials in flight that the study's sampler uses; it counts only its own trials."""
    schedule = schedule_of(record)
    return schedule if record.control == "none" else ArmSchedule.of(schedule, 2)


def sampler_of(record: StudyRecord, target: SearchTarget, prior: Prior | None = None) -> Sampler:
    """Build a study's sampler."""
    own, explain = _own_schedule(record), _explain(target)
    return make_sampler(record.sampler, target.space, record.sampler_options, record.seed, own, explain, prior)


def schedule_of(record: StudyRecord) -> TrialSchedule:
    """Return a study's schedule of trials in flight; studies without a stored ramp always use their maximum."""
    return TrialSchedule(record.window, *(record.ramp or (record.window,)))


def control_of(record: StudyRecord, target: SearchTarget) -> Sampler:
    """Build the sampler of a study's control."""
    own = ArmSchedule.of(schedule_of(record), 2)
    return make_sampler(record.control, target.space, {}, control_seed(record.seed), own, _explain(target))


def _explain(target: SearchTarget) -> Callable[[Config], str]:
    violation = target.violation

    def explain(config: Config) -> str:
        found = violation(config)
        return found.constraint if found else "infeasible"

    return explain
