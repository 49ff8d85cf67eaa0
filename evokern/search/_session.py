"""A session from its request to its result: find what is searched, search it, close its device."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from evokern.search.request import WHOLE, SessionPart, SessionRequest, WorkerFactories
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
    part: SessionPart = WHOLE,
) -> SearchResult:
    """Search a study, or resume it where it stands in the database.

    Args:
        study: a study's name, the path to its TOML file, or a study.
        request: what this session is asked for.
        db: database that keeps the results.
        on_progress: called with a `Progress` at every event, from the searching thread.
        factories: of the workers that say why candidates crash, and that verify the champion.
        part: which part of the study this session does.

    Raises:
        UsageError: study, kernel, device, store or the request is not usable as asked; the message says what to do.
    """
    return _searched(study, request, Path(db), on_progress, factories, part=part)


def _searched(
    study: str | Path | Study,
    request: SessionRequest,
    db: Path,
    on_progress: OnProgress | None,
    factories: WorkerFactories,
    *,
    resumed: bool = False,
    part: SessionPart = WHOLE,
) -> SearchResult:
    from evokern.search._find import find

    target = find(study, request, resumed=resumed)
    try:
        from evokern.search._run import run  # only now: see `_find`

        return run(target, db, request, on_progress or (lambda progress: None), factories, part)
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

    The folder that the database names for the kernel is never trusted by it: `request.trust` runs the copy that the
    database keeps.

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
    from evokern.search.stored_kernel import resumed_kernel
    from evokern.store import open_readonly

    with tempfile.TemporaryDirectory(prefix="evokern-") as scratch:
        with open_readonly(db) as reader:
            record = reader.study(study)
            if not record.device.startswith("replay:"):  # a recording has no code to run
                place, trust, go_on = Path(scratch), request.trust, request.go_on
                request = replace(request, kernel=resumed_kernel(reader, record, place, trust=trust, go_on=go_on))
        # What `trust` was asked for is decided; it trusts no folder that the database names.
        request = replace(request, trust=False)
        return _searched(study_of(record), request, Path(db), on_progress, factories, resumed=True)
