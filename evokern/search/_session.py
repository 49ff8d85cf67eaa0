"""Search or resume a study in one session."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from evokern.errors import StudyError
from evokern.search.request import WHOLE, SessionPart, SessionRequest, WorkerFactories
from evokern.search.results import OnProgress, SessionResult
from evokern.study.discovery import study_files
from evokern.wording import command

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
) -> SessionResult:
    """Search a study, or resume it from the database.

    Args:
        study: name of a study, path to its TOML file, or a `Study`.
        request: options of this session.
        db: database for the results.
        on_progress: called with a `Progress` at every event, from the searching thread.
        factories: workers that explain crashes and that verify the champion.
        part: the part of the study that this session searches.

    Raises:
        UsageError: the study, kernel, device, database or an option cannot be used; the message gives the remedy.
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
) -> SessionResult:
    from evokern.search._find import find

    try:
        target = find(study, request, resumed=resumed)
    except StudyError as error:
        if isinstance(study, str) and study not in study_files() and _stores(db, study):
            line = command("resume", study, "--db", db)
            raise StudyError(f"there is no study file {study}, but {db} contains this study; run `{line}`") from error
        raise
    try:
        from evokern.search._run import run  # imported late, see `_find`

        return run(target, db, request, on_progress or (lambda progress: None), factories, part)
    finally:
        target.device.close()


def _stores(db: Path, study: str) -> bool:
    from evokern.store import open_readonly

    if not db.is_file():
        return False
    with open_readonly(db) as reader:
        return any(record.name == study for record in reader.studies())


def resume_study(
    study: str | None,
    request: SessionRequest,
    *,
    db: str | Path,
    on_progress: OnProgress | None,
    factories: WorkerFactories,
) -> SessionResult:
    """Resume a study from its copy in the database, without reading its TOML file.

    The kernel folder that the database names is not trusted; with `request.trust`, the stored copy of its code runs.

    Args:
        study: name of the study; None for the study searched last.
        request: as in `search_study`.
        db: as in `search_study`.
        on_progress: as in `search_study`.
        factories: as in `search_study`.

    Raises:
        UsageError: as in `search_study`.
    """
    from evokern.search.identity import study_of
    from evokern.search.stored_kernel import resumed_kernel
    from evokern.store import open_readonly

    with tempfile.TemporaryDirectory(prefix="evokern-") as scratch:
        with open_readonly(db) as reader:
            record = reader.study(study)
            if not record.device.startswith("replay:"):  # a recording has no code to run
                trust, changes = request.trust, request.allow_changes
                kernel = resumed_kernel(reader, record, Path(scratch), trust=trust, allow_changes=changes)
                request = replace(request, kernel=kernel)
        # `trust` applied to the stored copy only; do not trust the folder that the database names.
        request = replace(request, trust=False)
        return _searched(study_of(record), request, Path(db), on_progress, factories, resumed=True)
