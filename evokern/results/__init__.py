"""Results in Python: `evokern.load_study(...)` reads a database on any machine."""

from evokern.results.study import (
    ExportFormat,
    SearchResult,
    StudyResults,
    StudySummary,
    given_path,
    list_studies,
    load_study,
    stored_name,
)

__all__ = [
    "ExportFormat", "SearchResult", "StudyResults", "StudySummary", "given_path", "list_studies", "load_study",
    "stored_name",
]  # fmt: skip
