"""Sections about the champion: headline, proof, and why it wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evokern.analysis.control_verdict import price
from evokern.report.facts import Facts
from evokern.report.plots import bars, microseconds, number
from evokern.report.tables import TextTable, flattened
from evokern.store import interval_us

_MARKS = {"passed": "good", "failed": "bad", "skipped": "dim"}
"""State of a stage of a verification → class of its colour."""


def headline(facts: Facts) -> list[tuple[str, str, str]]:
    """Return the champion in a few large numbers: each with what it is and a remark."""
    best = facts.best.evaluation
    time_us = best.time_us or 0.0
    interval = interval_us(best)
    between = f"95 % interval {microseconds(interval[0])} to {microseconds(interval[1])}" if interval else ""
    kind = "predicted by a model, not measured" if facts.record.predicted else between
    tiles = [(f"{microseconds(time_us)} µs", "champion", kind)]
    if facts.baseline:
        name, took = facts.baseline
        tiles.append((f"{took / time_us:.2f}×", f"as fast as {name}", f"which takes {microseconds(took)} {facts.unit}"))
    else:
        tiles.append(("–", "no baseline", "none was measured, so no speedup is known"))
    word = {True: "verified", False: "refuted", None: "not verified"}[facts.verification.verified]
    tiles.append((word, "proof", facts.verification.reason))
    if facts.limit:
        tiles.append((f"{100 * facts.limit.share:.0f} %", "of the speed of light", f"bound by {facts.limit.setter}"))
    if facts.control and facts.control["advantage"]:
        ratio = facts.control["advantage"]
        tiles.append((f"{ratio:.2f}×", "as fast as random search's best", "from an equal share of the trials"))
    spent = sum(session.elapsed_s for session in facts.sessions)
    tiles.append((str(len(facts.trials)), "trials", f"in {spent / 60:.1f} min, {_sessions(len(facts.sessions))}"))
    cost = facts.record.cost(spent)
    if cost:
        tiles.append((f"{cost['total']:.2f} {cost['unit']}".strip(), "spent", price(cost)))
    return tiles


def _sessions(count: int) -> str:
    return "one session" if count == 1 else f"{count} sessions"


def proof(facts: Facts) -> dict[str, Any]:
    """Return the champion's configuration, and what verification found."""
    result = facts.proof.result if facts.proof else {}
    played = result.get("playoff")
    return {
        "trial": facts.best.number,
        "drawn_by": ", drawn by the control" if facts.best.control else "",
        "choices": [
            (gene.name, str(facts.best.config[gene.name]), str(gene.default), gene.doc) for gene in facts.record.genes
        ],
        "gate": flattened(facts.best.evaluation.gate) if facts.best.evaluation.gate else None,
        "proof": facts.proof,
        "stages": [
            (_MARKS[stage["state"]], stage["state"], name, stage["detail"])
            for name, stage in result.get("stages", {}).items()
        ],
        "playoff": _playoff(played, facts.unit) if played else None,
        "playoff_how": _method(played) if played else "",
    }


def _method(played: Mapping[str, Any]) -> str:
    return "predicted times" if played["predicted"] else f"{played['rounds']} rounds, error budget {played['level']:g}"


def _playoff(played: Mapping[str, Any], unit: str) -> TextTable:
    rows = []
    for one in played["finalists"]:
        low, high = one["ratio_ci95"]
        rows.append(
            (
                one["name"],
                one["standing"],
                microseconds(one["time_us"]),
                f"{one['ratio']:.3f}",
                "–" if played["predicted"] else f"{low:.3f} to {high:.3f}",
                f"{one['cliffs_delta']:+.2f}",
            )
        )
    return TextTable(("", "standing", unit, "of champion", "95 % interval", "Cliff's δ"), rows, range(2, 6))


def ablation(facts: Facts) -> dict[str, Any]:
    """Return what became of each choice of the champion taken back."""
    if facts.ablation is None:
        return {"proof": None}
    found = facts.ablation.result
    costs = [
        (_change(row), max(row["ratio"] - 1, 0.0), f"{100 * (row['ratio'] - 1):+.1f} %")
        for row in found["alone"]
        if row["time_us"]
    ]
    alone = _ablated([found["champion"], *found["alone"]], "the champion", facts.unit)
    path = _ablated(found["path"], "the default", facts.unit)
    return {
        "proof": facts.ablation,
        "costs": bars("Cost of taking each choice back", costs),
        "tables": [
            ("Each choice back at the default, alone", alone),
            ("From the default to the champion, a change at a time", path),
        ],
    }


def _change(row: Mapping[str, Any]) -> str:
    return f"{row['gene']}={row['value']}"


def _ablated(rows: Sequence[Mapping[str, Any]], first: str, unit: str) -> TextTable:
    """Return the table of an ablation's rows.

    Args:
        rows: what was measured.
        first: what the first row is, which changes no gene.
        unit: of times.
    """
    ablated_rows = [
        (
            _change(row) if row["gene"] else first if place == 0 else "all others together",
            row["note"],
            microseconds(row["time_us"]) if row["time_us"] else "–",
            f"{row['ratio']:.3f}" if row["ratio"] else "–",
            f"{row['ratio_ci95'][0]:.3f} to {row['ratio_ci95'][1]:.3f}" if row["ratio_ci95"] else "–",
            number(row["gb_per_s"]) if row["gb_per_s"] else "–",
            f"{100 * row['occupancy']:.0f} %" if row["occupancy"] is not None else "–",
            f"{row['speedup']:.2f}×" if row["speedup"] else "–",
        )
        for place, row in enumerate(rows)
    ]
    head = ("choice", "", unit, "of champion", "95 % interval", "GB/s", "occupancy", "speedup")
    return TextTable(head, ablated_rows, range(2, 8))
