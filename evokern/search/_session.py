"""A session from its request to its result: find what is searched, search it, close its device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from evokern.search.request import SessionRequest, WorkerFactories
from evokern.search.results import OnProgress, SearchResult

if TYPE_CHECKING:
    from evokern.study.settings import Study


def search_study(
    study: str | Path | Study,
    request: SessionRequest,
    *,
    db: str | Path,
    on_progress: OnProgress | None,
    factories: WorkerFactories,
) -> SearchResult:
    """Search a study, or resume it where it stands in the database.

    Args:
        study: a study's name, the path to its TOML file, or a study.
        request: what this session is asked for.
        db: database that keeps the results.
        on_progress: called with a `Progress` at every event, from the searching thread.
        factories: of the workers that say why candidates crash, and that verify the champion.

    Raises:
        UsageError: study, kernel, device, store or the request is not usable as asked; the message says what to do.
    """
    from evokern.search._find import find

    target = find(study, request)
    try:
        from evokern.search._run import run  # only now: see `_find`

        return run(target, Path(db), request, on_progress or (lambda progress: None), factories)
    finally:
        target.device.close()


def resume_study(
    study: str | None,
    request: SessionRequest,
    *,
    db: str | Path,
    on_progress: OnProgress | None,
    factories: WorkerFactories,
) -> SearchResult:
    """Resume a study from what the database keeps of it; its TOML file is not read.

    Args:
        study: its name; None takes the one searched last.
        request: as `search_study`.
        db: as `search_study`.
        on_progress: as `search_study`.
        factories: as `search_study`.

    Raises:
        UsageError: as `search_study`.
    """
    from evokern.search.identity import study_of
    from evokern.store import open_readonly

    with open_readonly(db) as reader:
        record = reader.study(study)
    return search_study(study_of(record), request, db=db, on_progress=on_progress, factories=factories)
