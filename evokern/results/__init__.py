"""Results in Python: `evokern.load_study(...)` reads a database on any machine."""

from evokern.results.study import (
    ExportFormat,
    SearchResult,
    StudyResults,
    StudySummary,
    database_path,
    list_studies,
    load_study,
)

__all__ = [
    "ExportFormat",
    "SearchResult",
    "StudyResults",
    "StudySummary",
    "database_path",
    "list_studies",
    "load_study",
]
