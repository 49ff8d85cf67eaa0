"""Run one job on a pool and wait for its result, outside the loop of a search."""

from __future__ import annotations

import time
from typing import Any

from evokern.errors import InternalError
from evokern.events import step
from evokern.workers.jobs import JobPool
from evokern.workers.pool import wait

_SINGLE_JOB = -1
"""Key of the job; it cannot be a trial number."""


class JobDeadlineError(InternalError):
    """Job that exceeded its deadline; its worker was stopped."""


def run_single_job(pool: JobPool, job: Any, deadline_s: float, what: str, patience_s: float = 200.0) -> Any:
    """Run one job and return its result; results of other jobs are ignored.

    Args:
        pool: pool that runs the job.
        job: the job.
        deadline_s: deadline of the job in seconds.
        what: name of the job, for messages.
        patience_s: additional seconds for workers to start and to finish earlier jobs.

    Raises:
        JobDeadlineError: the job exceeded its deadline.
        EvokernError: the handler raised it, or the worker processes died.
    """
    with step(what):
        return _result(pool, job, deadline_s, what, patience_s)


def _result(pool: JobPool, job: Any, deadline_s: float, what: str, patience_s: float) -> Any:
    pool.submit(_SINGLE_JOB, job, deadline_s)
    end = time.monotonic() + deadline_s + patience_s
    while time.monotonic() < end:
        for result in wait([pool], 1.0):
            if result.key != _SINGLE_JOB:
                continue  # a candidate left by a closed pipeline
            if result.status == "done":
                return result.value
            if result.status == "raised":
                raise result.value
            if result.status == "lost":
                raise result.lost_error(what)
            failed, printed = f"{what}: the worker process failed", result.log or "it printed nothing"
            if result.status == "overran":
                raise JobDeadlineError(f"{failed} (no result within {result.value:g} s); {printed}")
            raise InternalError(f"{failed} ({result.value}); {printed}")
    raise InternalError(f"{what}: no worker process returned a result")
