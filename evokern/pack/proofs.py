"""Verification of the variants of a package: sanitizer, fuzzing and the stages of a champion, in parallel processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from evokern.hardware.profiles import limits_for
from evokern.pack.candidates import Place, PoolCandidate
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
from evokern.workers.pool import OwnServerPool, wait


def cores() -> int:
    """Return the number of variants that are verified at a time."""
    return len(os.sched_getaffinity(0))


def verify_variants(
    variants: Mapping[str, tuple[PoolCandidate, Place]], done: Callable[[str, Mapping[str, Any], str], None]
) -> None:
    """Verify candidates at places, as many at a time as there are cores.

    Args:
        variants: key → candidate, and the place whose shape and settings its verification uses.
        done: called with each key, the stages by name as `verify --json` prints them, and why there are none if the
            process failed.
    """
    keys, waiting, running = [*variants], [*range(len(variants))], dict[int, OwnServerPool]()
    try:
        while waiting or running:
            while waiting and len(running) < cores():
                number = waiting.pop(0)
                running[number] = _started(number, *variants[keys[number]])
            for result in wait([*running.values()], 1.0):
                why = verifier_failure(result)
                done(keys[result.key], {} if why else result.value["stages"], why)
                running.pop(result.key).close()
    finally:
        for pool in running.values():
            pool.close()


def _started(number: int, candidate: PoolCandidate, place: Place) -> OwnServerPool:
    from evokern.api import FACTORIES

    subject, predicted = place.subject, place.subject.record.predicted
    context = WorkerContext.of(subject.kernel, subject.problems, limits_for(place.chip, subject.study.limits))
    settings = VerifierSettings(context, subject.study, subject.record.secret, predicted)
    pool = OwnServerPool(verifier_spec(FACTORIES.verifier, settings))
    seconds = TIME_WITHOUT_BUDGET_S[predicted]
    pool.submit(number, VerifyJob(number, candidate.config, seconds), seconds + START_S)
    return pool


def verification_at(candidate: PoolCandidate, place: Place, stages: Mapping[str, Any]) -> Verification:
    """Return the verification of a candidate from its stages at a place."""
    record = replace(place.subject.record, problems=tuple(one.key for one in place.subject.problems))
    trial = candidate.owner.subject.trial
    proof = ProofRecord("verify", trial.number, "", {"stages": stages})
    return verification(record, trial, [proof], [], interrupted=False, options=lambda: ())
