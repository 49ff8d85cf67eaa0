"""Example of the user: the sizes of the study's problem, and values of numbers that the kernel takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice, product
from math import prod

from evokern.errors import UsageError, suggestion
from evokern.scaffold.draft import Draft
from evokern.scaffold.genes.confirm import MOST_TRIED, holds
from evokern.scaffold.plan import DraftArgument, DraftField, Plan, whole
from evokern.scaffold.reading import DRAFTED_FOR


def with_example(made: Draft, text: str) -> Draft:
    """Return a draft whose study has the sizes of an example.

    Args:
        made: the draft.
        text: `NAME=VALUE` for each field, and for any number that the kernel takes; case does not matter.

    Raises:
        UsageError: a name is unknown or missing, or a value is impossible.
    """
    given = _parsed(text)
    fields = {field.name: field for field in made.plan.fields}
    numbers = {a.name: a for a in made.plan.arguments if not a.is_tensor and (a.expression or "").count("p.") == 0
               and "c." not in (a.expression or "")}  # fmt: skip
    names = {name.lower(): name for name in (*numbers, *fields)}
    for name in given:
        if name.lower() not in names:
            raise UsageError(f"--example {text!r}: the draft has no field {name!r}: {suggestion(name, names.values())}")
    values = {names[name.lower()]: value for name, value in given.items()}
    missing = [name for name, field in fields.items() if name not in values and field.default is None]
    if missing:
        raise UsageError(
            f"--example {text!r} lacks {' and '.join(missing)}; give a value for each field: "
            + " ".join(f"{name}={values.get(name, '...')}" for name in fields if fields[name].default is None)
        )
    study = {name: _size(field, values[name]) if name in values else field.default or 1
             for name, field in fields.items()}  # fmt: skip
    arguments = tuple(
        replace(a, expression=_number(a, values[a.name]), why="") if a.name in numbers and a.name in values else a
        for a in made.plan.arguments
    )
    plan = replace(made.plan, arguments=arguments)
    _check_rules(plan, study, text)
    return replace(made, plan=plan, study=study, unread=())


def _check_rules(plan: Plan, study: Mapping[str, int], text: str) -> None:
    """Reject sizes for which the file's checks and limits exclude every combination of the genes' values."""
    first = ""
    names = [gene.name for gene in plan.genes]
    for values in islice(product(*(gene.values for gene in plan.genes)), MOST_TRIED):
        config = dict(zip(names, values, strict=True))
        broken = _broken_rule(plan, config, study)
        if not broken:
            return
        first = first if first and config != plan.defaults else broken
    raise UsageError(f"--example {text!r} is not possible with any values of the genes: {first}; change the sizes")


def _broken_rule(plan: Plan, config: Mapping[str, int | str], study: Mapping[str, int]) -> str:
    """Return the first rule that a launch breaks, in words; empty if it obeys all of them."""
    for _, condition, why in plan.constraints:
        if not holds(plan, condition, config, study):
            words = re.sub(r"divides\((.+), p\.(\w+)\)", r"\2 must be a multiple of \1", condition)
            words = re.sub(r"\b[cp]\.", "", words)
            return f"{words} ({why})"
    grid, block = (plan.extents(extents, config, study) for extents in (plan.whole_grid, plan.block))
    threads = prod(block)
    if not 1 <= threads <= DRAFTED_FOR[0].threads_per_block or min(grid) < 1:
        return f"a grid of {grid} blocks of {threads:,} threads is not possible"
    return ""


def _parsed(text: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for part in re.split(r"[\s,]+", text.strip()):
        name, sign, value = part.partition("=")
        if not sign or not name.isidentifier() or not value:
            raise UsageError(
                f"--example {text!r}: {part!r} is not NAME=VALUE; write for example --example 'M=1024 N=64'"
            )
        if name in found:
            raise UsageError(f"--example {text!r} gives {name} twice; give it once")
        found[name] = value
    return found


def _size(field: DraftField, value: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise UsageError(f"--example: {field.name}={value} is not a whole number of at least 1; correct it")
    size = int(value)
    if field.choices and size not in field.choices:
        raise UsageError(
            f"--example: {field.name}={size} is not possible; use one of {', '.join(map(str, field.choices))}"
        )
    if size % max(1, field.multiple_of):
        raise UsageError(f"--example: {field.name}={size} must be a multiple of {field.multiple_of} ({field.why})")
    return size


def _number(argument: DraftArgument, value: str) -> str:
    if argument.dtype == "bool" and value.lower() in ("0", "1", "true", "false"):
        return str(value.lower() in ("1", "true"))
    try:
        return str(int(value) if whole(argument.dtype) else float(value))
    except ValueError as error:
        kind = "whole number" if whole(argument.dtype) else "number"
        raise UsageError(f"--example: {argument.name}={value} is not a {kind}; correct it") from error
