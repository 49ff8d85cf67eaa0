"""One job for a pool whose answer is waited for: before a search begins, after it ended, or apart from any."""

from __future__ import annotations

import time
from typing import Any

from evokern.errors import InternalError
from evokern.workers.jobs import JobPool
from evokern.workers.pool import wait

_SINGLE_JOB = -1
"""Key of a job that no candidate's trial number can be."""


def run_single_job(pool: JobPool, job: Any, deadline_s: float, what: str, patience_s: float = 200.0) -> Any:
    """Run one job and return its answer; what a closed pipeline left behind is passed over.

    Args:
        pool: who answers.
        job: what to do.
        deadline_s: seconds that the job may take.
        what: its name, for messages.
        patience_s: seconds that workers may take to start, and to end what they have.

    Raises:
        EvokernError: what the handler raised, or that its processes died or overran.
    """
    pool.submit(_SINGLE_JOB, job, deadline_s)
    end = time.monotonic() + deadline_s + patience_s
    while time.monotonic() < end:
        for result in wait([pool], 1.0):
            if result.key != _SINGLE_JOB:
                continue  # a candidate that a closed pipeline left behind
            if result.status == "done":
                return result.value
            if result.status == "raised":
                raise result.value
            if result.status == "lost":
                raise result.lost_error(what)
            how = result.value if result.status == "died" else f"no answer in {result.value:g} s"
            raise InternalError(f"{what}: the worker process failed ({how}); {result.log or 'it printed nothing'}")
    raise InternalError(f"{what}: no worker answered")
