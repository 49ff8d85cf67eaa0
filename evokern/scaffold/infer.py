"""Infer grid, shapes, roles and divisibility from simulator runs with guessed problems."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from math import prod

from evokern.declaration.kernel import DTYPE_BYTES
from evokern.scaffold.plan import BLOCK_DOC, DraftArgument, DraftField, DraftTensor, Plan, StatedSize, unused_name
from evokern.scaffold.probe import FEW_THREADS, MOST_THREADS, Prober, Run, Touch
from evokern.scaffold.shapes import LARGEST_BORDER, Fit, fit, row_major
from evokern.scaffold.stated.sizes import inclusive_check

INDEX_LIMIT = "INDEX_LIMIT"
"""Name of the constant in the draft that limits integers that are used as indices."""
LIMITS = (4, 5, 6)
"""Upper limit of random integers in each run."""
LEVELS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Multiples of the fields to try in order; kernels that do not check tails need whole tiles."""
MODEST = 32
"""Largest multiple for which the shape of every input must be exact; larger ones only need to allow a draft."""
_LONG = (4613, 3594, 2579)
_SHORT = (613, 394, 979)
_ODD = ((37, 53, 29, 43, 31, 23, 26), (41, 26, 47, 34, 22, 38, 25), (50, 39, 33, 28, 45, 27, 24))
_FEW = ((19, 13, 17, 11, 7, 9, 10), (14, 18, 11, 13, 9, 8, 15), (11, 15, 14, 17, 12, 7, 9))
_TILES = ((3, 5, 2, 4, 6, 1, 7), (5, 2, 4, 3, 1, 6, 7), (2, 3, 5, 1, 4, 7, 6))
_LARGE = ((2, 3, 1, 4, 5, 6, 7), (3, 1, 2, 5, 4, 7, 6), (1, 2, 3, 4, 6, 5, 7))


@dataclass(frozen=True)
class Evidence:
    """Result of running one plan at one level of problem sizes."""

    level: int
    """Common divisor of all fields."""
    problems: tuple[dict[str, int], ...]
    runs: tuple[Run, ...]
    fits: Mapping[str, Fit | None]
    """Buffer → its shape with unordered axes; None if it was not accessed."""
    covered: Mapping[str, bool]
    """Written buffer → whether all of it was written."""
    indexed: frozenset[str] = frozenset()
    """Buffers whose accessed elements depend on integers of an input."""
    exceeded: Mapping[str, StatedSize] = field(default_factory=dict)
    """Buffer → its size according to the file, if every run accesses a few elements beyond it: a defect."""
    few: bool = False
    """Whether the problems are small, because larger ones take too long."""

    @property
    def ok(self) -> bool:
        """Whether every run completed and something was written."""
        return bool(self.runs) and all(run.ok for run in self.runs) and bool(self.covered)

    @property
    def exact(self) -> bool:
        """Whether a shape explains every accessed buffer."""
        return self.ok and all(found.exact for found in self.fits.values() if found) and all(
            found is not None or not any(run.touches[name].extent for run in self.runs)
            for name, found in self.fits.items()
        )  # fmt: skip

    @property
    def allows_draft(self) -> bool:
        """Whether a draft is possible: the outputs are explained and completely written, and the inputs are covered."""
        return self._explains_outputs and all(self.covered.values())

    @property
    def updates(self) -> bool:
        """Whether the outputs are explained, and each is completely written or read before it is written."""
        return self._explains_outputs and all(
            whole or any(run.touches[name].in_place for run in self.runs) for name, whole in self.covered.items()
        )

    @property
    def _explains_outputs(self) -> bool:
        return (
            self.ok
            and self.sizes_a_field
            and all(found or not any(r.touches[name].extent for r in self.runs) for name, found in self.fits.items())
            and all((found := self.fits[name]) is not None and found.exact for name in self.covered)
        )

    @property
    def sizes_a_field(self) -> bool:
        """Whether the accessed elements increase with the problem."""
        return any("p." in axis for found in self.fits.values() if found for axis in found.axes)

    @property
    def plain(self) -> bool:
        """Whether no shape multiplies fields by a constant; twice a field often means that the grid is too large."""
        return not any(
            axis.isdigit() for found in self.fits.values() if found and len(found.axes) > 1 for axis in found.axes
        )

    @property
    def rank(self) -> tuple[bool, bool, bool, bool, int, float]:
        """Sort key: completed, explained, plain, everything written, buffers explained, low level; larger is better."""
        explained = sum(1 for found in self.fits.values() if found and found.exact)
        good = self.exact and self.allows_draft
        return self.ok, good, good and self.plain, all(self.covered.values()), explained, -self.level


