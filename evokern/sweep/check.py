"""What is wrong with a sweep before anything runs: each study as `evokern list` looks at it, and against its folder."""

from __future__ import annotations

from pathlib import Path

from evokern.errors import StoreError, StudyError
from evokern.search.identity import changed_settings
from evokern.store import has_studies, open_readonly
from evokern.sweep.plan import PlannedStudy, Sweep


def check_sweep(sweep: Sweep, folder: Path, *, bounded: bool, go_on: bool) -> None:
    """Refuse a sweep that cannot be run: no code of a kernel runs for that.

    Args:
        sweep: the sweep.
        folder: where its databases are, or will be.
        bounded: whether the sweep itself has a budget.
        go_on: let changed settings pass.

    Raises:
        StudyError: a study cannot be searched, two are the same, one has no end, or the folder holds it with other
            settings; the message says which, and what to change.
        StoreError: the folder or a database in it cannot be used.
    """
    from evokern.analysis.check.study_soundness import require_sound

    for planned in sweep.studies:
        require_sound(planned.study)
        if not bounded and not planned.limited:
            raise StudyError(
                f"{sweep.path} has neither trials nor a budget, so its studies would not end; write trials = 200, or "
                "give the sweep a budget with --budget 6h"
            )
    _refuse_same_problem(sweep)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} cannot be the folder of a sweep: it is a file; name another with --db")
    if not go_on:
        for planned in sweep.studies:
            _refuse_changed(planned, folder)


def _refuse_same_problem(sweep: Sweep) -> None:
    """Refuse two ways to write one problem: both would be searched."""
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
                f"{sweep.path}: {other.name} and {planned.name} are the same study ({problem.key}); leave one of them "
                "away"
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
                f"{db} holds study {planned.name} with other settings ({'; '.join(changes)}); put them back in "
                f"{planned.study.path}, name another folder with --db, or let them pass with --go-on"
            )
