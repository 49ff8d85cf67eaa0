"""Problems for a draft: what must divide its fields, small ones with several blocks and tails, one for the study."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm, prod

from evokern.scaffold.infer import INDEX_LIMIT, LEVELS, Evidence, problems_at, size_of
from evokern.scaffold.plan import DraftTensor, Plan
from evokern.scaffold.probe import Prober

LIMIT = 8
"""Below what integers are drawn that index a buffer."""
MOST_STEPS = 1 << 20
"""Largest value of a small problem's field, in steps of what must divide it."""
STUDY_ELEMENTS = 1 << 22
"""Elements of the largest buffer at the drafted study's problem, about."""


def with_multiples(prober: Prober, plan: Plan, found: Evidence, tensors: Sequence[DraftTensor]) -> Plan:
    """Find what must divide each field, and put it into constraints where a gene is behind it, else into the field."""
    level = _clean_level(prober, plan, found, tensors)
    if level == 1:
        return plan
    base = {f.name: found.problems[0][f.name] if f.choices else level for f in plan.fields}
    fields, constraints = [], list(plan.constraints)
    for field in plan.fields:
        if field.choices:
            fields.append(field)
            continue
        needed = _needed(prober, plan, tensors, base, field.name, level)
        units = _tile_units(plan, field.name, needed) if needed > 1 else []
        if not units:
            why = "runs whose field is no multiple reach outside a buffer, or leave elements unwritten"
            fields.append(replace(field, multiple_of=needed, why=why) if needed > 1 else field)
            continue
        fields.append(field)
        for number, unit in enumerate(units):
            name = f"whole_{field.name.lower()}_tiles" + (f"_{number + 1}" if number else "")
            reason = "a part of a tile reaches outside the buffers"
            constraints.append((name, f"divides({unit}, p.{field.name})", reason))
    return replace(plan, fields=tuple(fields), constraints=tuple(constraints))


def _clean_level(prober: Prober, plan: Plan, found: Evidence, tensors: Sequence[DraftTensor]) -> int:
    """Return what every field must be a multiple of so that the sanitizer finds nothing.

    Where tails explain every buffer, a block with a tail may still read shared memory that it never wrote.
    """
    for level in (each for each in LEVELS if each >= found.level):
        problems = problems_at(plan.fields, level, len(plan.grid) < 2)[:1]
        if level == 1:
            problems.append(_problem(plan, tails=True))
        if all(clean(prober, plan, tensors, problem) for problem in problems):
            return level
    return found.level


def _needed(
    prober: Prober, plan: Plan, tensors: Sequence[DraftTensor], base: Mapping[str, int], name: str, level: int
) -> int:
    """Return the smallest power of two that must divide a field."""
    powers = [1 << shift for shift in range(level.bit_length())]
    low, high = 0, len(powers) - 1
    while low < high:
        middle = (low + high) // 2
        if clean(prober, plan, tensors, {**base, name: level + powers[middle]}):
            high = middle
        else:
            low = middle + 1
    return powers[low]


def clean(prober: Prober, plan: Plan, tensors: Sequence[DraftTensor], problem: Mapping[str, int]) -> bool:
    """Whether a run stays inside buffers of the drafted shapes and writes every element of the outputs."""
    sizes = {tensor.name: size_of(tensor, plan, problem, LIMIT) for tensor in tensors}
    run = prober.run(plan, problem, limit=LIMIT, exact=sizes, sanitize=True)
    return run.ok and all(
        run.touches[tensor.name].distinct == sizes[tensor.name] for tensor in tensors if tensor.role == "output"
    )


def _tile_units(plan: Plan, field: str, needed: int) -> list[str]:
    """Return the expressions that a field is cut by, where the value of one is what must divide the field."""
    problem = {f.name: 64 for f in plan.fields}
    cut = dict.fromkeys(
        unit if axis >= len(plan.cluster) or plan.cluster[axis] == "1" else f"{unit} * ({plan.cluster[axis]})"
        for axis, text in enumerate(plan.grid)
        for unit in _units(text, field)
        if "c." in unit
    )
    if any(plan.value(unit, plan.defaults, problem) == needed for unit in cut):
        return list(cut)
    named = [g.name for g in plan.genes if g.default == needed and g.name.upper().endswith(field)]
    return [f"c.{named[0]}"] if len(named) == 1 else []


def _units(text: str, field: str) -> list[str]:
    """Return by what an expression of the grid divides a field: `ceil_div(p.N, UNIT)` or `(p.N + UNIT - 1) // UNIT`."""
    word = rf"p\.{re.escape(field)}\b"
    found = re.findall(rf"ceil_div\([^,()]*{word}[^,()]*,\s*(.+)\)$", text)
    found += re.findall(rf"{word}[^/]*//\s*(\([^()]*\)|[\w.]+)", text)
    return [unit.strip() for unit in found]


