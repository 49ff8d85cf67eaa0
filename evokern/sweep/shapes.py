"""Shapes of a sweep as a distribution: a list, ranges, their product, or a file of observed shapes with counts.

The distribution is divided into shapes to search and held-out shapes, which are never searched. The same file and seed
always give the same shapes.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from evokern.declaration.genes import Value
from evokern.declaration.problem import ProblemField, parts_of
from evokern.errors import StudyError, suggestion
from evokern.files import read_text
from evokern.study.file import prefix_errors
from evokern.study.settings import refuse_unknown

MOST_SHAPES = 4096
"""Largest number of shapes; each is a study with its own database."""
WEIGHTS = ("weight", "count")
"""Columns of a file that contain the weight of a shape."""
_KEYS = ("fields", "file", "count", "held_out", "seed")
_RANGE = ("least", "most", "step", "scale")


@dataclass(frozen=True)
class SweepShape:
    """A problem with its weight."""

    problem: str | Mapping[str, Value]
    """The problem, in a form that `problem_of` accepts."""
    weight: float = 1.0
    """Weight of the problem."""
    origin: str = ""
    """Place of the problem in a file, for messages; empty for problems of the sweep file."""
    held_out: bool = False
    """Whether the problem is not searched."""

    @property
    def text(self) -> str:
        """The problem as text; a table becomes `B=2 S=512`."""
        one = self.problem
        return one if isinstance(one, str) else " ".join(f"{name}={value}" for name, value in one.items())


@dataclass(frozen=True)
class Shapes:
    """Shapes of a sweep."""

    searched: tuple[SweepShape, ...]
    """Shapes to search, in a random order that favours large weights if they come from a distribution."""
    held_out: tuple[SweepShape, ...] = ()
    """Shapes of the same distribution that are not searched."""
    source: str = ""
    """File or table with the fields, for messages; empty for a list of problems."""
    fields: tuple[str, ...] = ()
    """Fields that the file or table sets; empty for a list of problems."""
    drawn: bool = False
    """Whether the shapes are a random sample."""

    @property
    def sampled(self) -> bool:
        """Whether the searched shapes are a sample of more shapes."""
        return self.drawn or bool(self.held_out)

    def check_fields(self, kernel: str, declared: Sequence[ProblemField]) -> None:
        """Reject fields that a kernel does not have, and a missing field.

        Raises:
            StudyError: there is such a field; the message names the file or table.
        """
        if not self.fields:
            return
        given, names = {name.lower() for name in self.fields}, [entry.name for entry in declared]
        for name in self.fields:
            if name.lower() not in [one.lower() for one in names]:
                raise StudyError(f"{self.source}: {kernel} has no problem field {name!r}: {suggestion(name, names)}")
        for entry in declared:
            if entry.default is None and entry.name.lower() not in given:
                raise StudyError(
                    f"{self.source} lacks the field {entry.name}; {kernel} needs a value of {entry.name} for each shape"
                )


def distribution(where: str, table: Any, folder: Path, problems: Sequence[SweepShape]) -> Shapes:
    """Return the shapes that the table `[shapes]` of a sweep file describes.

    Args:
        where: path of the sweep file, for messages.
        table: the table.
        folder: folder of the sweep file.
        problems: the file's problems, which the fields of the table complete; empty without `problems`.

    Raises:
        StudyError: the table or a file that it names has an error; the message names the place and the remedy.
    """
    own = f"{where}: [shapes]"
    if not isinstance(table, dict):
        raise StudyError(f"{where}: shapes is {table!r}; use a table [shapes]")
    with prefix_errors(own):
        refuse_unknown("", table, _KEYS)
    seed = _whole(own, "seed", table.get("seed", 0), -(2**62))
    count = None if "count" not in table else _whole(own, "count", table["count"], 1)
    rng = random.Random(f"shapes {seed}")
    source, names = "", list[str]()
    if "file" in table:
        if problems or "fields" in table:
            raise StudyError(f"{own}: file cannot be combined with problems or fields; remove one of them")
        source, names, population = _observed(own, table["file"], folder)
        found = sorted(population, key=lambda one: -one.weight)[:count]
    elif "fields" in table:
        source = f"{where}: [shapes.fields]"
        fields = _fields(source, table["fields"])
        names = list(dict.fromkeys([*_named(source, problems, fields), *fields]))
        bases = [replace(one, problem=dict(parts_of(one.text))) for one in problems] or [SweepShape({})]
        found = _product(own, fields, bases) if count is None else _drawn(own, fields, bases, count, rng)
    elif problems:
        found = list(problems)[:count]
    else:
        raise StudyError(
            f"{own} has neither fields nor a file; add [shapes.fields], file = 'observed.csv', or problems"
        )
    if count is not None and len(found) < count:
        raise StudyError(f"{own}: count = {count}, but there are only {len(found)} different shapes; decrease count")
    if len(found) > MOST_SHAPES:
        raise StudyError(f"{own}: there are {len(found)} shapes; use at most {MOST_SHAPES}, for example count = 100")
    number = _held_out(own, table.get("held_out", 0), len(found))
    order = sorted(found, key=lambda one: -math.log(1.0 - rng.random()) / one.weight)  # Efraimidis and Spirakis, 2006
    held = {one.text for one in rng.sample(order, number)}
    searched = tuple(one for one in order if one.text not in held)
    others = (replace(one, held_out=True) for one in order if one.text in held)
    return Shapes(searched, tuple(others), source, tuple(names), count is not None)


def _whole(where: str, name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        wanted = f"a whole number of at least {least}" if least > -(2**62) else "a whole number"
        raise StudyError(f"{where}: {name} is {value!r}; use {wanted}")
    return value


def _held_out(where: str, value: object, shapes: int) -> int:
    """Return the number of held-out shapes, from a number or a share."""
    if isinstance(value, float) and 0 <= value < 1:
        return min(round(value * shapes), shapes - 1)
    number = _whole(where, "held_out (a number of shapes, or a share below 1.0)", value, 0)
    if number >= shapes:
        raise StudyError(f"{where}: held_out = {number} leaves none of {shapes} shapes to search; decrease it")
    return number


_Field = tuple[Sequence[Value], bool]
"""Values of a field, and whether their logarithms are drawn uniformly."""


def _fields(where: str, table: object) -> dict[str, _Field]:
    if not isinstance(table, dict) or not table:
        raise StudyError(f"{where} is {table!r}; use lines such as S = {{ least = 64, most = 2048 }} or H = [8, 16]")
    found: dict[str, _Field] = {}
    for name, given in table.items():
        if isinstance(given, dict):
            found[name] = _range(f"{where}: {name}", given)
            continue
        values = given if isinstance(given, list) else [given]
        if wrong := [value for value in values if not isinstance(value, (int, str))]:
            raise StudyError(f"{where}: {name} contains {wrong[0]!r}; use whole numbers or names")
        if not values:
            raise StudyError(f"{where}: {name} is an empty list; add a value")
        found[name] = tuple(dict.fromkeys(values)), False
    return found


def _range(where: str, table: Mapping[str, Any]) -> _Field:
    with prefix_errors(where):
        refuse_unknown("", table, _RANGE)
    if missing := [name for name in ("least", "most") if name not in table]:
        raise StudyError(f"{where} lacks {missing[0]}; use, for example, {{ least = 64, most = 2048, step = 64 }}")
    scale = table.get("scale", "linear")
    if scale not in ("linear", "log"):
        raise StudyError(f"{where}: scale is {scale!r}; use 'linear' or 'log'")
    least = _whole(where, "least", table["least"], 1 if scale == "log" else 0)
    most = _whole(where, "most", table["most"], 0)
    if most < least:
        raise StudyError(f"{where}: the range from {least} to {most} is empty; exchange least and most")
    return range(least, most + 1, _whole(where, "step", table.get("step", 1), 1)), scale == "log"


def _draw(field: _Field, rng: random.Random) -> Value:
    values, log = field
    if not log:
        return rng.choice(values)
    assert isinstance(values, range)
    value = math.exp(rng.uniform(math.log(values[0]), math.log(values.stop - 1)))
    return values[min(len(values) - 1, round((value - values[0]) / values.step))]


def _named(where: str, problems: Sequence[SweepShape], fields: Mapping[str, _Field]) -> Iterator[str]:
    """Yield the fields that problems set; the fields of the table complete them."""
    for one in problems:
        for name, _ in parts_of(one.text):
            if not name:
                raise StudyError(f"{where} completes problems, so write {one.text!r} with names, such as N=4096 K=4096")
            if name.lower() in [field.lower() for field in fields]:
                raise StudyError(f"{where} and the problem {one.text!r} both set {name}; remove one of them")
            yield name


def _product(where: str, fields: Mapping[str, _Field], bases: Sequence[SweepShape]) -> list[SweepShape]:
    if names := [name for name, (_, log) in fields.items() if log]:
        raise StudyError(f"{where}: {names[0]} has scale = 'log', so add count, the number of shapes to draw")
    number = len(bases) * math.prod(len(values) for values, _ in fields.values())
    if number > MOST_SHAPES:
        raise StudyError(f"{where}: the product has {number} shapes; add count, the number of shapes to draw")
    every = [dict(zip(fields, one, strict=True)) for one in product(*(values for values, _ in fields.values()))]
    return [_with(base, values) for base in bases for values in every]


def _drawn(
    where: str, fields: Mapping[str, _Field], bases: Sequence[SweepShape], count: int, rng: random.Random
) -> list[SweepShape]:
    if count > MOST_SHAPES:
        raise StudyError(f"{where}: count is {count}; use at most {MOST_SHAPES}")
    found: dict[str, SweepShape] = {}
    for _ in range(100 * count):
        if len(found) == count:
            break
        one = _with(rng.choice(bases), {name: _draw(field, rng) for name, field in fields.items()})
        found.setdefault(one.text, one)
    return list(found.values())


def _with(base: SweepShape, values: Mapping[str, Value]) -> SweepShape:
    assert not isinstance(base.problem, str)
    return replace(base, problem={**base.problem, **values})


def _observed(own: str, name: object, folder: Path) -> tuple[str, list[str], list[SweepShape]]:
    """Return the name of a file, the fields that it sets, and its different shapes with their weights."""
    if not isinstance(name, str) or Path(name).suffix not in (".csv", ".jsonl"):
        raise StudyError(f"{own}: file is {name!r}; name a .csv file with a header, or a .jsonl file")
    path = folder / name
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise StudyError(
            f"{own}: cannot read {path}: {reason}; correct file, a path relative to the sweep file"
        ) from error
    rows = _csv_rows(path, text) if path.suffix == ".csv" else _json_rows(path, text)
    found: dict[str, SweepShape] = {}
    columns: list[str] = []
    for line, row in rows:
        origin = f"{path}, line {line}"
        weights = [key for key in row if key in WEIGHTS]
        values = {key: value for key, value in row.items() if key not in WEIGHTS}
        if len(weights) > 1:
            raise StudyError(f"{origin}: both weight and count are set; remove one of them")
        columns = columns or list(values)
        if set(values) != set(columns):
            one = sorted(set(values) ^ set(columns))[0]
            raise StudyError(f"{origin}: the field {one!r} is set in some lines only; set the same fields in each line")
        values = {key: values[key] for key in columns}
        shape = SweepShape(values, _weight(origin, row[weights[0]]) if weights else 1.0, origin)
        known = found.get(shape.text)
        found[shape.text] = shape if known is None else replace(known, weight=known.weight + shape.weight)
    if not found:
        raise StudyError(f"{path} contains no shapes; add a line for each shape")
    return str(path), columns, list(found.values())


def _weight(origin: str, value: object) -> float:
    try:
        weight = float(str(value)) if not isinstance(value, bool) else math.nan
    except ValueError:
        weight = math.nan
    if not 0 < weight <= 1e12:
        raise StudyError(f"{origin}: the weight is {value!r}; use a number above 0, up to 1e12")
    return weight


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Value]]]:
    reader = csv.DictReader(io.StringIO(text), restkey="", restval="", skipinitialspace=True)
    try:
        names = list(reader.fieldnames or [])
        if not all(names) or len(set(names)) < len(names):
            raise StudyError(f"{path}, line 1: the header is {names}; name each column once")
        for row in reader:
            if "" in row:
                raise StudyError(f"{path}, line {reader.line_num} has more values than the {len(names)} columns")
            if empty := [name for name in names if not row[name].strip()]:
                raise StudyError(f"{path}, line {reader.line_num}: column {empty[0]} is empty; add a value")
            yield reader.line_num, {name: value.strip() for name, value in row.items()}
    except csv.Error as error:
        raise StudyError(f"{path}, line {reader.line_num} is not valid CSV: {error}; correct it") from error


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Value]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise StudyError(f"{path}, line {number} is not valid JSON: {error}; correct it") from error
        if not isinstance(row, dict):
            raise StudyError(
                f"{path}, line {number} is {line.strip()[:60]!r}; use an object with the fields of a shape"
            )
        for name, value in row.items():
            if name not in WEIGHTS and not isinstance(value, (int, str)):
                raise StudyError(f"{path}, line {number}: {name} is {value!r}; use a whole number or a name")
        yield number, row
