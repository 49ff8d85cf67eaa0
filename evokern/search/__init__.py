"""Search: propose, evaluate, record and report results to the sampler, within a budget and over any number of sessions.

`evokern.api` provides `evokern.search(...)`. A session finds the study and the kernel, and opens the device and the
database. It then creates or resumes the study, runs the search loop (`loop`), and closes the database.
"""

from evokern.search._session import resume_study, search_study
from evokern.search._stop import signal_handler
from evokern.search.request import SessionPart, SessionRequest, WorkerFactories
from evokern.search.results import ArmProgress, EndReason, OnProgress, Progress, SessionResult

__all__ = [
    "ArmProgress",
    "EndReason",
    "OnProgress",
    "Progress",
    "SessionPart",
    "SessionRequest",
    "SessionResult",
    "WorkerFactories",
    "resume_study",
    "search_study",
    "signal_handler",
]
