"""Choose a draft's problems: required divisors, small problems with several blocks and tails, the study's problem."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm, prod

from evokern.scaffold.buffers import size_of
from evokern.scaffold.evidence import INDEX_LIMIT, LEVELS, Evidence, obeys, problems_at
from evokern.scaffold.plan import DraftTensor, Plan
from evokern.scaffold.probe import Prober, Run

LIMIT = 8
"""Upper limit of random integers that index a buffer."""
MOST_STEPS = 1 << 20
"""Maximum value of a small problem's field, in multiples of its divisor."""
MOST_LEVEL = 1 << 10
"""Maximum value of fields in the search for divisors."""
STUDY_ELEMENTS = 1 << 22
"""Approximate number of elements of the largest buffer in the study's problem."""


def with_multiples(prober: Prober, plan: Plan, found: Evidence, tensors: Sequence[DraftTensor]) -> Plan:
    """Find each field's divisor; store it as a constraint if it depends on a gene, otherwise in the field."""
    level = 1 if found.exceeded or prober.exhausted else _clean_level(prober, plan, found, tensors)
    if level == 1:
        return plan
    base = {f.name: found.problems[0][f.name] if f.choices else level for f in plan.fields}
    larger = base
    while 0 in plan.extents(plan.whole_grid, plan.defaults, larger) and max(larger.values()) < MOST_LEVEL:
        larger = {f.name: larger[f.name] if f.choices else 2 * larger[f.name] for f in plan.fields}
        if larger == base:  # every field has choices
            break
    base = base if 0 in plan.extents(plan.whole_grid, plan.defaults, larger) else larger
    fields, constraints = [], list(plan.constraints)
    for field in plan.fields:
        if field.choices or any(text.endswith(f", p.{field.name})") for _, text, _ in plan.constraints):
            fields.append(field)
            continue
        if prober.exhausted:
            fields.append(field)
            continue
        needed = _needed(prober, plan, tensors, base, field.name, level)
        units = _tile_units(plan, field.name, needed) if needed > 1 else []
        if not units:
            why = _tail_fault(prober, plan, tensors, {**base, field.name: base[field.name] + 1})
            fields.append(replace(field, multiple_of=needed, why=why) if needed > 1 else field)
            continue
        fields.append(field)
        for number, unit in enumerate(units):
            name = f"whole_{field.name.lower()}_tiles" + (f"_{number + 1}" if number else "")
            condition = f"divides({unit}, p.{field.name})"
            if condition not in [known for _, known, _ in constraints]:
                constraints.append((name, condition, "a partial tile would reach outside the buffers"))
    return replace(plan, fields=tuple(fields), constraints=tuple(constraints))


def _clean_level(prober: Prober, plan: Plan, found: Evidence, tensors: Sequence[DraftTensor]) -> int:
    """Return a divisor of all fields for which the sanitizer has no findings.

    Even if shapes explain every buffer with tails, a block with a tail may read unwritten shared memory.
    """
    for level in (each for each in LEVELS if each >= found.level):
        problems = problems_at(plan.fields, level, len(plan.grid) < 2, found.few)[: 2 if found.few else 1]
        if not all(obeys(plan, problem) for problem in problems):
            continue
        if prober.exhausted:
            return 1
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
        if clean(prober, plan, tensors, {**base, name: base[name] + powers[middle]}):
            high = middle
        else:
            low = middle + 1
    return powers[low]


def checked(
    prober: Prober, plan: Plan, tensors: Sequence[DraftTensor], problem: Mapping[str, int],
    config: Mapping[str, int | str] | None = None, *, keep: bool = False,
) -> Run:  # fmt: skip
    """Run a launch under the sanitizer with buffers of the drafted sizes."""
    exact = {tensor.name: size_of(tensor, plan, problem, LIMIT, config) for tensor in tensors}
    return prober.run(plan, problem, config=config, limit=LIMIT, exact=exact, keep=keep, sanitize=True)


def writes_outputs(run: Run, tensors: Sequence[DraftTensor]) -> bool:
    """Return whether a checked run ended without a finding and wrote all elements of the outputs."""
    outputs = [tensor.name for tensor in tensors if tensor.role == "output"]
    return run.ok and all(run.touches[name].distinct == run.exact[name] for name in outputs)


