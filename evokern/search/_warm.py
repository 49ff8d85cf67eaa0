"""Warm starts: what another study, a recording or the time model says of this study's candidates before any trial.

A warm start is fixed when a study begins and kept with it, so that an interrupted search goes on as it would have,
whatever became of the database that it came from.
"""

from __future__ import annotations

from collections.abc import Callable

from evokern.declaration.space import Config, Space
from evokern.device.recorded.table import Table
from evokern.errors import StudyError
from evokern.samplers import WARM, Prior, objective
from evokern.search._model_search import search_model
from evokern.search.identity import SearchTarget
from evokern.store import Store, StudyRecord, open_recording

SIMULATED = "sim"
"""The warm start that searches the simulated device for the chip at hand first."""
SIMULATED_TRIALS = 300
"""Trials of the search of the simulated device: some seeds find its fastest candidates after 200 only."""

Notify = Callable[[str], None]
"""Called with a sentence on what is being done."""


def offered(store: Store, going_on: StudyRecord | None, target: SearchTarget, source: str | None) -> Prior | None:
    """Return what a source says, before anything is written; None without one, and for `sim`, which takes time.

    Args:
        store: the open database.
        going_on: a study with trials that is gone on with, None where one begins.
        target: what is searched.
        source: `runs.db:study`, a recording, `sim`, or None for none.

    Raises:
        StudyError: the study began with another warm start.
        UsageError: the source cannot be read, tells nothing of these genes, or does not fit the device.
    """
    if source is None:
        return None
    if going_on is not None:
        kept, name = store.prior(going_on), going_on.name
        if kept is not None and kept.source == source:
            return None
        was = f"from {kept.source}" if kept else "without a warm start"
        raise StudyError(
            f"study {name} began {was}, and its trials depend on it: leave --warm-start {source} away, or "
            f"`--fresh` begins anew and keeps the old study as {name}.1"
        )
    if source != SIMULATED:
        return recorded_prior(target.space, source)
    if target.table is not None or target.device.predicted:
        where = target.device.identity
        raise StudyError(f"--warm-start sim is for a GPU, and {where} has no time of its own; leave it away")
    return None


def warm_start(
    store: Store, record: StudyRecord, target: SearchTarget, source: str | None, offer: Prior | None, say: Notify
) -> Prior | None:
    """Return the prior of a study: the one it began with, or on a new study the one asked for.

    Args:
        store: the open database, which keeps it.
        record: the study.
        target: what is searched.
        source: as `offered`.
        offer: what `offered` returned.
        say: told what is being done and what came of it.
    """
    kept = store.prior(record)
    if source is None or (kept is not None and kept.source == source):
        return kept
    if record.sampler not in WARM:
        say(f"sampler {record.sampler} cannot use a warm start and begins cold; {', '.join(WARM)} can")
        return None
    prior = offer or _searched(target, record, say)
    store.keep_prior(record, prior)
    say(prior_summary(prior))
    return prior


def recorded_prior(space: Space, source: str) -> Prior:
    """Return what a recorded study or space says of the candidates of this one.

    Args:
        space: this study's genes with feasibility bound.
        source: `runs.db:study` or a recording's file.

    Raises:
        UsageError: it cannot be read, shares no gene, or has no trial with values that are known here.
    """
    return Prior.from_trials(space, _timed(open_recording(source)), source)


def _timed(table: Table) -> list[tuple[Config, float]]:
    found = ((config, objective(answer)) for config, answer in table.answers.items())
    return [(config, value) for config, value in found if value is not None]


def prior_summary(prior: Prior) -> str:
    """Return what a prior consists of, in a sentence: genes used, genes ignored."""
    ignored = f"; ignored: {', '.join(prior.ignored)}" if prior.ignored else ""
    return (
        f"warm start from {prior.source}: {len(prior.entries)} candidates; genes used: {', '.join(prior.used)}{ignored}"
    )


def _searched(target: SearchTarget, record: StudyRecord, say: Notify) -> Prior:
    chip = target.device.profile
    say(f"warm start: searching the simulated {chip.model}, {SIMULATED_TRIALS} candidates")
    found = search_model(target, chip, SIMULATED_TRIALS, record.seed, say)
    if not found:
        raise StudyError(f"no candidate ran on the simulated {chip.model}; leave --warm-start sim away")
    return Prior.from_trials(target.space, found, SIMULATED)
