"""Run a drafted launch on guessed problems, explain the elements that it accessed, and fit each buffer's shape."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from math import prod

from evokern.scaffold.plan import DraftArgument, DraftField, Plan, StatedSize
from evokern.scaffold.probe import MOST_THREADS, Prober, Run, Touch
from evokern.scaffold.stated.sizes import inclusive_check

MOST_AXES = 5
LARGEST_BORDER = 4
"""Maximum number of elements by which an extent may exceed its field, as in an image with a border."""
MOST_CONSTANT = 64
"""Maximum extent of a constant axis in addition to fields; larger ones are coincidences of few runs."""


@dataclass(frozen=True)
class Fit:
    """A shape that explains the accessed extent of a buffer."""

    axes: tuple[str, ...]
    """Python text of each extent, not yet ordered."""
    exact: bool
    """Whether the size equals the accessed extent in every run; otherwise it is the smallest product that covers it."""
    stated: bool = False
    """Whether the file states the shape, in order."""


def fit(extents: Sequence[int], atoms: Mapping[str, Sequence[int]], *, borders: bool = True) -> Fit | None:
    """Find the shortest product of fields that equals the accessed extent in every run.

    Args:
        extents: accessed elements, one number per run.
        atoms: Python text of a field, grid extent or limit → its value in each run.
        borders: whether extents may exceed their fields by a few elements.

    Returns:
        The shape, or None if no product covers the extents.
    """
    if not any(extents):
        return None
    subsets = [chosen for size in range(min(MOST_AXES, len(atoms)) + 1) for chosen in combinations(atoms, size)]
    # A square or cube uses one field for several axes; attention scores combine it with other axes.
    for name in atoms:
        others = [other for other in atoms if other != name]
        subsets += [(*rest, name, name) for size in range(3) for rest in combinations(others, size)]
        subsets.append((name, name, name))
    found: list[tuple[tuple[int, int, int], Fit]] = []
    for rank, chosen in enumerate(subsets):
        sizes = [prod(atoms[name][run] for name in chosen) for run in range(len(extents))]
        if all(size and extent % size == 0 for extent, size in zip(extents, sizes, strict=True)):
            factors = {extent // size for extent, size in zip(extents, sizes, strict=True)}
            if len(factors) == 1:
                factor = factors.pop()
                if factor == 1 or not chosen or factor <= MOST_CONSTANT:
                    axes = (*chosen, str(factor)) if factor > 1 or not chosen else chosen
                    found.append(((len(axes) + (factor > 1), factor, rank), Fit(tuple(axes), True)))
    if found:
        return min(found, key=lambda item: item[0])[1]
    bordered = (_bordered(extents, atoms) or _windowed(extents, atoms)) if borders else None
    return bordered or _covering(extents, atoms, subsets)


def _bordered(extents: Sequence[int], atoms: Mapping[str, Sequence[int]]) -> Fit | None:
    """Return a product of one or two extents that differ from their fields by a few elements."""
    margins = range(-2, 2 * LARGEST_BORDER + 1)
    for chosen in [c for size in (1, 2) for c in combinations(atoms, size)]:
        for margin in product(margins, repeat=len(chosen)):
            sizes = [
                prod(atoms[name][run] + more for name, more in zip(chosen, margin, strict=True))
                for run in range(len(extents))
            ]
            if sizes == list(extents):
                parts = ("" if not more else f" {'+' if more > 0 else '-'} {abs(more)}" for more in margin)
                return Fit(tuple(map("".join, zip(chosen, parts, strict=True))), True)
    return None


def _windowed(extents: Sequence[int], atoms: Mapping[str, Sequence[int]]) -> Fit | None:
    """Return a product whose extents are the sum of two fields minus one, as for an image and a filter."""
    names = [name for name in atoms if name.startswith("p.")]
    pairs = {f"{a} + {b} - 1": [x + y - 1 for x, y in zip(atoms[a], atoms[b], strict=True)]
             for a, b in combinations(names, 2)}  # fmt: skip
    for size in (1, 2, 3):
        for first in pairs:
            for others in combinations([*pairs, *names], size - 1):
                chosen = (first, *others)
                known = {**pairs, **atoms}
                if [prod(known[c][run] for c in chosen) for run in range(len(extents))] == list(extents):
                    return Fit(chosen, True)
    return None


def _covering(
    extents: Sequence[int], atoms: Mapping[str, Sequence[int]], subsets: Sequence[tuple[str, ...]]
) -> Fit | None:
    best: tuple[float, Fit] | None = None
    for chosen in subsets:
        sizes = [prod(atoms[name][run] for name in chosen) for run in range(len(extents))]
        if chosen and all(size >= extent for size, extent in zip(sizes, extents, strict=True)):
            waste = max(size / max(extent, 1) for size, extent in zip(sizes, extents, strict=True))
            if best is None or waste < best[0]:
                best = waste, Fit(tuple(chosen), False)
    return best[1] if best else None


def row_major(axes: Sequence[str], tensor: str, source: str, names: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Order the axes of a shape by the source's index expressions; axes that multiply an index come later.

    Args:
        axes: Python text of each extent.
        tensor: name of the buffer.
        source: text of the kernel.
        names: Python text of a field → its names in the source, separated by `|`.
    """
    if len(axes) < 2:
        return tuple(axes)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    counted = dict.fromkeys(axes, 0)
    for near in (*_mentions(tensor, text), text):
        counted = {axis: _strides(_word_of(axis, names or {}), near) for axis in axes}
        if any(counted.values()):
            break
    order = sorted(range(len(axes)), key=lambda at: (counted[axes[at]], at))
    return tuple(axes[at] for at in order)


def _mentions(tensor: str, text: str) -> tuple[str, str, str]:
    """Return source text about a buffer's indices: its brackets, their variables' definitions, and its statements."""
    word = rf"\b{re.escape(tensor)}\b"
    indices = re.findall(rf"{word}\s*\[([^\]]*)\]", text) + re.findall(rf"{word}\s*\+=?\s*([^;,\]]*)", text)
    words = {w for index in indices for w in re.findall(r"[A-Za-z_]\w*", index)}
    statements = [s for s in re.split(r"[;{}]", text) if "__global__" not in s]
    makes = [s for s in statements if (m := re.search(r"([A-Za-z_]\w*)\s*=[^=]", s)) and m[1] in words]
    return " ; ".join(indices), " ; ".join(makes), " ; ".join(s for s in statements if re.search(word, s))


def _word_of(axis: str, names: Mapping[str, str]) -> str:
    """Return the source's names of an extent, or of the first part of a sum."""
    first = re.match(r"[pc]\.\w+|[A-Z]\w*|\d+", axis)
    return names.get(first[0], first[0].partition(".")[2] or first[0]) if first else ""


def _strides(name: str, text: str) -> int:
    """Return how often an extent multiplies something."""
    word = rf"\b(?:{name})\b"
    return len(re.findall(rf"\*\s*{word}|{word}\s*\*", text)) if name else 0


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
    def explained(self) -> bool:
        """Whether every accessed buffer has a shape that covers it."""
        return self.ok and all(
            found or not any(run.touches[name].extent for run in self.runs) for name, found in self.fits.items()
        )

    @property
    def exact(self) -> bool:
        """Whether a shape explains every accessed buffer."""
        return self.explained and all(found.exact for found in self.fits.values() if found)

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
        shapes = [self.fits[name] for name in self.covered]
        return self.explained and self.sizes_a_field and all(found is not None and found.exact for found in shapes)

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