def clean(prober: Prober, plan: Plan, tensors: Sequence[DraftTensor], problem: Mapping[str, int]) -> bool:
    """Return whether a run stays inside the drafted buffers and writes all output elements."""
    return writes_outputs(checked(prober, plan, tensors, problem), tensors)


def _tail_fault(prober: Prober, plan: Plan, tensors: Sequence[DraftTensor], problem: Mapping[str, int]) -> str:
    """Return what is wrong at a problem with a tail, for the comment on the divisor."""
    fault = checked(prober, plan, tensors, problem).fault or "runs leave elements unwritten"
    return f"with other values, {fault}"


def _tile_units(plan: Plan, field: str, needed: int) -> list[str]:
    """Return the tile expressions of a field if the value of one of them equals the required divisor."""
    problem = {f.name: 64 for f in plan.fields}
    cut = dict.fromkeys(
        unit if axis >= len(plan.cluster) or plan.cluster[axis] == "1" else f"{unit} * ({plan.cluster[axis]})"
        for axis, text in enumerate(plan.grid)
        for unit in tile_units(text, field)
        if "c." in unit
    )
    if any(plan.value(unit, plan.defaults, problem) == needed for unit in cut):
        return list(cut)
    named = [g.name for g in plan.genes if g.default == needed and g.name.upper().endswith(field)]
    return [f"c.{named[0]}"] if len(named) == 1 else []


def tile_units(text: str, field: str) -> list[str]:
    """Return the divisors of a field in a grid expression such as `ceil_div(p.N, UNIT)` or `(p.N + UNIT - 1) // UNIT`.

    The divisors of a quotient are multiplied: `ceil_div(p.N // A, B)` has the divisor `A * B`.
    """

    def divisors(node: ast.AST) -> list[list[str]]:
        match node:
            case ast.Attribute(value=ast.Name(id="p"), attr=name) if name == field:
                return [[]]
            case ast.Call(func=ast.Name(id="ceil_div"), args=[left, right]):
                return [[*inner, ast.unparse(right)] for inner in divisors(left)]
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
                return [[*inner, ast.unparse(right)] for inner in divisors(left)]
        return [found for child in ast.iter_child_nodes(node) for found in divisors(child)]

    try:
        found = divisors(ast.parse(text, mode="eval"))
    except SyntaxError:
        return []
    return [
        " * ".join(f"({one})" if len(parts) > 1 and " " in one else one for one in parts) for parts in found if parts
    ]


def small_problems(plan: Plan, tensors: Sequence[DraftTensor], prober: Prober | None) -> tuple[dict[str, int], ...]:
    """Return two small problems with several blocks along each grid axis, and tails if the kernel supports them.

    Args:
        plan: launch of the kernel.
        tensors: buffers of the kernel.
        prober: runs the problems; None if the kernel cannot be run.
    """
    made = [_problem(plan, tails) for tails in (True, False)]
    if made[0] == made[1]:  # tails are impossible: use other numbers of blocks
        made[1] = {name: value + multiples(plan)[name] for name, value in made[1].items()}
    if prober is not None:
        made = [problem for problem in made if clean(prober, plan, tensors, problem)] or made
    return tuple(made)


def _problem(plan: Plan, tails: bool) -> dict[str, int]:
    units = multiples(plan)
    row = (5, 3, 7, 6, 11, 9, 13) if tails else (4, 6, 2, 8, 12, 10, 14)
    values: dict[str, int] = {}
    products = [text.split(" * ") for text in plan.grid if re.fullmatch(r"p\.\w+( \* p\.\w+)+", text)]
    multiplied = {name for names in products if len(plan.grid) > 1 for name in names}  # one block for each combination
    looped = [f.name for f in plan.fields if not any(re.search(rf"p\.{f.name}\b", text) for text in plan.grid)]
    for at, field in enumerate(plan.fields):
        if field.choices:
            numbers = [choice for choice in field.choices if isinstance(choice, int)]
            values[field.name] = numbers[min(len(numbers) - 1, 1 + at % 2 if tails else 0)]
            continue
        long = field.name in looped[-1:]  # of several fields that a block loops over, one long one is enough
        counted = (2, 3) if tails else (3, 2)
        few = f"p.{field.name}" in multiplied
        values[field.name] = (
            _beside_the_grid(plan, at, tails) if long else counted[at % 2] if few else row[at % len(row)]
        )
        if (multiple := units[field.name]) > 1:
            values[field.name] = multiple * (2 + (at + tails) % 2)
    for axis, text in enumerate(plan.grid):
        names = re.findall(r"p\.(\w+)", text)
        if names:
            blocks = _several_clusters(plan, axis, 2 if len(plan.grid) > 1 else 3, tails)
            values[names[-1]] = _cut(plan, values, axis, names[-1], units[names[-1]], blocks, tails)
    return values


