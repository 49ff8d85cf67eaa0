"""Read a study's TOML file; errors name the file, the key and the value.

`studies/README.md` lists all tables and keys. For an unknown key, the error suggests the nearest known key.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from evokern.errors import MAX_INTEGER, StudyError, suggestion
from evokern.files import is_utf8, read_text
from evokern.study.options import parse_duration
from evokern.study.settings import Study, refuse_unknown

KEYS = (*(f.name for f in fields(Study) if f.name not in ("name", "path", "budget_s")), "budget")
"""Keys of a study file."""
_TOML_REMEDY = 'quote text, as in kernel = "matmul", and put lists in brackets, as in problems = ["512,512,512"]'
"""Remedy for the most common TOML mistakes."""


def read_study(path: Path) -> Study:
    """Read a study file.

    Raises:
        StudyError: the file is missing, is not TOML, or has an invalid key, type or value.
    """
    return study_from_table(path.stem, read_table(path, "study"), path)


def read_table(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: path of the file.
        what: kind of file, for messages: `study` or `sweep`.

    Raises:
        StudyError: the file is missing or is not TOML.
    """
    if not is_utf8(path):
        raise StudyError(f"the path of {what} {path} is not UTF-8, so it cannot be stored; rename the file or folder")
    try:
        text = read_text(path)
    except OSError as error:
        found = [one.name for one in sorted(path.parent.glob("*.toml"))] if path.parent.is_dir() else []
        advice = suggestion(path.name, found) if found else f"the folder {path.parent} contains no .toml file"
        raise StudyError(f"cannot read {what} {path}: {error.strerror}; name a TOML file: {advice}") from error
    except UnicodeDecodeError as error:
        raise StudyError(f"{what} {path} is not UTF-8 text: {error}") from error
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or an integer with thousands of digits
        raise StudyError(f"{what} {path} is not valid TOML: {error}; {_TOML_REMEDY}") from error
    except RecursionError as error:
        raise StudyError(f"{what} {path} nests tables or lists too deeply; flatten it") from error


def study_from_table(name: str, table: Mapping[str, Any], path: Path | None = None) -> Study:
    """Create a study from the tables of a TOML file.

    Raises:
        StudyError: as in `read_study`.
    """
    where = str(path or name)
    _refuse_out_of_range(where, "", table)
    with prefix_errors(where):
        refuse_unknown("", table, KEYS)
    if "kernel" not in table:
        raise StudyError(f"{where} lacks the key 'kernel'")
    given = table.get("problems")
    if not given or not isinstance(given, (str, dict, list)):
        fault = f"problems is {given!r}" if given else f"study {name} has no problem"
        fault = fault if "problems" in table else "lacks the key 'problems'"
        raise StudyError(f"{where}: {fault}; add, for example, problems = [{example_problem(table['kernel'], path)}]")
    values: dict[str, Any] = dict(table)
    if "budget" in values:
        budget = values.pop("budget")
        if isinstance(budget, (int, float)) and not isinstance(budget, bool):
            raise StudyError(f'{where}: budget = {budget} has no unit; use, for example, budget = "2h", "90m" or "45s"')
        with prefix_errors(f"{where}: budget"):
            values["budget_s"] = parse_duration(budget)
    with prefix_errors(where):
        return Study(name=name, path=path, **values)


def _refuse_out_of_range(where: str, key: str, value: object) -> None:
    """Reject numbers beyond 64 bits, infinities and NaN."""
    if isinstance(value, Mapping):
        for name, entry in value.items():
            _refuse_out_of_range(where, f"{key}.{name}" if key else name, entry)
    elif isinstance(value, list):
        for entry in value:
            _refuse_out_of_range(where, key, entry)
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise StudyError(f"{where}: {key} is a number of {value.bit_length()} bits; use at most 63 bits")
    elif isinstance(value, float) and not math.isfinite(value):
        raise StudyError(f"{where}: {key} = {value}; use a finite number")


@contextmanager
def prefix_errors(where: str) -> Iterator[None]:
    """Add the file or the key to the message of a StudyError."""
    try:
        yield
    except StudyError as error:
        raise StudyError(f"{where}: {error}") from error


def example_problem(kernel: object, study: Path | None = None) -> str:
    """Return a problem with the fields that a kernel declares, in quotes, without running the kernel's code.

    Args:
        kernel: name or folder of the kernel, as in a study.
        study: path of the study's file; None for the working directory.
    """
    fields: list[str] = []
    roots = [Path.cwd(), *([study.absolute().parent, study.absolute().parent.parent] if study else [])]
    for folder in (root / part / str(kernel) for root in roots for part in ("kernels", ".")):
        try:
            fields = re.findall(r"\bProblemField\(\s*[\"'](\w+)[\"']", read_text(folder / "kernel.py", "replace"))
        except (OSError, ValueError):
            continue
        break
    return '"' + " ".join(f"{name}=1024" for name in dict.fromkeys(fields) or ["FIELD"]) + '"'
