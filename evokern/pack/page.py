"""Render a package as one HTML page: which variant serves which region, and how fast it is at each measured shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evokern import report
from evokern.pack.candidates import Place
from evokern.pack.choice import Sample, Served, served_at
from evokern.pack.tree import CAPABILITY, MODE, Box, Tree, leaf_of, regions
from evokern.report.tables import TextTable
from evokern.templating import environment
from evokern.wording import microseconds

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Shares of the weight for which the page shows the speedup."""


@dataclass(frozen=True)
class Dispatched:
    """A measured shape with the times of the package's variants."""

    place: Place
    """The shape."""
    sample: Sample
    """Times by the numbers of variants."""

    def as_dict(self, tree: Tree, baselines: Sequence[str]) -> dict[str, Any]:
        """Return the code that a dispatch selects for the shape, with its time, as JSON values."""
        found, sample = served_at(tree, self.sample), self.sample
        ratio = None if found.variant is None else sample.ratios.get(found.variant)
        return {
            "problem": self.place.problem.in_words(every=True), "held_out": self.place.held_out,
            "weight": self.place.weight, "variant": found.variant, "baseline": baselines[found.baseline],
            "time_us": found.time_us, "best_us": sample.best_us, "baseline_us": sample.baseline_us,
            "ratio_ci95": None if ratio is None else list(ratio),
        }  # fmt: skip


def pack_page(
    package: str,
    notes: Sequence[str],
    variants: Sequence[str],
    baselines: Sequence[str],
    tree: Tree,
    rows: Sequence[Dispatched],
) -> str:
    """Return the page as a single file without scripts; all text is escaped.

    Args:
        package: name of the package.
        notes: lines about the costs of the dispatch.
        variants: titles of the variants.
        baselines: names of the baselines.
        tree: the dispatch.
        rows: measured shapes.
    """
    served = [(one, served_at(tree, one.sample)) for one in rows]
    return (
        environment(report.__name__)
        .get_template("pack.html.j2")
        .render(
            heading=package,
            predicted=any(one.place.subject.record.predicted for one in rows),
            notes=notes,
            regions=_regions(tree, variants, baselines, served),
            speedups=_speedups(served),
            shapes=TextTable(
                ("shape", "set", "weight", "served by", "µs", "best µs", "loss", "baseline µs", "speedup", "95 %"),
                [_row(one, found, baselines) for one, found in served],
                (2, 4, 5, 6, 7, 8, 9),
            ),
        )
    )


def _regions(
    tree: Tree, variants: Sequence[str], baselines: Sequence[str], served: Sequence[tuple[Dispatched, Served]]
) -> TextTable:
    total, rows = sum(one.place.weight for one, _ in served), []
    for box, leaf in regions(tree):
        here = [(one, found) for one, found in served if leaf_of(tree, one.sample.values) is leaf]
        names = [f"{index}: {variants[index]}" for index in leaf.variants]
        weight = sum(one.place.weight for one, _ in here) / total if total else 0.0
        shown = _in_words(box), "; ".join(names) or "-", baselines[leaf.baseline]
        rows.append((*shown, str(len(here)), f"{100 * weight:.0f} %"))
    return TextTable(("region", "variants, in this order", "otherwise", "shapes", "weight"), rows, (3, 4))


def _in_words(box: Box) -> str:
    parts = []
    for field, (low, high) in box.items():
        name = {CAPABILITY: "sm", MODE: "mode"}.get(field, field)
        if low is not None and low == high:
            parts.append(f"{name} = {low}")
        else:
            parts.append(f"{'' if low is None else f'{low} ≤ '}{name}{'' if high is None else f' ≤ {high}'}")
    return ", ".join(parts) or "all shapes"


def _speedups(served: Sequence[tuple[Dispatched, Served]]) -> TextTable | None:
    """Return the speedup along the distribution: its quantiles by weight; None without baselines."""
    rows = []
    for kind, held_out in (("sampled", False), ("held out", True)):
        known = sorted(
            (found.speedup, one.place.weight)
            for one, found in served
            if one.place.held_out == held_out and found.speedup is not None
        )
        if known:
            rows.append((kind, *(f"{one:.2f}" for one in _quantiles(known))))
    return TextTable(("speedup at", *(f"{100 * q:.0f} %" for q in QUANTILES)), rows, range(1, 8)) if rows else None


def _quantiles(known: Sequence[tuple[float, float]]) -> Iterator[float]:
    total = math.fsum(weight for _, weight in known)
    for share in QUANTILES:
        below = 0.0
        for value, weight in known:
            below += weight
            if below >= share * total - 1e-9 * total:
                yield value
                break


def _row(one: Dispatched, found: Served, baselines: Sequence[str]) -> tuple[str, ...]:
    place, sample = one.place, one.sample
    by = baselines[found.baseline] if found.variant is None else f"variant {found.variant}"
    ratio = None if found.variant is None else sample.ratios.get(found.variant)
    return (
        str(place.problem),
        "held out" if place.held_out else "sampled",
        f"{place.weight:g}",
        by,
        microseconds(found.time_us),
        microseconds(sample.best_us),
        "-" if found.loss is None else f"{100 * found.loss:.1f} %",
        microseconds(sample.baseline_us),
        "-" if found.speedup is None else f"{found.speedup:.2f}",
        "-" if ratio is None else f"{1 / ratio[1]:.2f} to {1 / ratio[0]:.2f}",
    )
