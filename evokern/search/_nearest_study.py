"""Find the nearest study of the same kernel in a database, for the warm start `auto`, by the following criteria.

 order | by |
---|---|
 1 | device: the study's own device, then the same chip with predicted instead of measured times or vice versa |
 2 | problem: `problem_distance` from each problem of this study to the nearest one of the other study, averaged |
 3 | number of timed candidates, most first; then the study searched last |

Results of the next nearest studies on the same device are added (`Prior.with_further`).

Two studies have the same kernel if the kernel names are equal, the problems have the same fields, and enough genes are
the same (`share_enough_genes`). The code may have changed. Studies on the same problems are skipped, because a search
that starts over (`--fresh`, another seed) must find its own results. Studies on other chips are skipped because their
results misled searches of recorded spaces.
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

MIN_TIMED_CANDIDATES = 8
"""Minimum number of timed candidates that a usable study has, enough for the first trials of the new study."""
NO_RATIO_DISTANCE = 2.0
"""Distance between different values that have no ratio (flags, data types): that of a factor of four in a dimension."""
SHARED_GENES = 0.5
"""Minimum share of their genes that two kernels must have in common."""


def nearest_prior(paths: Sequence[Path], record: StudyRecord, target: SearchTarget) -> tuple[Prior, str] | None:
    """Return the prior from the nearest study in several databases, with a summary sentence; None if there is none.

    Damaged and refuted trials are skipped.

    Args:
        paths: databases, the study's own database first; other databases are skipped if they cannot be read.
        record: the new study.
        target: study, kernel, device and space to search.
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
    prior = prior.with_further([other for place, _, other in others if place[0] == place_of_best[0]])
    where = f"{study.problems_in_words()} on {study.device}"
    lacking = f"; ignored: {', '.join(prior.ignored)}" if prior.ignored else ""
    return prior, (
        f"warm start from study {study.name} ({where}): {len(prior.entries)} candidates"
        f"{and_those_of(len(prior.further))}{lacking}; to start without a warm start, use --warm-start none"
    )


def known_times(reader: Reader, study: StudyRecord) -> list[tuple[Config, float]]:
    """Return the timed candidates of a study with log(time in µs); for a slow candidate, its last known time.

    Refuted programs are skipped, for all their configurations.
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


def share_enough_genes(one: Sequence[Gene], other: Sequence[Gene]) -> bool:
    """Return whether two kernels have enough genes in common for a warm start."""
    here, there = ({gene.name for gene in genes} for genes in (one, other))
    return len(here & there) >= SHARED_GENES * len(here | there)


def problem_distance(one: Problem, other: Problem) -> float:
    """Return the distance between two problems of a kernel: the sum of |log2(ratio)| over all fields.

    Args:
        one: a problem.
        other: a problem with the same fields.
    """
    return sum(_field_distance(one[name], other[name]) for name in one)


def _field_distance(one: Value, other: Value) -> float:
    if one == other:
        return 0.0
    if isinstance(one, int) and isinstance(other, int) and one > 0 and other > 0:
        return abs(math.log2(one / other))
    return NO_RATIO_DISTANCE


def _eligible(
    reader: Reader, record: StudyRecord, target: SearchTarget
) -> Iterable[tuple[tuple[float, float], StudyRecord]]:
    """Yield usable studies with their rank, starting with the study that was searched last."""
    for study in reader.studies():
        if study.uuid == record.uuid or study.kernel != record.kernel or study.device.startswith("replay:"):
            continue
        if chip_of_model(study.device).model != target.device.profile.model or _different_timing_rules(study, record):
            continue
        if not share_enough_genes(study.genes, target.space.genes):
            continue
        try:
            problems = [target.kernel.problem(text) for text in study.problems]
        except UsageError:  # the kernel had other fields then
            continue
        distances = [min(problem_distance(mine, other) for other in problems) for mine in target.problems]
        if not any(distances):  # same problems: a search that starts over must find its own results
            continue
        yield (float(study.device != record.device), sum(distances) / len(distances)), study


def _different_timing_rules(study: StudyRecord, record: StudyRecord) -> bool:
    """Return whether both studies were measured under different timing rules, so that times are not comparable."""
    if study.predicted or record.predicted:
        return False
    rules = {FIRST_TIMING_RULE if one.timing_rule is None else one.timing_rule for one in (study, record)}
    return len(rules) > 1


def _prior_of(reader: Reader, study: StudyRecord, target: SearchTarget, source: str, distance: float) -> Prior | None:
    """Return the prior from a study; None if it has too few timed candidates."""
    try:
        prior = Prior.from_trials(target.space, known_times(reader, study), source)
    except UsageError:  # no trial has values that this kernel has
        return None
    return replace(prior, distance=distance) if len(prior.entries) >= MIN_TIMED_CANDIDATES else None
