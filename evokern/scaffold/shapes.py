"""Fit each buffer's shape, as a product of fields, to its accessed extent on several problems."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

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
