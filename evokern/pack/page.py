"""Render a package as one HTML page: which variant serves which region, and how fast it is at each measured shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evokern import report
from evokern.pack.tree import CAPABILITY, MODE, Box, Tree, regions
from evokern.report.tables import TextTable
from evokern.templating import environment
from evokern.wording import microseconds

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Shares of the weight for which the page shows the speedup."""


def pack_page(package: str, notes: Sequence[str], variants: Sequence[str], facts: Mapping[str, Any], tree: Tree) -> str:
    """Return the page as a single file without scripts; all text is escaped.

    Args:
        package: name of the package.
        notes: lines about the costs of the dispatch.
        variants: titles of the variants.
        facts: facts of `provenance.json`.
        tree: the dispatch.
    """
    names, shapes = facts["baselines"], facts["shapes"]
    total, rows = sum(one["weight"] for one in shapes), []
    for index, (box, leaf) in enumerate(regions(tree)):
        here = [one["weight"] for one in shapes if one["region"] == index]
        tried = "; ".join(f"{number}: {variants[number]}" for number in leaf.variants) or "-"
        rows.append((_in_words(box), tried, names[leaf.baseline], str(len(here)), f"{100 * sum(here) / total:.0f} %"))
    head = ("shape", "set", "weight", "served by", "µs", "best µs", "loss", "baseline µs", "speedup", "95 %")
    return (
        environment(report.__name__)
        .get_template("pack.html.j2")
        .render(
            heading=package,
            predicted=any(one["times"] == "predicted" for one in facts["variants"]),
            notes=notes,
            regions=TextTable(("region", "variants, in this order", "otherwise", "shapes", "weight"), rows, (3, 4)),
            speedups=_speedups(shapes),
            shapes=TextTable(head, [_row(one, names) for one in shapes], (2, 4, 5, 6, 7, 8, 9)),
        )
    )


def _in_words(box: Box) -> str:
    parts = []
    for factors, (low, high) in box.items():
        name = " · ".join({CAPABILITY: "sm", MODE: "mode"}.get(field, field) for field in factors)
        exact = low is not None and low == high
        limits = ("" if low is None else f"{low} ≤ ", "" if high is None else f" ≤ {high}")
        parts.append(f"{name} = {low}" if exact else f"{limits[0]}{name}{limits[1]}")
    return ", ".join(parts) or "all shapes"


def _speedups(shapes: Sequence[Mapping[str, Any]]) -> TextTable | None:
    """Return the speedup along the distribution: its quantiles by weight; None without baselines."""
    rows = []
    for kind in ("sampled", "further", "held out"):
        known = sorted((s["speedup"], s["weight"]) for s in shapes if _kind(s) == kind and s["speedup"] is not None)
        if known:
            rows.append((kind, *(f"{one:.2f}" for one in _quantiles(known))))
    return TextTable(("speedup at", *(f"{100 * q:.0f} %" for q in QUANTILES)), rows, range(1, 8)) if rows else None


def _quantiles(known: Sequence[tuple[float, float]]) -> Iterator[float]:
    total = math.fsum(weight for _, weight in known)
    for share in QUANTILES:
        below = 0.0
        for value, weight in known:
            below += weight
            if below >= (share - 1e-9) * total:
                yield value
                break


def _kind(shape: Mapping[str, Any]) -> str:
    return "held out" if shape["held_out"] else "further" if shape["further"] else "sampled"


def _row(one: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    ratio = one["ratio_ci95"]
    return (
        one["problem"], _kind(one), f"{one['weight']:g}",
        names[one["baseline"]] if one["variant"] is None else f"variant {one['variant']}",
        microseconds(one["time_us"]), microseconds(one["best_us"]),
        "-" if one["loss"] is None else f"{100 * one['loss']:.1f} %", microseconds(one["baseline_us"]),
        "-" if one["speedup"] is None else f"{one['speedup']:.2f}",
        "-" if ratio is None else f"{1 / ratio[1]:.2f} to {1 / ratio[0]:.2f}",
    )  # fmt: skip
