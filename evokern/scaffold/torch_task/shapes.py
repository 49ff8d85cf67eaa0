"""Express tensor extents as formulas over a task's sizes, from a few runs without data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

Sizes = Mapping[str, int]
Shapes = tuple[tuple[int, ...], ...]
MOST_STEP = 64
"""Maximum divisor of a size."""
MOST_STRIDE = 8
"""Maximum stride of a window that is detected."""


@dataclass(frozen=True)
class Fitted:
    """Sizes that can change, and all extents as formulas over these sizes."""

    steps: Mapping[str, int]
    """Field → its required divisor."""
    formulas: tuple[tuple[str, ...], ...]
    """Python text over `p.NAME` for each axis of each tensor."""


def tied(own: Sizes, shapes: Callable[[Sizes], Shapes | None]) -> dict[str, str]:
    """Return a map from each size that can change only together with an equal size to this equal size.

    Args:
        own: sizes in the file.
        shapes: returns the shapes of all tensors at other sizes; None if the file cannot run.
    """
    found: dict[str, str] = {}
    for name, value in reversed(list(own.items())):  # the first size of a pair names the field
        if name in found.values() or any(shapes({**own, name: other}) for other in (value + 1, 2 * value, 3 * value)):
            continue
        for partner, other in own.items():
            if partner != name and other == value and partner not in found:
                both = [shapes({**own, name: more, partner: more}) for more in (2 * value, 3 * value)]
                if all(both):
                    found[name] = partner
                    break
    return found


def fit(own: Sizes, shapes: Callable[[Sizes], Shapes | None]) -> Fitted:
    """Return the sizes that can be fields, and the formula of each extent.

    A size keeps its value if runs with other values fail, or if its effect on an extent is not recognised.

    Args:
        own: sizes in the file.
        shapes: returns the shapes of all tensors at other sizes; None if the file cannot run.
    """
    known = shapes(own)
    assert known is not None, "the caller must have run the file at its own sizes"
    steps = {name: step for name in own if (step := _step(name, own, shapes, known)) is not None}
    while True:
        tried = list(_trials(own, steps, shapes))
        formulas, stubborn = [], set()
        for tensor, shape in enumerate(known):
            row = []
            for axis in range(len(shape)):
                points = [(sizes, made[tensor][axis]) for sizes, made in tried if len(made[tensor]) == len(shape)]
                formula, names = _formula(list(steps), points)
                row.append(formula)
                stubborn |= names if formula == "" else set()
            formulas.append(tuple(row))
        if not stubborn:
            return Fitted(steps, tuple(formulas))
        # The last of these sizes is the most likely not to be an extent.
        steps = {name: step for name, step in steps.items() if name != sorted(stubborn)[-1]}


def _step(name: str, own: Sizes, shapes: Callable[[Sizes], Shapes | None], known: Shapes) -> int | None:
    """Return the divisor of a size, or None if the size cannot change or affects no extent."""
    value = own[name]
    for step in range(1, min(MOST_STEP, value) + 1):
        if value % step:
            continue
        made = [shapes({**own, name: other}) for other in (value + step, value + 2 * step, value + 3 * step)]
        if all(one is not None for one in made):
            same = [tuple(map(len, one)) == tuple(map(len, known)) for one in made if one is not None]
            return step if all(same) and made[-1] != known else None
    return None


def _trials(own: Sizes, steps: Sizes, shapes: Callable[[Sizes], Shapes | None]) -> list[tuple[Sizes, Shapes]]:
    """Return shapes at changed sizes: each size alone at several values, pairs of sizes, all sizes."""
    chosen: list[Sizes] = [own]
    for name, step in steps.items():
        chosen += [{**own, name: own[name] + times * step} for times in (1, 2, 3, 4, 5, 7)]
        chosen += [{**own, name: step * (own[name] // step // 2)}]
    for first, second in combinations(steps, 2):
        chosen.append({**own, first: own[first] + 3 * steps[first], second: own[second] + 5 * steps[second]})
    for times in (2, 5):
        chosen.append({**own, **{n: own[n] + (times + i) * s for i, (n, s) in enumerate(steps.items())}})
    found = []
    for sizes in chosen:
        made = shapes(sizes) if all(value > 0 for value in sizes.values()) else None
        if made is not None:
            found.append((sizes, made))
    return found


def _formula(fields: Sequence[str], points: Sequence[tuple[Sizes, int]]) -> tuple[str, set[str]]:
    """Return a formula that fits all points, or an empty string, and the fields that it depends on."""
    own, value = points[0]
    names = set()
    for sizes, extent in points:
        changed = [name for name in fields if sizes[name] != own[name]]
        if len(changed) == 1 and extent != value:
            names.add(changed[0])
    if not names:
        return (str(value), names) if all(extent == value for _, extent in points) else ("", set(fields))
    for formula in _candidates(sorted(names, key=list(fields).index), points):
        text = formula.replace("p.", "")
        if all(eval(text, {"__builtins__": {}}, dict(sizes)) == extent for sizes, extent in points):
            return formula, names
    return "", names


def _candidates(names: Sequence[str], points: Sequence[tuple[Sizes, int]]) -> list[str]:
    """Return formulas to try: products, sums, and windows and strides of a single size."""
    own, value = points[0]
    texts = [f"p.{name}" for name in names]
    whole = prod(own[name] for name in names)
    found = []
    if value % whole == 0:
        found.append(" * ".join([*([str(value // whole)] if value != whole else []), *texts]))
    if whole % value == 0 and len(names) == 1:
        found.append(f"{texts[0]} // {whole // value}")
    slopes = {}
    for sizes, extent in points:
        changed = [name for name in names if sizes[name] != own[name]]
        if len(changed) == 1:
            slopes[changed[0]] = (extent - value) / (sizes[changed[0]] - own[changed[0]])
    if len(slopes) == len(names) and all(slope == int(slope) for slope in slopes.values()):
        rest = value - sum(int(slopes[name]) * own[name] for name in names)
        terms = [f"p.{n}" if slopes[n] == 1 else f"{int(slopes[n])} * p.{n}" for n in names]
        found.append(" + ".join(terms) + (f" + {rest}" if rest > 0 else f" - {-rest}" if rest else ""))
    if len(names) == 1:
        for stride in range(2, MOST_STRIDE + 1):
            shift = value * stride - own[names[0]]
            for room in range(stride):
                by = shift + room
                inner = texts[0] if not by else f"({texts[0]} {'+' if by > 0 else '-'} {abs(by)})"
                found.append(f"{inner} // {stride}")
    return found
