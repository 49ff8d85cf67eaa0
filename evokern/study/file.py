"""Read a study's TOML file; errors name the file, the key and the value.

`studies/README.md` lists all tables and keys. For an unknown key, the error suggests the nearest known key.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from evokern.declaration.genes import Value
from evokern.errors import MAX_INTEGER, StudyError, suggestion
from evokern.files import is_utf8, read_text
from evokern.study.duration import parse_duration
from evokern.study.settings import GateSettings, SamplerSettings, SimulationSettings, Study, TimingSettings

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
        raise StudyError(f"cannot read {what} {path}: {error.strerror}") from error
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
    refuse_unknown(where, "", table, KEYS)
    if "kernel" not in table:
        raise StudyError(f"{where} lacks the key 'kernel'")
    if not table.get("problems"):
        fault = f"study {name} has no problem" if "problems" in table else "lacks the key 'problems'"
        raise StudyError(f"{where}: {fault}; add, for example, problems = [{example_problem(table['kernel'], path)}]")
    values: dict[str, Any] = dict(table)
    if "budget" in values:
        budget = values.pop("budget")
        if isinstance(budget, (int, float)) and not isinstance(budget, bool):
            raise StudyError(f'{where}: budget = {budget} has no unit; use, for example, budget = "2h", "90m" or "45s"')
        with _prefix_errors(f"{where}: budget"):
            values["budget_s"] = parse_duration(budget)
    values["problems"] = _problems(where, values["problems"], table["kernel"])
    values["genes"] = {gene: _gene_values(where, gene, v) for gene, v in _table(where, "genes", values).items()}
    values["limits"] = _table(where, "limits", values)
    values["sampler"] = _sampler(where, values.get("sampler", {}))
    for key, record in (("gate", GateSettings), ("timing", TimingSettings), ("simulation", SimulationSettings)):
        values[key] = _record(where, key, record, _table(where, key, values))
    _check_types(where, Study, values, skip=("problems", "genes", "limits", "sampler", "gate", "timing", "simulation"))
    with _prefix_errors(where):
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
def _prefix_errors(where: str) -> Iterator[None]:
    """Add the file and the key to the message of a StudyError."""
    try:
        yield
    except StudyError as error:
        raise StudyError(f"{where}: {error}") from error


def refuse_unknown(where: str, prefix: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    """Reject unknown keys of a table.

    Args:
        where: path of the file, for the message.
        prefix: the table's name followed by a full stop; empty for the file itself.
        table: table to check.
        known: valid keys.

    Raises:
        StudyError: a key is unknown; the message suggests the nearest known one.
    """
    for key in table:
        if key not in known:
            raise StudyError(f"{where}: unknown key {prefix + key!r}: {suggestion(key, known)}")


def _table(where: str, key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    table = values.get(key, {})
    if not isinstance(table, dict):
        raise StudyError(f"{where}: {key} is {table!r}; it must be a table [{key}]")
    return table


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


def _problems(where: str, given: object, kernel: object) -> tuple[str | Mapping[str, Value], ...]:
    entries = [given] if isinstance(given, (str, dict)) else given
    if not isinstance(entries, list) or not all(isinstance(entry, (str, dict)) for entry in entries):
        example = example_problem(kernel)
        raise StudyError(f"{where}: problems is {given!r}; use problems = [{example}] or [[problems]] tables")
    return tuple(entries)


def _gene_values(where: str, gene: str, given: object) -> tuple[Value, ...]:
    entries: list[Any] = given if isinstance(given, list) else [given]
    if not entries or not all(isinstance(entry, (int, str)) for entry in entries):
        raise StudyError(f"{where}: genes.{gene} is {given!r}; use a value or a list of values")
    return tuple(int(entry) if isinstance(entry, bool) else entry for entry in entries)


def _sampler(where: str, given: object) -> SamplerSettings:
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, dict):
        raise StudyError(f'{where}: sampler is {given!r}; use sampler = "evo" or a table [sampler] with a name')
    options = dict(given)
    name = options.pop("name", "evo")
    if not isinstance(name, str):
        raise StudyError(f"{where}: sampler.name is {name!r}; use a name such as evo")
    with _prefix_errors(f"{where}: sampler"):
        return SamplerSettings(name, options)


def _record(where: str, key: str, record: Any, table: Mapping[str, Any]) -> Any:
    refuse_unknown(where, f"{key}.", table, [f.name for f in fields(record)])
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in table.items()}
    _check_types(where, record, values, prefix=f"{key}.")
    with _prefix_errors(where):
        return record(**values)


_hints = cache(get_type_hints)  # evaluating annotations takes two thirds of the time for reading a file


def _check_types(
    where: str, record: Any, values: Mapping[str, Any], skip: Sequence[str] = (), prefix: str = ""
) -> None:
    hints = _hints(record)
    for entry in fields(record):
        if entry.name not in values or entry.name in skip:
            if entry.default is MISSING and entry.default_factory is MISSING and entry.name not in ("name", *skip):
                raise StudyError(f"{where} lacks the key {entry.name!r}")
            continue
        value, text = values[entry.name], str(hints[entry.name])
        wanted, name = _wanted(text)
        sound = isinstance(value, wanted) and not isinstance(value, bool)
        if sound and wanted is tuple:
            sound = all(isinstance(part, str) for part in value)
        if not sound:
            given = list(value) if isinstance(value, tuple) else value
            raise StudyError(f"{where}: {prefix}{entry.name} is {given!r}; it must be {name}")


def _wanted(hint: str) -> tuple[type | tuple[type, ...], str]:
    """Return the types that an annotation allows in a file, and their description."""
    if hint.startswith("tuple["):
        return tuple, "a list of strings"
    if "Literal" in hint:
        return str, "a string"
    if "float" in hint:
        return (int, float), "a number"
    if "int" in hint:
        return int, "an integer"
    return str, "a string"
