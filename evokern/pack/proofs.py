"""Verification of the variants of a package: sanitizer, fuzzing and the stages of a champion, in parallel processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evokern.declaration.genes import Config
from evokern.errors import EvokernError
from evokern.hardware.profiles import limits_for
from evokern.pack.candidates import Place
from evokern.search.champion import (
    START_S,
    TIME_WITHOUT_BUDGET_S,
    VerifierSettings,
    VerifyJob,
    verifier_failure,
    verifier_spec,
)
from evokern.store import ProofRecord, Verification, verification
from evokern.study.discovery import WorkerContext
from evokern.study.trial import Trial
from evokern.workers.jobs import JobResult
from evokern.workers.pool import OwnServerPool, wait


@dataclass(frozen=True)
class Unverified:
    """A variant without a verification."""

    title: str
    """Origin of the variant, for people."""
    place: Place
    """Place whose shape and settings the verification uses."""
    config: Config
    """Values of the genes."""


def verified_stages(
    variants: Sequence[Unverified], report: Callable[[str], None], done: Callable[[int, Mapping[str, Any]], None]
) -> None:
    """Verify variants, as many at once as there are cores.

    Args:
        variants: the variants.
        report: prints a line after each variant.
        done: called with the place of each variant in `variants` and its stages by name, as `verify --json` prints.

    Raises:
        EvokernError: a process that verifies a variant failed.
    """
    waiting, running = list(enumerate(variants)), dict[int, OwnServerPool]()
    try:
        while waiting or running:
            while waiting and len(running) < len(os.sched_getaffinity(0)):
                number, one = waiting.pop(0)
                running[number] = _started(number, one)
            for result in wait([*running.values()], 1.0):
                done(result.key, _stages(result, variants[result.key]))
                report(f"finished the verification of {variants[result.key].title}")
                running.pop(result.key).close()
    finally:
        for pool in running.values():
            pool.close()


def _started(number: int, one: Unverified) -> OwnServerPool:
    from evokern.api import FACTORIES

    subject, predicted = one.place.subject, one.place.subject.record.predicted
    profile = limits_for(one.place.chip, subject.study.limits)
    context = WorkerContext.of(subject.kernel, subject.problems, profile)
    settings = VerifierSettings(context, subject.study, subject.record.secret, predicted)
    pool = OwnServerPool(verifier_spec(FACTORIES.verifier, settings))
    seconds = TIME_WITHOUT_BUDGET_S[predicted]
    pool.submit(number, VerifyJob(number, one.config, seconds), seconds + START_S)
    return pool


def _stages(result: JobResult, one: Unverified) -> Mapping[str, Any]:
    if why := verifier_failure(result):
        raise EvokernError(f"{one.title} at {one.place.problem} could not be verified: {why}")
    stages: Mapping[str, Any] = result.value["stages"]
    return stages


def verification_at(place: Place, trial: Trial, stages: Mapping[str, Any]) -> Verification:
    """Return the verification of a variant from its stages at a place.

    Args:
        place: the place.
        trial: trial from which the variant comes.
        stages: the stages by name.
    """
    record = replace(place.subject.record, problems=tuple(one.key for one in place.subject.problems))
    proof = ProofRecord("verify", trial.number, "", {"stages": stages})
    return verification(record, trial, [proof], [], interrupted=False, options=lambda: ())
