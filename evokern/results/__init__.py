"""Results from Python: `evokern.load_study(...)`, from the database alone, on any machine."""

from evokern.results.study import StudyResults, load_study

__all__ = ["StudyResults", "load_study"]
