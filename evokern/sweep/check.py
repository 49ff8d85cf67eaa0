"""Check a sweep before anything runs: its studies, and the settings stored in an existing folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evokern.declaration.problem import ProblemField, parse_problems
from evokern.errors import KernelError, StoreError, StudyError
from evokern.search.identity import changed_settings
from evokern.store import has_studies, open_readonly
from evokern.study.settings import Study
from evokern.sweep.plan import PlannedStudy, Sweep


def check_sweep(sweep: Sweep, folder: Path, *, bounded: bool, allow_changes: bool) -> None:
    """Reject a sweep that cannot be run, without executing kernel code.

    Args:
        sweep: sweep to check.
        folder: folder of its databases, which may not exist yet.
        bounded: whether the sweep itself has a budget.
        allow_changes: accept changed settings.

    Raises:
        StudyError: a study cannot be searched, is the same as another, has no limit, or has other settings in the
            folder; the message names the study and the remedy.
        StoreError: the folder or a database in it cannot be used.
    """
    from evokern.analysis.check.study_soundness import require_sound

    _check_fields(sweep)
    for planned in (*sweep.studies, *sweep.held_out):
        try:
            require_sound(planned.study)
        except StudyError as error:
            text = f"{planned.origin}: {planned.problem}: {error}" if planned.origin else str(error)
            raise StudyError(text) from error
        if not bounded and not planned.limited:
            raise StudyError(
                f"{sweep.path} has neither trials nor a budget, so its studies would not end; add trials = 200, or "
                "set a budget for the sweep with --budget 6h"
            )
    _refuse_same_problem(sweep)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} cannot be the sweep's folder because it is a file; choose another folder with --db")
    if not allow_changes:
        for planned in sweep.studies:
            _refuse_changed(planned, folder)


def _declared(study: Study) -> tuple[Path, Sequence[ProblemField]] | None:
    """Return the folder of a study's kernel and its fields; None if they cannot be read without running its code."""
    from evokern.analysis.check.declaration import read_declaration
    from evokern.study.discovery import find_kernel_folder

    try:
        folder = find_kernel_folder(study.kernel, study.path.parent if study.path else None)
    except KernelError:
        return None  # `require_sound` reports it
    fields = read_declaration(folder / "kernel.py").fields
    return None if fields is None else (folder, fields)


def _check_fields(sweep: Sweep) -> None:
    """Reject fields of the shapes that a kernel does not have, or lacks."""
    for study in {one.study.kernel: one.study for one in sweep.studies}.values():
        if sweep.shapes.fields and not study.device.startswith("replay:") and (declared := _declared(study)):
            sweep.shapes.check_fields(study.kernel, declared[1])


def _refuse_same_problem(sweep: Sweep) -> None:
    """Reject a problem that the file contains in two notations, because it would be searched twice."""
    seen: dict[tuple[str, str, str], PlannedStudy] = {}
    for planned in (*sweep.studies, *sweep.held_out):
        study = planned.study
        if study.device.startswith("replay:") or (declared := _declared(study)) is None:
            continue
        folder, fields = declared
        (problem,) = parse_problems(study.kernel, fields, study.problems, study.dtype)
        other = seen.setdefault((str(folder), study.device, problem.key), planned)
        if other is not planned:
            raise StudyError(
                f"{sweep.path}: {other.name} and {planned.name} are the same study ({problem.key}); remove one of them"
            )


def _refuse_changed(planned: PlannedStudy, folder: Path) -> None:
    db = planned.database(folder)
    if not has_studies(db):
        return
    with open_readonly(db) as reader:
        records = [record for record in reader.studies() if record.name == planned.name]
    for record in records:
        changes = changed_settings(record, planned.study)
        if changes:
            raise StudyError(
                f"{db} already contains study {planned.name} with different settings ({'; '.join(changes)}); restore "
                f"them in {planned.study.path}, choose another folder with --db, or accept the changes with "
                "--allow-changes"
            )