def small_problems(plan: Plan, tensors: Sequence[DraftTensor], prober: Prober | None) -> tuple[dict[str, int], ...]:
    """Return two small problems: several blocks along each axis of the grid, tails where the kernel takes them.

    Args:
        plan: the launch.
        tensors: the buffers.
        prober: what tries them; None where nothing can be run.
    """
    made = [_problem(plan, tails) for tails in (True, False)]
    if made[0] == made[1]:  # no tails are possible: other numbers of blocks instead
        made[1] = {name: value + _multiples(plan)[name] for name, value in made[1].items()}
    if prober is not None:
        made = [problem for problem in made if clean(prober, plan, tensors, problem)] or made
    return tuple(made)


def _problem(plan: Plan, tails: bool) -> dict[str, int]:
    multiples = _multiples(plan)
    row = (5, 3, 7, 6, 11, 9, 13) if tails else (4, 6, 2, 8, 12, 10, 14)
    values: dict[str, int] = {}
    beside = [f.name for f in plan.fields if not any(re.search(rf"p\.{f.name}\b", text) for text in plan.grid)]
    for at, field in enumerate(plan.fields):
        if field.choices:
            numbers = [choice for choice in field.choices if isinstance(choice, int)]
            values[field.name] = numbers[min(len(numbers) - 1, 1 + at % 2 if tails else 0)]
            continue
        long = field.name in beside[-1:]  # of several that a block walks along one is enough
        values[field.name] = _beside_the_grid(plan, at, tails) if long else row[at % len(row)]
        if (multiple := multiples[field.name]) > 1:
            values[field.name] = multiple * (2 + (at + tails) % 2)
    for axis, text in enumerate(plan.grid):
        names = re.findall(r"p\.(\w+)", text)
        if names:
            blocks = _several_clusters(plan, axis, 2 if len(plan.grid) > 1 else 3, tails)
            values[names[-1]] = _cut(plan, values, axis, names[-1], multiples[names[-1]], blocks, tails)
    return values


def _several_clusters(plan: Plan, axis: int, clusters: int, tails: bool) -> int:
    """Return the blocks of so many clusters along an axis; with tails, one block of the last cluster has work."""
    if axis >= len(plan.cluster):
        return clusters
    size = plan.value(plan.cluster[axis], plan.defaults, {f.name: 64 for f in plan.fields})
    return (clusters - 1) * size + 1 if tails else clusters * size


def _cut(plan: Plan, values: Mapping[str, int], axis: int, name: str, multiple: int, blocks: int, tails: bool) -> int:
    """Return a field's value that cuts the grid's axis into so many blocks, the last one whole or a part."""
    if plan.extents(plan.grid, plan.defaults, values)[axis] >= blocks + 1:
        return values[name]

    def first(wanted: int) -> int:
        """The smallest multiple that needs so many blocks."""
        low, high = 0, MOST_STEPS
        while low + 1 < high:
            middle = (low + high) // 2
            if plan.extents(plan.grid, plan.defaults, {**values, name: middle * multiple})[axis] >= wanted:
                high = middle
            else:
                low = middle
        return high * multiple

    begin, behind = first(blocks), first(blocks + 1)
    if behind >= MOST_STEPS * multiple:
        return values[name]
    if not tails:
        return behind - multiple
    tail = (behind - begin) // (3 * multiple) * multiple
    return min(behind - multiple, begin + tail + 2 * axis * multiple)  # not square either


def _beside_the_grid(plan: Plan, at: int, tails: bool) -> int:
    """A field that a block walks along: longer than the block is wide where a block has a row, and no multiple."""
    threads = prod(plan.extents(plan.block, plan.defaults, {f.name: 64 for f in plan.fields})) if plan.block else 32
    row_each = any(re.fullmatch(r"p\.\w+( \* p\.\w+)*", text) for text in plan.grid)
    if len(plan.fields) == 1:  # all blocks together walk along it
        together = threads * prod(plan.extents(plan.grid, plan.defaults, {plan.fields[0].name: 64}))
        return together + 37 if tails else 2 * together
    if row_each and threads <= 512:
        return threads + 37 + 2 * at if tails else 2 * threads
    return 45 + 2 * at if tails else 32 * (at + 1)


def _multiples(plan: Plan) -> dict[str, int]:
    """Field → what must divide it for the default candidate."""
    found = {field.name: max(1, field.multiple_of) for field in plan.fields}
    for _, condition, _ in plan.constraints:
        match = re.fullmatch(r"divides\((.+), p\.(\w+)\)", condition)
        if match:
            unit = plan.value(match[1], plan.defaults, {f.name: 64 for f in plan.fields})
            found[match[2]] = lcm(found[match[2]], unit)
    return found


def study_problem(plan: Plan, tensors: Sequence[DraftTensor], literals: Mapping[str, int]) -> dict[str, int]:
    """Return a problem for the study: the file's own numbers, else powers of two that fill a few megabytes."""
    axes = max((sum(1 for axis in tensor.shape if "p." in axis) for tensor in tensors), default=1)
    extent = 1 << max(5, (STUDY_ELEMENTS.bit_length() - 1) // max(1, axes))
    return {field.name: literals.get(field.name, field.default or extent) for field in plan.fields}


def uses_indices(tensors: Sequence[DraftTensor]) -> bool:
    """Whether the draft needs a limit of the integers that index buffers."""
    return any(INDEX_LIMIT in (*tensor.shape, tensor.extra.partition("=")[2].partition(" ")[0]) for tensor in tensors)
