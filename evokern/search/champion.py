"""The end of a search: its champion is verified, and where it is refuted the next one takes its place.

What a search measured passed the gate. The verification asks more of the one that is handed over: every small problem
under the sanitizer, shapes that no search looked at, and on a simulated device more blocks of the study's own problems.
It runs in a process of its own and within the study's budget; what it did not come to is said.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from evokern.declaration.space import Config
from evokern.errors import EvokernError
from evokern.hardware.profiles import limits_for
from evokern.search.identity import SearchTarget
from evokern.store import Session
from evokern.study.discovery import WorkerContext
from evokern.study.settings import Study
from evokern.study.trial import Outcome
from evokern.workers.pool import ForkServer, JobResult, WorkerPool, WorkerSpec, wait

RESERVED_SHARE = 0.1
"""Share of a budget that is kept for the verification of the champion."""
RESERVED_S = {False: 10.0, True: 60.0}
"""Most seconds of a budget that are kept for it: on a GPU, and on a simulated device."""
UNLIMITED_S = {False: 10.0, True: 300.0}
"""Seconds that it may take where no budget ends the search."""
MOST_REFUTED = 5
"""Champions that may be refuted before the search is over."""
START_S = 30.0
"""Seconds for the process to start, on top: it imports torch."""


@dataclass(frozen=True)
class VerifierSettings:
    """What the verifying process shares over its jobs."""

    context: WorkerContext
    """The kernel, the study's problems, the chip under the study's limits."""
    study: Study
    """Gate and simulation settings."""
    secret: int
    """Of the study."""
    predicted: bool
    """Whether times, and so the gate at the study's own problems, come from the simulated device."""


@dataclass(frozen=True)
class VerifyJob:
    """One trial to verify; answered with stages as `verify --json` prints them, JSON values."""

    number: int
    """The trial."""
    config: Config
    """Its configuration."""
    seconds: float
    """Time that fuzzing may take; a fixed number of cases ends it before."""


def reserve(budget_s: float | None, predicted: bool) -> float:
    """Return the seconds of a budget that the loop leaves to the verification."""
    return 0.0 if budget_s is None else min(RESERVED_S[predicted], RESERVED_SHARE * budget_s)


def verify_champion(
    target: SearchTarget,
    session: Session,
    verifier: str,
    seconds: float,
    *,
    stopped: Callable[[], bool],
    note: Callable[[str], None],
) -> None:
    """Verify the fastest measured trial; where it is refuted, the next.

    Args:
        target: what was searched.
        session: keeps what was found.
        verifier: factory of the worker, as a `WorkerSpec` names it: takes `VerifierSettings`, answers `VerifyJob`.
        seconds: how long all of it may take.
        stopped: whether the user wants to stop.
        note: takes a sentence for the user.
    """
    record = session.study
    known = {proof.trial: proof.passed for proof in session.proofs()}
    measured = [trial for trial in session.recorded_trials()[1] if trial.outcome is Outcome.MEASURED]
    order = sorted(measured, key=lambda trial: (trial.evaluation.time_us or 0.0, trial.number))
    left = [trial for trial in order if known.get(trial.number) is not False]
    if not left or known.get(left[0].number):
        return
    end = time.monotonic() + seconds
    chip = limits_for(target.device.profile, target.study.limits)
    context = WorkerContext(target.kernel.folder, target.problems, chip)
    settings = VerifierSettings(context, target.study, record.secret, target.device.predicted)
    with _process(verifier, settings) as pool:
        for trial in left[:MOST_REFUTED]:
            if known.get(trial.number):
                return
            note(f"verifying trial {trial.number}")
            result = _answer(pool, VerifyJob(trial.number, trial.config, 0.5 * seconds), end, stopped)
            if isinstance(result, str):
                note(f"trial {trial.number} is not verified: {result}; `evokern verify {record.name}` does it")
                return
            session.proved(
                trial.number, {"study": record.name, "trial": trial.number, "device": record.device, **result}
            )
            failed = [f"{name}: {one['detail']}" for name, one in result["stages"].items() if one["state"] == "failed"]
            if not failed:
                return
            note(f"trial {trial.number} is refuted, and no champion: {failed[0]}")


@contextmanager
def _process(verifier: str, settings: VerifierSettings) -> Iterator[WorkerPool]:
    # The simulator runs on the CPU alone; a GPU must not even be seen by a process that loads the kernel.
    environment = {"CUDA_CACHE_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    server = ForkServer()
    try:
        pool = WorkerPool(server, WorkerSpec(verifier, settings, environment), size=1)
        try:
            yield pool
        finally:
            pool.close()
    finally:
        server.close()


def _answer(pool: WorkerPool, job: VerifyJob, end: float, stopped: Callable[[], bool]) -> dict[str, Any] | str:
    """Return what a job found, or why there is no answer."""
    try:
        pool.submit(job.number, job, max(1.0, end - time.monotonic()) + START_S)
        while not stopped():
            for result in wait([pool], 0.1):
                return _found(result)
            if time.monotonic() >= end:
                return "the budget ended before it was done"
    except (EvokernError, OSError) as error:
        return str(error).splitlines()[0]
    return "interrupted"


def _found(result: JobResult) -> dict[str, Any] | str:
    if result.status == "done":
        found: dict[str, Any] = result.value
        return found
    how = f"no answer in {result.value:g} s" if result.status == "overran" else str(result.value).splitlines()[0]
    return f"the verifying process failed ({how})"
