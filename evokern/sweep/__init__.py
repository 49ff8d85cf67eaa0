"""Sweeps: many studies from one file, each in its own database, searched within one budget.

A TOML file lists kernels, problems, data types and devices; each combination is one study (`plan`). The studies are
searched in time slices. A rule (`rule`) chooses the next study. Its decisions are stored (`journal`), so that the same
command resumes an interrupted sweep.
"""

from evokern.sweep.journal import Journal, SweepSlice, sweep_lock
from evokern.sweep.plan import PlannedStudy, Sweep, read_sweep
from evokern.sweep.request import SweepRequest, SweepResult
from evokern.sweep.run import run_sweep
from evokern.sweep.study_state import StudyState, state_of

__all__ = [
    "Journal",
    "PlannedStudy",
    "StudyState",
    "Sweep",
    "SweepRequest",
    "SweepResult",
    "SweepSlice",
    "read_sweep",
    "run_sweep",
    "state_of",
    "sweep_lock",
]
