"""The search: ask a sampler, evaluate on a device, record, tell; within a budget, over any number of sessions.

`evokern.search(...)` is `evokern.api`'s. The stages of a session: find study and kernel, open device and store, begin
or resume the study, run the loop (`_loop`), fold the store in.
"""

from evokern.search._session import resume_study, search_study
from evokern.search._stop import handled
from evokern.search.request import SessionPart, SessionRequest, WorkerFactories
from evokern.search.results import ArmProgress, EndReason, OnProgress, Progress, SearchResult

__all__ = [
    "ArmProgress",
    "EndReason",
    "OnProgress",
    "Progress",
    "SearchResult",
    "SessionPart",
    "SessionRequest",
    "WorkerFactories",
    "handled",
    "resume_study",
    "search_study",
]
