"""Results in Python: `evokern.load_study(...)` reads a database on any machine."""

from evokern.results.study import StudyResults, load_study

__all__ = ["StudyResults", "load_study"]
