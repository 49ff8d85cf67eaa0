"""Read a sweep's TOML file: each combination of kernel, device, data type and problem is one named study.

A study file has one kernel, device and data type; a sweep file can have lists of them (`kernels`, `devices`, `dtypes`).
`[weights]` assigns weights to problems, and `[shapes]` describes a distribution of problems (`shapes`). All other keys
are the same as in a study file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from evokern.errors import StudyError, suggestion
from evokern.study.file import KEYS, example_problem, prefix_errors, read_table, study_from_table
from evokern.study.settings import Study, refuse_unknown
from evokern.sweep.shapes import Shapes, SweepShape, distribution

LISTS = {"kernel": "kernels", "device": "devices", "dtype": "dtypes"}
"""Keys of a sweep file whose values are lists, by the corresponding key of a study file."""
MOST_LETTERS = 150
"""Maximum length of a study's name, which is also a file name; longer names are cut and end in a digest."""
_RECORDED = re.compile(r"(\.json)?(\.gz)?$")


@dataclass(frozen=True)
class PlannedStudy:
    """A study of a sweep."""

    study: Study
    """The study, as for `evokern search`."""
    problem: str
    """The problem, as written in the file."""
    weight: float = 1.0
    """Weight of the study's improvements."""
    origin: str = ""
    """Place of the problem in a file of shapes, for messages."""

    @property
    def name(self) -> str:
        """Name of the study, made from kernel, problem, data type and device."""
        return self.study.name

    @property
    def limited(self) -> bool:
        """Whether the study has a limit of its own: trials, a budget, or the end of a grid."""
        return bool(self.study.trials or self.study.budget_s or self.study.sampler.name == "grid")

    def database(self, folder: Path) -> Path:
        """Return the study's database in the sweep's folder."""
        return folder / f"{self.name}.db"


@dataclass(frozen=True)
class Sweep:
    """A sweep, as read from its file."""

    path: Path
    """Path of the file."""
    studies: tuple[PlannedStudy, ...]
    """Studies, ordered by kernel, then device, data type and problem."""
    held_out: tuple[PlannedStudy, ...] = ()
    """Held-out problems in the same form, which are never searched."""
    shapes: Shapes = Shapes(())  # noqa: RUF009 (frozen)
    """Shapes of the file."""

    @property
    def folder(self) -> Path:
        """Default folder of the databases: in the working directory, named after the sweep file without its suffix."""
        return Path(self.path.stem)


def read_sweep(path: Path, device: str | None = None) -> Sweep:
    """Read a sweep's file.

    Args:
        path: path of the file.
        device: replaces the file's `device` or `devices`; None keeps them.

    Raises:
        StudyError: the file is missing, is not TOML, has an invalid key, type or value, or two combinations have the
            same name.
    """
    table, where = read_table(path, "sweep"), str(path)
    with prefix_errors(str(where)):
        refuse_unknown("", table, [*KEYS, *LISTS.values(), "weights", "shapes"])
    if device is not None:
        table = {key: value for key, value in table.items() if key not in ("device", "devices")} | {"device": device}
    choices = {one: _choices(where, table, one, several) for one, several in LISTS.items()}
    if not choices["kernel"]:
        raise StudyError(f'{where} lacks the key \'kernel\'; add kernel = "NAME" or kernels = ["NAME", …]')
    shapes = _shapes(where, table, path.parent, example_problem(choices["kernel"][0]))
    left_out = (*LISTS, *LISTS.values(), "problems", "weights", "shapes")
    shared = {key: value for key, value in table.items() if key not in left_out}
    planned: dict[str, PlannedStudy] = {}
    held: list[PlannedStudy] = []
    combinations = list(product(choices["kernel"], choices["device"] or ("",), choices["dtype"] or ("",)))
    for (kernel, chip, dtype), shape in product(combinations, (*shapes.searched, *shapes.held_out)):
        given = {"kernel": kernel, "device": chip, "dtype": dtype}
        own = shared | {key: value for key, value in given.items() if value} | {"problems": [shape.problem]}
        name = _name(kernel, shape.text, dtype, chip or "auto")
        if name in planned:
            raise StudyError(
                f"{where}: two combinations have the name {name} (problems {planned[name].problem!r} and "
                f"{shape.text!r}); remove one of them, or rename the folder or file"
            )
        study = study_from_table(name, own, path)
        planned[name] = PlannedStudy(study, shape.text, shape.weight, shape.origin or shapes.source)
        held += [planned[name]] if shape.held_out else []
    return Sweep(path, tuple(one for one in planned.values() if one not in held), tuple(held), shapes)