def _several_clusters(plan: Plan, axis: int, clusters: int, tails: bool) -> int:
    """Return the number of blocks in several clusters; with tails, the last cluster has only one working block."""
    if axis >= len(plan.cluster):
        return clusters
    size = plan.value(plan.cluster[axis], plan.defaults, {f.name: 64 for f in plan.fields})
    return (clusters - 1) * size + 1 if tails else clusters * size


def _cut(plan: Plan, values: Mapping[str, int], axis: int, name: str, multiple: int, blocks: int, tails: bool) -> int:
    """Return the field value for which the grid axis has a given number of blocks, the last one complete or partial."""

    def number(value: int) -> int:
        """Return the number of blocks; 0 if the launch is impossible."""
        try:
            return plan.extents(plan.grid, plan.defaults, {**values, name: value})[axis]
        except ZeroDivisionError:
            return 0

    if number(values[name]) >= blocks + 1:
        return values[name]

    def first(wanted: int) -> int:
        """Return the smallest multiple that needs a given number of blocks."""
        low, high = 0, MOST_STEPS
        while low + 1 < high:
            middle = (low + high) // 2
            if number(middle * multiple) >= wanted:
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
    return min(behind - multiple, begin + tail + 2 * axis * multiple)  # also not square


def _beside_the_grid(plan: Plan, at: int, tails: bool) -> int:
    """Return the value of a field that a block loops over: longer than a row-wise block, and not a multiple of it."""
    threads = prod(plan.extents(plan.block, plan.defaults, {f.name: 64 for f in plan.fields})) if plan.block else 32
    row_each = any(re.fullmatch(r"p\.\w+( \* p\.\w+)*", text) for text in plan.grid)
    if len(plan.fields) == 1:  # all blocks loop over it together
        together = threads * prod(plan.extents(plan.grid, plan.defaults, {plan.fields[0].name: 64}))
        return together + 37 if tails else 2 * together
    if row_each and threads <= 512:
        return threads + 37 + 2 * at if tails else 2 * threads
    return 45 + 2 * at if tails else 32 * (at + 1)


def multiples(plan: Plan) -> dict[str, int]:
    """Return the divisor of each field for the default candidate."""
    found = {field.name: max(1, field.multiple_of) for field in plan.fields}
    for _, condition, _ in plan.constraints:
        match = re.fullmatch(r"divides\((.+), p\.(\w+)\)", condition)
        if match:
            unit = plan.value(match[1], plan.defaults, {f.name: 64 for f in plan.fields})
            found[match[2]] = lcm(found[match[2]], unit)
    return found


def study_problem(plan: Plan, tensors: Sequence[DraftTensor], literals: Mapping[str, int]) -> dict[str, int]:
    """Return the study's problem: the numbers in the file, or else powers of two that fill a few megabytes."""
    axes = max((sum(1 for axis in tensor.shape if "p." in axis) for tensor in tensors), default=1)
    extent = 1 << max(5, (STUDY_ELEMENTS.bit_length() - 1) // max(1, axes))
    most = {field.name: max([n for n in field.choices if isinstance(n, int)], default=extent) for field in plan.fields}
    return {field.name: literals.get(field.name, field.default or most[field.name]) for field in plan.fields}


def uses_indices(tensors: Sequence[DraftTensor]) -> bool:
    """Return whether the draft needs an upper limit for the integers that index buffers."""
    return any(INDEX_LIMIT in (*tensor.shape, tensor.extra.partition("=")[2].partition(" ")[0]) for tensor in tensors)
