"""Check a sweep before anything runs: its studies, and the settings stored in an existing folder."""

from __future__ import annotations

from pathlib import Path

from evokern.errors import StoreError, StudyError
from evokern.search.identity import changed_settings
from evokern.store import has_studies, open_readonly
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

    for planned in sweep.studies:
        require_sound(planned.study)
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


def _refuse_same_problem(sweep: Sweep) -> None:
    """Reject a problem that the file contains in two notations, because it would be searched twice."""
    from evokern.analysis.check.declaration import read_declaration
    from evokern.declaration.problem import parse_problems
    from evokern.study.discovery import find_kernel_folder

    seen: dict[tuple[str, str, str], PlannedStudy] = {}
    for planned in sweep.studies:
        study = planned.study
        if study.device.startswith("replay:"):
            continue
        folder = find_kernel_folder(study.kernel, study.path.parent if study.path else None)
        fields = read_declaration(folder / "kernel.py").fields
        if fields is None:
            continue
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
