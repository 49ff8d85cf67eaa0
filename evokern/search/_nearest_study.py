"""Which study of the database a new one begins with where its user names none: of the same kernel, the nearest.

| order | by |
|---|---|
| 1 | the device: the study's own, then the same chip by another kind of time (predicted for measured) |
| 2 | the problem: `problem_distance`, a mean over this study's problems of the distance to the other's nearest one |
| 3 | the number of candidates with a time, most first; then the study that was searched last |

What the next ones on the same device found comes with it (`Prior.beside`).

What counts as the same kernel: its name, problems that this one's fields can read, and genes that are `alike`. The code
may have changed since. Studies at the very same problems are left out (`--fresh`, another seed: a search that is begun
anew is to find what it finds), and so are other chips: on recorded spaces of two chips such a beginning misled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from evokern.declaration.genes import Config, Gene, Value
from evokern.declaration.kernel import Problem
from evokern.device.recorded.recording import chip_of_model
from evokern.errors import StoreError, UsageError
from evokern.measurement.timing import FIRST_TIMING_RULE
from evokern.samplers import FURTHER, Prior, objective
from evokern.search.identity import SearchTarget
from evokern.store import Reader, StudyRecord, open_readonly
from evokern.study.trial import Outcome
from evokern.wording import and_those_of

LEAST_TIMED = 8
"""Candidates with a time below which a study says too little: as many fill the first trials."""
UNLIKE = 2.0
"""Distance of two values that have no ratio (a flag, a data type): that of a factor of four in a dimension."""
SHARED_GENES = 0.5
"""Share of the genes of two kernels that both must have."""


def nearest_prior(paths: Sequence[Path], record: StudyRecord, target: SearchTarget) -> tuple[Prior, str] | None:
    """Return what the nearest study of some databases knows, and a sentence on it; None where there is none.

    Damaged trials and those that their verification refuted are left out.

    Args:
        paths: the databases: the study's own first, then others, of which one that cannot be read is passed over.
        record: the study that begins.
        target: what is searched.
    """
    found: list[tuple[tuple[float, ...], StudyRecord, Prior]] = []
    for index, db in enumerate(paths):
        with suppress(*([StoreError] if index else [])), open_readonly(db) as reader:
            rank_before: tuple[float, float] | None = None
            taken = 0
            ranked = sorted(_eligible(reader, record, target), key=lambda entry: entry[0])
            for place, (rank, study) in enumerate(ranked):
                if taken > FURTHER and rank != rank_before:
                    break
                prior = _prior_of(reader, study, target, f"{db}:{study.name}", rank[1])
                if prior is not None:
                    rank_before = rank
                    taken += 1
                    found.append(((*rank, -len(prior.entries), index, place), study, prior))
    if not found:
        return None
    (place_of_best, study, prior), *others = sorted(found, key=lambda entry: entry[0])
    prior = prior.beside([other for place, _, other in others if place[0] == place_of_best[0]])
    where = f"{study.problems_in_words()} on {study.device}"
    lacking = f"; ignored: {', '.join(prior.ignored)}" if prior.ignored else ""
    return prior, (
        f"warm start from study {study.name} ({where}): {len(prior.entries)} candidates"
        f"{and_those_of(len(prior.further))}{lacking}; --warm-start none begins without"
    )


def known_times(reader: Reader, study: StudyRecord) -> list[tuple[Config, float]]:
    """Return the candidates of a study that have a time, with log(time in µs); a slow one's is what was seen of it.

    A program that its verification refuted is left out, under whatever configuration it was tried.
    """
    trials = [trial for trial in reader.trials(study) if trial.outcome is not Outcome.LOST]
    numbers = reader.refuted(study)
    refuted = {trial.evaluation.fingerprint for trial in trials if trial.number in numbers} - {None}
    return [
        (trial.config, value)
        for trial in trials
        if trial.number not in numbers and trial.evaluation.fingerprint not in refuted
        if (value := objective(trial.evaluation)) is not None
    ]


def alike(one: Sequence[Gene], other: Sequence[Gene]) -> bool:
    """Tell whether two kernels have enough genes in common for one to say something of the other."""
    here, there = ({gene.name for gene in genes} for genes in (one, other))
    return len(here & there) >= SHARED_GENES * len(here | there)


def problem_distance(one: Problem, other: Problem) -> float:
    """Return how far two problems of a kernel are apart: the sum of |log2| of the ratios of their fields.

    Args:
        one: a problem.
        other: another one with the same fields.
    """
    return sum(_field_distance(one[name], other[name]) for name in one)


def _field_distance(one: Value, other: Value) -> float:
    if one == other:
        return 0.0
    if isinstance(one, int) and isinstance(other, int) and one > 0 and other > 0:
        return abs(math.log2(one / other))
    return UNLIKE


def _eligible(
    reader: Reader, record: StudyRecord, target: SearchTarget
) -> Iterable[tuple[tuple[float, float], StudyRecord]]:
    """Yield the studies that may say something, the one searched last first, each behind its rank."""
    for study in reader.studies():
        if study.uuid == record.uuid or study.kernel != record.kernel or study.device.startswith("replay:"):
            continue
        if chip_of_model(study.device).model != target.device.profile.model or _timed_otherwise(study, record):
            continue
        if not alike(study.genes, target.space.genes):
            continue
        try:
            problems = [target.kernel.problem(text) for text in study.problems]
        except UsageError:  # the fields were others then
            continue
        distances = [min(problem_distance(mine, other) for other in problems) for mine in target.problems]
        if not any(distances):  # the same search once more: whoever begins it anew wants to see what it finds
            continue
        yield (float(study.device != record.device), sum(distances) / len(distances)), study


def _timed_otherwise(study: StudyRecord, record: StudyRecord) -> bool:
    """Tell whether both were measured, by different rules: what was slow then may be fast now."""
    if study.predicted or record.predicted:
        return False
    rules = {FIRST_TIMING_RULE if one.timing_rule is None else one.timing_rule for one in (study, record)}
    return len(rules) > 1


def _prior_of(reader: Reader, study: StudyRecord, target: SearchTarget, source: str, distance: float) -> Prior | None:
    """Return what a study says of the candidates at hand; None where that is too little."""
    try:
        prior = Prior.from_trials(target.space, known_times(reader, study), source)
    except UsageError:  # no trial of it has values that are known here
        return None
    return replace(prior, distance=distance) if len(prior.entries) >= LEAST_TIMED else None