def _choices(where: str, table: Mapping[str, Any], one: str, several: str) -> list[str]:
    """Return the file's values for a key of a study file, or for the corresponding key with a list."""
    if one in table and several in table:
        raise StudyError(f"{where} has both {one} and {several}; remove one of them")
    given = table[several] if several in table else [table[one]] if one in table else []
    if several in table and not (isinstance(given, list) and given):
        raise StudyError(f'{where}: {several} is {given!r}; use a list, {several} = ["…", "…"], or {one} = "…"')
    for entry in given:
        if not isinstance(entry, str) or not entry.strip():
            raise StudyError(f"{where}: {several if several in table else one} contains {entry!r}; it must be a string")
    return list(given)


def _shapes(where: str, table: Mapping[str, Any], folder: Path, example: str) -> Shapes:
    """Return the shapes of the file: its problems, or the distribution that `[shapes]` describes."""
    if "problems" not in table and "shapes" not in table:
        raise StudyError(
            f"{where} lacks the key 'problems'; add problems = [{example}, …], one for each study, or a table [shapes]"
        )
    given = table.get("problems", [])
    entries = [given] if isinstance(given, (str, dict)) else given
    if not isinstance(entries, list) or not all(isinstance(entry, (str, dict)) for entry in entries):
        raise StudyError(f"{where}: problems is {given!r}; use problems = [{example}] or [[problems]] tables")
    if not entries and "problems" in table:
        raise StudyError(f"{where}: problems is empty; use, for example, problems = [{example}], one for each study")
    problems = [SweepShape(entry) for entry in entries]
    weights = _weights(where, table, [one.text for one in problems])
    problems = [replace(one, weight=weights.get(one.text, 1.0)) for one in problems]
    return distribution(where, table["shapes"], folder, problems) if "shapes" in table else Shapes(tuple(problems))


def _weights(where: str, table: Mapping[str, Any], problems: Iterable[str]) -> dict[str, float]:
    given, known = table.get("weights", {}), list(problems)
    if not isinstance(given, dict):
        raise StudyError(f'{where}: weights is {given!r}; it must be a table [weights] with lines "PROBLEM" = 2.0')
    for problem, weight in given.items():
        if problem not in known:
            raise StudyError(f"{where}: weights names the problem {problem!r}: {suggestion(problem, known)}")
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight <= 1e9:
            raise StudyError(f"{where}: weights: {problem!r} = {weight!r}; use a number above 0, up to 1e9")
    return {problem: float(weight) for problem, weight in given.items()}


def _name(kernel: str, problem: str, dtype: str, device: str) -> str:
    """Return a study's name, which is also a file name: `attention-B2_H8_S512_D64-fp16-sim_l4`."""
    folder = Path(kernel)
    if folder.name in ("kernel.py", "kernel.cu"):
        folder = folder.parent
    kind, _, rest = device.partition(":")
    chip = f"{kind} {_RECORDED.sub('', Path(rest).name)}" if kind.strip().lower() == "replay" else device
    parts = [folder.name or folder.resolve().name, problem.replace("=", ""), *([dtype] if dtype else []), chip]
    name = "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", part).strip("_.") or "x" for part in parts)
    if len(name) <= MOST_LETTERS:
        return name
    digest = hashlib.sha256("\0".join((kernel, problem, dtype, device)).encode()).hexdigest()[:10]
    return f"{name[:MOST_LETTERS]}-{digest}"
