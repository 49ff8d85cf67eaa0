"""Sweeps: many studies of one file, each in a database of its own, searched in turn within one budget.

A TOML file names kernels, problems, data types and devices; each combination is a plain study (`plan`). Time goes to
them in slices, by a rule (`rule`) whose decisions are kept (`journal`), so that the same command goes on after any end.
"""

from evokern.sweep.journal import Journal, SweepSlice, sweep_lock
from evokern.sweep.plan import PlannedStudy, Sweep, read_sweep
from evokern.sweep.request import SweepRequest, SweepResult
from evokern.sweep.run import run_sweep
from evokern.sweep.standing import StudyStanding, standing_of

__all__ = [
    "Journal",
    "PlannedStudy",
    "StudyStanding",
    "Sweep",
    "SweepRequest",
    "SweepResult",
    "SweepSlice",
    "read_sweep",
    "run_sweep",
    "standing_of",
    "sweep_lock",
]