def problems_at(fields: Sequence[DraftField], level: int, flat: bool = True, few: bool = False) -> list[dict[str, int]]:
    """Return three problems with different multiples of a number.

    Args:
        fields: fields of the draft.
        level: the number.
        flat: whether the grid has one dimension.
        few: whether the numbers are small, for kernels that do much work for each element.
    """
    free = [field for field in fields if not field.choices]
    made = _multiples_of(free, level, flat, few)
    for turn, problem in enumerate(made):
        for at, one in enumerate(one for one in fields if one.choices):
            numbers = [choice for choice in one.choices if isinstance(choice, int)]
            problem[one.name] = numbers[(turn + at + 1) % len(numbers)]
    return [{field.name: problem[field.name] for field in fields} for problem in made]


def _multiples_of(fields: Sequence[DraftField], level: int, flat: bool, few: bool) -> list[dict[str, int]]:
    if len(fields) == 1 and flat:  # large enough for several blocks of vectors
        return [{fields[0].name: level * -(-number // level)} for number in (_SHORT if few else _LONG)]
    table = (_TILES if few else _ODD if len(fields) < 4 else _FEW) if level == 1 else _TILES if level < 64 else _LARGE
    return [
        {
            field.name: level * row[at % len(row)] + (level * 7 if at >= len(row) else 0)
            for at, field in enumerate(fields)
        }
        for row in table
    ]


def obeys(plan: Plan, problem: Mapping[str, int]) -> bool:
    """Return whether a problem obeys the divisors that the file states."""
    return all(
        problem[found[2]] % max(1, plan.value(found[1], plan.defaults, problem)) == 0
        for _, condition, _ in plan.constraints
        if (found := re.fullmatch(r"divides\((.+), p\.(\w+)\)", condition))
    )


def levels(plan: Plan) -> tuple[int, ...]:
    """Return the levels to try, including higher levels for a single field, because runs with one field are cheap."""
    return (*LEVELS, 256, 512, 1024, 2048, 4096) if len(plan.fields) == 1 and len(plan.grid) < 2 else LEVELS


def evidence(
    prober: Prober,
    plan: Plan,
    level: int,
    count: int = 3,
    config: Mapping[str, int | str] | None = None,
    most_threads: int = MOST_THREADS,
    few: bool = False,
) -> Evidence:
    """Run a plan on several problems, and explain which elements it accessed.

    Args:
        prober: runs the plan.
        plan: launch to run.
        level: common divisor of all fields.
        count: number of problems, at most three.
        config: gene → value; None for the defaults.
        most_threads: maximum number of threads per run.
        few: whether the problems are small; they are if larger ones do not end.
    """
    chosen = problems_at(plan.fields, level, len(plan.grid) < 2, few)[:count]
    runs: list[Run] = []
    for problem, limit in zip(chosen, LIMITS, strict=False):
        runs.append(prober.run(plan, problem, limit=limit, config=config, most_threads=most_threads))
        if runs[-1].too_large and not few:
            return evidence(prober, plan, level, count, config, most_threads, few=True)
        if not runs[-1].ok:
            return Evidence(level, tuple(chosen), tuple(runs), {}, {}, few=few)
    atoms = {f"p.{field.name}": [problem[field.name] for problem in chosen] for field in plan.fields}
    if any(argument.is_tensor and argument.dtype[0] in "iu" for argument in plan.arguments):
        atoms[INDEX_LIMIT] = list(LIMITS[: len(chosen)])
    fits: dict[str, Fit | None] = {}
    covered: dict[str, bool] = {}
    exceeded: dict[str, StatedSize] = {}
    for argument in (*plan.arguments, *plan.constants):
        if not argument.is_tensor:
            continue
        touches = [run.touches[argument.name] for run in runs]
        fits[argument.name] = (
            fit([touch.extent for touch in touches], atoms) if any(t.extent for t in touches) else None
        )
        if fits[argument.name] is None and any(t.extent for t in touches):
            fits[argument.name] = _grid_fit(plan, chosen, [touch.extent for touch in touches], config)
        if any(touch.written for touch in touches):
            covered[argument.name] = all(touch.distinct == touch.extent for touch in touches)
        sizes = _stated_sizes(plan, argument.name, chosen)
        fitting = fits[argument.name]
        if sizes and not plan.stated[argument.name].sure and fitting and fitting.exact:
            sizes = sizes if [touch.extent for touch in touches] == sizes else []
        if sizes and all(touch.extent <= size for touch, size in zip(touches, sizes, strict=True)):
            fits[argument.name] = Fit(plan.stated[argument.name].axes, exact=True, stated=True)
            if argument.name in covered:
                covered[argument.name] = all(t.distinct == size for t, size in zip(touches, sizes, strict=True))
        elif stated := _exceeded(prober.source, plan, argument, chosen, touches):
            exceeded[argument.name] = stated
            fits[argument.name] = Fit(stated.axes, exact=True, stated=argument.name in plan.stated)
    return Evidence(level, tuple(chosen), tuple(runs), fits, covered, exceeded=exceeded, few=few)


def _stated_sizes(plan: Plan, name: str, problems: Sequence[Mapping[str, int]]) -> list[int]:
    """Return the number of elements that the file states for a buffer, for each problem; empty if it states none."""
    stated = plan.stated.get(name)
    if stated is None or not stated.axes:
        return []
    try:
        return [prod(plan.value(axis, plan.defaults, problem) for axis in stated.axes) for problem in problems]
    except (ArithmeticError, AttributeError):  # depends on a number without a field
        return []


def _exceeded(
    source: str, plan: Plan, argument: DraftArgument, problems: Sequence[Mapping[str, int]], touches: Sequence[Touch]
) -> StatedSize | None:
    """Return a buffer's size according to the file if every run exceeds it by the same few elements or rows.

    An excess that depends on the problem comes from a kernel without checks, which needs whole tiles.
    """
    stated = plan.stated.get(argument.name)
    if stated is None and any(touch.first for touch in touches):
        return None  # the kernel counts from 1
    for size in (stated,) if stated else _checked_sizes(source, plan):
        try:
            extents = [[plan.value(axis, plan.defaults, problem) for axis in size.axes] for problem in problems]
        except (ArithmeticError, AttributeError):  # depends on a number without a field
            continue
        excess = [touch.extent - prod(axes) for touch, axes in zip(touches, extents, strict=True)]
        rows = [[prod(axes) // max(1, axes[at]) for axes in extents] for at in range(len(size.axes))]
        few = len({*excess}) == 1 and 1 <= excess[0] <= LARGEST_BORDER
        if size.axes and (few or excess in rows):
            return size
    return None


def _checked_sizes(source: str, plan: Plan) -> Iterator[StatedSize]:
    """Yield the products of fields that contain a number which a check in the kernel includes, as `i <= n` does."""
    fields = [f"p.{field.name}" for field in plan.fields]
    for argument in plan.arguments:
        check = inclusive_check(source, argument.name) if argument.expression in fields else ""
        for size in range(3) if check else ():
            others = [name for name in fields if name != argument.expression]
            yield from (StatedSize((argument.expression or "", *more), check) for more in combinations(others, size))


def _grid_fit(
    plan: Plan, problems: Sequence[Mapping[str, int]], extents: Sequence[int], config: Mapping[str, int | str] | None
) -> Fit | None:
    """Return a shape made of the grid's extents: one element or row per block."""
    atoms = {f"p.{field.name}": [problem[field.name] for problem in problems] for field in plan.fields}
    for axis, text in enumerate(plan.whole_grid):
        atoms[text] = [plan.extents(plan.whole_grid, config or plan.defaults, problem)[axis] for problem in problems]
    found = fit(extents, atoms, borders=False)
    return found if found and found.exact else None


def find_level_and_grid(
    prober: Prober, plan: Plan, *, known_launch: bool = False, whole: bool = False
) -> tuple[Plan, Evidence | None]:
    """Find the level at which the runs explain every buffer, and the grid if it is unknown.

    Args:
        prober: runs the plan.
        plan: launch; grid and block may be missing.
        known_launch: whether grid and block are certain, so that no others are tried.
        whole: whether a certain launch should also write every buffer that it writes as a whole.
    """
    best: Evidence | None = None
    if plan.grid and plan.block:
        for level in levels(plan):
            if not all(obeys(plan, problem) for problem in problems_at(plan.fields, level, len(plan.grid) < 2)):
                continue
            if best is not None and (
                prober.exhausted or (level > MODEST and _enough(best, known_launch and not whole))
            ):
                break
            few = best is not None and best.few
            found = evidence(prober, plan, level, 3 if level <= MODEST else 2, few=few)
            if best is None or found.rank > best.rank:
                best = found
            if found.exact and (found.updates if known_launch else found.allows_draft and found.plain):
                break
        if whole and known_launch and best is not None and best.ok and not best.updates:
            equal = _with_equal_fields(prober, plan)
            if equal is not None:
                return equal[0], _with_indices(prober, *equal)
        if best is not None and (best.allows_draft or (known_launch and best.ok)):
            return plan, _with_indices(prober, plan, best)
        if known_launch:
            return plan, None
    tried = _by_search(prober, plan)
    if tried is not None and (best is None or tried[1].rank > best.rank):
        return tried[0], _with_indices(prober, *tried)
    return plan, best if best is not None and best.ok else None


def _with_equal_fields(prober: Prober, plan: Plan) -> tuple[Plan, Evidence] | None:
    """Return the plan with one field for two of the grid if the kernel fills its outputs only if they are equal."""
    fields = [f.name for f in plan.fields if not f.choices and re.search(rf"\bp\.{f.name}\b", " ".join(plan.grid))]
    for kept, gone in combinations(fields, 2):
        why = f"it is also {gone}, because runs with different values leave elements unwritten"
        equal = replace(
            plan.rewritten(lambda text, k=kept, g=gone: re.sub(rf"\bp\.{g}\b", f"p.{k}", text)),  # type: ignore[misc]
            fields=tuple(replace(f, why=why) if f.name == kept else f for f in plan.fields if f.name != gone),
        )
        for level in LEVELS:
            found = evidence(prober, equal, level, 3 if level <= MODEST else 2)
            if found.exact and found.updates and found.plain:
                return equal, found
    return None


def _enough(best: Evidence, known_launch: bool) -> bool:
    """Return whether larger multiples are unnecessary: a draft is possible, or a part always stays unwritten."""
    held = known_launch and best.ok and all(
        found or not any(run.touches[name].extent for run in best.runs) for name, found in best.fits.items()
    )  # fmt: skip
    return held or (best.allows_draft and best.plain)


def _with_indices(prober: Prober, plan: Plan, found: Evidence) -> Evidence:
    """Record whether larger integers in the inputs change the accessed elements."""
    whole = [
        a.name for a in plan.arguments if a.is_tensor and a.dtype[0] in "iu" and found.runs[0].touches[a.name].read
    ]
    if not whole:
        return found
    other = prober.run(plan, found.problems[0], limit=2)
    first = found.runs[0].touches
    return replace(found, indexed=frozenset(n for n, t in other.touches.items() if n in first and t != first[n]))


def with_leading_extents(prober: Prober, plan: Plan) -> Plan:
    """Return the plan without fields for distances between rows, such as `lda`, which a run shows to be row lengths."""
    launch = " ".join([*plan.grid, *plan.block, *plan.macros.values()])
    distances = [
        a.expression[2:]
        for a in plan.arguments
        if a.expression and re.fullmatch(r"p\.(?:LD\w?|(?:\w+_)?(?:STRIDE|PITCH|LD)\w?)", a.expression)
        and not re.search(rf"{re.escape(a.expression)}\b", launch)
    ]  # fmt: skip
    if not distances or not plan.grid or not plan.block:
        return plan
    (problem,) = problems_at(plan.fields, 64, few=True)[:1]
    problem |= {name: 64 * (11 + at) for at, name in enumerate(distances)}
    run = prober.run(plan, problem)
    sizes = {value: name for name, value in problem.items() if name not in distances}
    found: dict[str, str] = {}
    for touch in run.touches.values():
        for name in distances:
            rows, last = divmod(touch.extent - 1, problem[name])
            if touch.extent and rows + 1 in sizes and last + 1 in sizes:
                found.setdefault(f"p.{name}", f"p.{sizes[last + 1]}")
    arguments = tuple(replace(a, expression=found.get(a.expression or "", a.expression)) for a in plan.arguments)
    return replace(
        plan, arguments=arguments, fields=tuple(field for field in plan.fields if f"p.{field.name}" not in found)
    )


def with_read_constants(plan: Plan, found: Evidence) -> Plan:
    """Return the plan without unused `__constant__` arrays."""
    read = tuple(a for a in plan.constants if any(run.touches[a.name].read for run in found.runs))
    return replace(plan, constants=read)


def _by_search(prober: Prober, plan: Plan) -> tuple[Plan, Evidence] | None:
    """Find a grid that explains every buffer, preferably the one with the fewest blocks that writes everything."""
    best: tuple[tuple[object, ...], Plan, Evidence] | None = None
    # Use small blocks, so that a grid over the wrong field cannot cover the buffer with a single block.
    small = {**plan.defaults, **dict.fromkeys(_block_genes(plan), 32 if len(plan.block) < 2 else 8)}
    for level in (1, 32, 128, *levels(plan)[len(LEVELS) :]):
        for group in _grids(plan):
            for grid in group:
                if prober.exhausted:
                    break
                trial = replace(plan, grid=grid)
                found = evidence(prober, trial, level, 2, small, FEW_THREADS)
                if not found.ok:
                    continue
                blocks = sum(prod(trial.extents(grid, small, problem)) for problem in found.problems)
                rank = (*found.rank[:-1], -blocks)
                if best is None or rank > best[0]:
                    best = rank, trial, found
            if best is not None and best[2].exact and best[2].allows_draft and best[2].plain:
                break
        if best is not None and best[2].allows_draft and best[2].plain:
            break
    if best is None:
        return None
    final = evidence(prober, best[1], best[2].level)
    return best[1], max(final, best[2], key=lambda one: one.rank)


def _grids(plan: Plan) -> Iterator[list[tuple[str, ...]]]:
    """Yield groups of grids to try: a thread, tile or block per element of a field or of a product of fields.

    A later group is tried only if no grid of an earlier group is usable.
    """
    fields = [f"p.{field.name}" for field in plan.fields]
    products = [" * ".join(names) for size in range(1, len(fields) + 1) for names in _runs(fields, size)]
    genes = [f"c.{gene.name}" for gene in plan.genes if isinstance(gene.default, int) and gene.default > 1]
    if len(plan.block) < 2:
        block = _product(plan.block)
        wide = [f"({block} * {more})" for more in (*(gene for gene in genes if gene not in block), 2, 4, 8)]
        yield [(f"ceil_div({amount}, {unit})",) for amount in fields for unit in (block, *wide)]
        for amount in products[len(fields) :]:
            yield [(f"ceil_div({amount}, {unit})",) for unit in (block, *wide)]
        for amount in products:
            yield [(amount,), *((f"ceil_div({amount}, {gene})",) for gene in genes if gene != block)]
        return
    choices: list[list[str]] = []
    for extent in plan.block:
        units = [extent, *(gene for gene in genes if gene != extent)][:4]
        choices.append([f"ceil_div({name}, {unit})" for name in fields for unit in units if unit != "1"] + fields)
    yield [chosen for chosen in product(*choices) if len(fields) == 1 or len(set(map(_field, chosen))) == len(chosen)]


def _block_genes(plan: Plan) -> list[str]:
    """Return the genes that only set an extent of the block."""
    named = {f"c.{gene.name}" for gene in plan.genes if gene.doc == BLOCK_DOC}
    return [text.removeprefix("c.") for text in plan.block if text in named]


def _field(text: str) -> str:
    return text.partition("p.")[2].partition(",")[0]


def _runs(fields: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    for start in range(len(fields) - size + 1):
        yield tuple(fields[start : start + size])


def _product(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"({' * '.join(texts)})"


def with_indexed_fields(plan: Plan, found: Evidence) -> tuple[Plan, Evidence]:
    """Return the plan with marks on the extents that integers index, and a new field for one that nothing states."""
    if not found.indexed:
        return replace(plan, fields=tuple(replace(field, indexed=False) for field in plan.fields)), found
    fields, fits = {field.name: field for field in plan.fields}, dict(found.fits)
    problems = [dict(problem) for problem in found.problems]
    for name in (name for name in found.fits if name in found.indexed):
        shape = _as_stated(plan, name) or found.fits[name]
        if shape and shape.stated:
            for axis in _indexed_axes(plan, shape, problems, [run.touches[name].extent for run in found.runs]):
                fields[axis] = replace(fields[axis], indexed=True)
        elif shape and INDEX_LIMIT in shape.axes:
            rows = unused_name(f"{name.upper()}_ROWS", " ".join((*fields, *plan.defaults)))
            why = f"integers in the inputs index these rows of {name}; the file does not state their number"
            fields[rows] = DraftField(rows, why=why, indexed=True)
            fits[name] = replace(shape, axes=tuple(f"p.{rows}" if a == INDEX_LIMIT else a for a in shape.axes))
            for problem, limit in zip(problems, LIMITS, strict=False):
                problem[rows] = limit
    return replace(plan, fields=tuple(fields.values())), replace(found, fits=fits, problems=tuple(problems))


def _indexed_axes(plan: Plan, shape: Fit, problems: Sequence[Mapping[str, int]], extents: Sequence[int]) -> list[str]:
    """Return the field along which no run accessed more rows than its limit, or else all fields."""
    sizes = [[plan.value(one, plan.defaults, problem) for one in shape.axes] for problem in problems]
    axes = [(at, axis[2:]) for at, axis in enumerate(shape.axes) if re.fullmatch(r"p\.\w+", axis)]
    for at, name in axes:
        if all(
            limit < size[at]
            and prod(size) - size[at] * prod(size[at + 1 :]) < extent
            and extent <= prod(size) - (size[at] - limit) * prod(size[at + 1 :])
            for size, extent, limit in zip(sizes, extents, LIMITS, strict=False)
        ):
            return [name]
    return [name for _, name in axes]


def tensors_of(plan: Plan, found: Evidence, source: str) -> tuple[DraftTensor, ...]:
    """Return the buffers, with shapes, axis orders and roles from the runs."""
    made: list[DraftTensor] = []
    constants = {argument.name for argument in plan.constants}
    passed = [(a.expression, a.name) for a in plan.arguments if a.expression and a.expression.startswith("p.")]
    names = {text: "|".join(name for other, name in passed if other == text) for text, _ in passed}
    for argument in (*plan.constants, *plan.arguments):
        if not argument.is_tensor:
            continue
        stated = found.exceeded.get(argument.name)
        shape = _as_stated(plan, argument.name) or found.fits[argument.name]
        touches = [run.touches[argument.name] for run in found.runs]
        why = [argument.why] if argument.why else []
        if shape is None or (shape.stated and not any(t.extent for t in touches)):
            made.append(_unexplained(plan, argument, touches))
            continue
        written, read = any(t.written for t in touches), any(t.read for t in touches)
        whole = found.covered.get(argument.name, False) and shape.exact
        role = "constant" if argument.name in constants else "input" if not written else "output"
        if written and any(t.in_place for t in touches):
            role = "inout"
            why.append("read before it is written")
        elif written and not whole:
            role = "inout"
            share = min(t.distinct / max(1, t.extent) for t in touches)
            part = f"only {min(99, int(100 * share))} %" if share < 1 else "perhaps not all"
            why.append(f"runs write {part} of the buffer, so the other elements must keep their values")
        elif written and read:
            why.append("written before it is read: an output or a workspace")
        if shape.stated and found.fits[argument.name] != shape and not stated:
            reached = max(t.extent for t in touches)
            words = " ".join(f"{name}={value}" for name, value in found.problems[-1].items())
            why.append(
                f"{plan.stated[argument.name].where} states this size; a run accessed {reached} elements ({words})"
            )
        elif not shape.exact:
            why.append("the smallest product of fields that covers the accessed elements")
        elif stated:
            why.append(f"{stated.where} states this size, but the kernel accesses elements beyond it")
        elif argument.name not in plan.stated and any(re.fullmatch(r"p\.\w+ [+-] \d+", axis) for axis in shape.axes):
            why.append("unknown size: the kernel accesses this many elements, and the file states no size")
        extra = ""
        if argument.dtype[0] in "iu" and role in ("input", "inout") and found.indexed:
            extents = [f"p.{field.name}" for field in plan.fields if field.indexed] or [INDEX_LIMIT]
            least = extents[0] if len(extents) == 1 else f"min({', '.join(extents)})"
            extra = f"high={least} - 1"
            why.append("integers below this limit, because some of them index a buffer")
        axes = shape.axes if shape.stated else row_major(shape.axes, argument.name, source, names)
        made.append(DraftTensor(argument.name, argument.dtype, axes, role, "; ".join(why), extra))
    return tuple(made)


def _as_stated(plan: Plan, name: str) -> Fit | None:
    """Return the shape that the file states for a buffer."""
    stated = plan.stated.get(name)
    return Fit(stated.axes, exact=True, stated=True) if stated and stated.axes and stated.sure else None


def _unexplained(plan: Plan, argument: DraftArgument, touches: Sequence[Touch]) -> DraftTensor:
    """Return a buffer that no run accesses, or that exceeds every product of fields."""
    written = any(touch.written for touch in touches)
    if not any(touch.extent for touch in touches):
        stated = _as_stated(plan, argument.name)
        return DraftTensor(
            argument.name, argument.dtype, stated.axes if stated else ("1",), "input", "no run accesses it"
        )
    shape = tuple(f"p.{field.name}" for field in plan.fields)
    why = "runs access more elements than any product of fields covers"
    return DraftTensor(argument.name, argument.dtype, shape, "output" if written else "input", why)


def size_of(
    tensor: DraftTensor, plan: Plan, problem: Mapping[str, int], limit: int,
    config: Mapping[str, int | str] | None = None,
) -> int:  # fmt: skip
    """Return the number of elements of a drafted buffer for a problem, and a configuration other than the default."""
    axes = (axis.replace(INDEX_LIMIT, str(limit)) for axis in tensor.shape)
    return prod(plan.value(axis, plan.defaults if config is None else config, problem) for axis in axes)


def bytes_of(tensors: Sequence[DraftTensor]) -> str:
    """Return a Python expression for the bytes moved per call: a buffer counts once, or twice if updated in place."""
    parts = []
    for tensor in (tensor for tensor in tensors if tensor.role != "workspace"):
        times = DTYPE_BYTES[tensor.dtype] * (2 if tensor.role == "inout" else 1)
        parts.append(" * ".join([str(times), *(f"({a})" if " " in a else a for a in tensor.shape)]))
    return " + ".join(parts)
