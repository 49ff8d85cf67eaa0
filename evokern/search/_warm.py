"""Warm starts: what another study, a recording or the time model says of this study's candidates before any trial.

A warm start is fixed when a study begins and kept with it, so that an interrupted search goes on as it would have,
whatever became of the database that it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evokern.errors import DeviceError, StudyError
from evokern.files import is_file
from evokern.samplers import SIMULATED, WARM, Prior, objective
from evokern.search._model_search import search_model
from evokern.search._nearest_study import alike, known_times, nearest_prior
from evokern.search.identity import Advice, SearchTarget
from evokern.store import Store, StudyRecord, database_of, open_readonly, open_recording

AUTO = "auto"
"""The warm start that takes the nearest study of the same kernel which the database holds; none where it holds none."""
NONE = "none"
"""No warm start."""
SIMULATED_TRIALS = 300
"""Trials of the search of the simulated device (`sim`): some seeds find its fastest candidates after 200 only."""
SIMULATED_SHARE = 0.4
"""Share of a budget that they may take: the others are the GPU's."""

Notify = Callable[[str], None]
"""Called with a sentence on what is being done."""


def offered(
    store: Store, going_on: StudyRecord | None, target: SearchTarget, source: str | None, anew: Advice
) -> Prior | None:
    """Return what a source says, before anything is written.

    Args:
        store: the open database.
        going_on: a study with trials that is gone on with, None where one begins.
        target: what is searched.
        source: `runs.db:study`, a recording, `sim`, `none`, or `auto`, which None stands for.
        anew: what begins a study anew, for the message.

    Returns:
        What a study or a recording says. None where nothing is asked for, for `sim`, which takes time, and for `auto`,
        which cannot fail and is looked for when the study begins.

    Raises:
        StudyError: the study began with another warm start, or the source is empty.
        UsageError: the source cannot be read, tells nothing of these genes, or does not fit the device.
    """
    if source is not None and not source.strip():
        raise StudyError(f"--warm-start is empty: give {AUTO}, {NONE}, {SIMULATED}, DB:STUDY or FILE, or leave it away")
    if source in (None, AUTO):
        return None
    if going_on is not None:
        kept, name = store.prior(going_on), going_on.name
        if source == (NONE if kept is None else kept.source):
            return None
        was = f"from {kept.source}" if kept else "without a warm start"
        raise StudyError(
            f"study {name} began {was}, and its trials depend on it: leave --warm-start {source} away, or {anew()}"
        )
    if source == NONE:
        return None
    if source != SIMULATED:
        return recorded_prior(target, source)
    if target.table is not None or target.device.predicted:
        where = target.device.identity
        raise StudyError(f"--warm-start sim is for a GPU, and {where} has no time of its own; leave it away")
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
    """Return the prior of a study: the one it began with, or on a new study the one asked for.

    Args:
        store: the open database, which keeps it.
        record: the study.
        target: what is searched.
        source: as `offered`.
        offer: what `offered` returned.
        say: told what is being done and what came of it.
        begins: the study has no trial yet. A prior that an attempt without a trial left is taken again, unless
            something else is asked for now.
        neighbours: further databases that `auto` looks through.
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
            store.forget_prior(record)
        if source == NONE:
            return None
        if record.sampler not in WARM:
            say(f"sampler {record.sampler} cannot use a warm start and begins cold; {', '.join(WARM)} can")
            return None
        prior = offer or _searched(target, record, say)
        summary = prior_summary(prior)
    store.keep_prior(record, prior)
    say(summary)
    return prior


def _nearest(paths: tuple[Path, ...], record: StudyRecord, target: SearchTarget) -> tuple[Prior, str] | None:
    """Return what the databases know of the same kernel, and a sentence on it.

    A control asks what the sampler is worth by itself, and a recording is there to compare searches: both begin cold.
    """
    if target.table is not None or record.control != "none" or record.sampler not in WARM:
        return None
    return nearest_prior(paths, record, target)


def recorded_prior(target: SearchTarget, source: str) -> Prior:
    """Return what a recorded study or space says of the candidates of a search.

    Args:
        target: what is searched.
        source: `runs.db:study` or a recording's file.

    Raises:
        UsageError: it cannot be read, is of another kernel, shares no gene, or has no trial with values that are known
            here.
    """
    database = database_of(source)
    if database is None:
        try:
            answers = open_recording(source).answers.items()
        except DeviceError as error:
            if is_file(Path(source)):
                raise
            raise DeviceError(f"{error}, or one of the words {AUTO}, {NONE}, {SIMULATED}") from error
        seen = [(config, value) for config, answer in answers if (value := objective(answer)) is not None]
        return Prior.from_trials(target.space, seen, source)
    path, name = database
    with open_readonly(path) as reader:
        study = reader.study(name)
        ours = target.kernel.name
        played = target.table is not None or study.device.startswith("replay:")
        if study.kernel != ours and not played and not alike(study.genes, target.space.genes):
            raise StudyError(
                f"study {study.name} of {path} is of kernel {study.kernel}, whose genes are others than those of "
                f"{ours}; name a study of {ours}, or leave --warm-start away"
            )
        times = known_times(reader, study)
    if not times:
        raise StudyError(
            f"study {study.name} of {path} has no trial with a time to begin with; search it further, or leave "
            "--warm-start away"
        )
    return Prior.from_trials(target.space, times, source)


def prior_summary(prior: Prior) -> str:
    """Return what a prior consists of, in a sentence: genes used, genes ignored."""
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
        longer = "" if within_s is None else "give a longer --budget, or "
        raise StudyError(f"no candidate ran on the simulated {chip.model}{within}; {longer}leave --warm-start sim away")
    return Prior.from_trials(target.space, found, SIMULATED)
