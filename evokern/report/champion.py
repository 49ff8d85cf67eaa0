"""Sections about the champion: headline, proof, and why it wins.

Each takes the facts and returns HTML, or says what is missing and how to get it.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from evokern.explain.worth import price
from evokern.report.facts import Facts
from evokern.report.html import missing, nested, table
from evokern.report.plots import bars, microseconds, number
from evokern.store import interval_us

_MARKS = {"passed": "good", "failed": "bad", "skipped": "dim"}


def headline(facts: Facts) -> str:
    """The champion in a few large numbers."""
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
    told = "".join(
        f"<li><b>{escape(a)}</b><span>{escape(b)}</span><small>{escape(c)}</small></li>" for a, b, c in tiles
    )
    return f'<ul class="tiles">{told}</ul>'


def _sessions(count: int) -> str:
    return "one session" if count == 1 else f"{count} sessions"


def proof(facts: Facts) -> str:
    """Configuration of the champion, and what verification found."""
    best = facts.best
    drawn = ", drawn by the control" if best.control else ""
    parts = [f"<p>Trial {best.number}{drawn}. Choices that differ from the default candidate are marked.</p>"]
    parts.append(_choices(facts))
    gate = {**best.evaluation.gate}
    if gate:
        parts.append(f"<h3>Correctness gate</h3>{nested(gate)}")
    if facts.proof is None:
        parts.append(
            missing(
                "Not verified yet: <code>evokern verify --fuzz 5m</code> adds gate at full strength, "
                "sanitizer, playoff and fuzzing."
            )
        )
        return "".join(parts)
    result = facts.proof.result
    stages = [
        (
            f'<span class="{_MARKS[stage["state"]]}">{escape(stage["state"])}</span>',
            escape(name),
            escape(stage["detail"]),
        )
        for name, stage in result["stages"].items()
    ]
    parts.append(f"<h3>Verification of trial {facts.proof.trial}, {escape(facts.proof.created)}</h3>")
    parts.append(table(("", "part", "found"), stages))
    if result.get("playoff"):
        parts.append(_playoff(result["playoff"], facts.unit))
    return "".join(parts)


def _choices(facts: Facts) -> str:
    rows = []
    for gene in facts.record.genes:
        value, default = str(facts.best.config[gene.name]), str(gene.default)
        chosen = f"<mark>{escape(value)}</mark>" if value != default else escape(value)
        rows.append((escape(gene.name), chosen, escape(default), escape(gene.doc)))
    return table(("gene", "champion", "default", "what it decides"), rows)


def _playoff(played: Mapping[str, Any], unit: str) -> str:
    rows = []
    for one in played["finalists"]:
        low, high = one["ratio_ci95"]
        between = "–" if played["predicted"] else f"{low:.3f} to {high:.3f}"
        rows.append(
            (
                escape(one["name"]),
                escape(one["standing"]),
                microseconds(one["time_us"]),
                f"{one['ratio']:.3f}",
                between,
                f"{one['cliffs_delta']:+.2f}",
            )
        )
    how = "predicted times" if played["predicted"] else f"{played['rounds']} rounds, error budget {played['level']:g}"
    head = ("", "standing", unit, "of champion", "95 % interval", "Cliff's δ")
    return f"<h3>Playoff ({how})</h3>" + table(head, rows, range(2, 6))


def ablation(facts: Facts) -> str:
    """Each choice of the champion taken back."""
    if facts.ablation is None:
        return missing("Not taken apart yet: <code>evokern ablate</code> measures each choice back at the default.")
    found = facts.ablation.result
    timed = [row for row in found["alone"] if row["time_us"]]
    made = bars(
        "Cost of taking each choice back",
        [
            (f"{row['gene']}={row['value']}", max(row["ratio"] - 1, 0.0), f"{100 * (row['ratio'] - 1):+.1f} %")
            for row in timed
        ],
    )
    for title, rows, unnamed in (
        ("Each choice back at the default, alone", [found["champion"], *found["alone"]], "the champion"),
        ("From the default to the champion, a change at a time", found["path"], "the default"),
    ):
        told = []
        for place, row in enumerate(rows):
            name = f"{row['gene']}={row['value']}" if row["gene"] else unnamed if place == 0 else "all others together"
            between = f"{row['ratio_ci95'][0]:.3f} to {row['ratio_ci95'][1]:.3f}" if row["ratio_ci95"] else "–"
            told.append(
                (
                    escape(name),
                    escape(row["note"]),
                    microseconds(row["time_us"]) if row["time_us"] else "–",
                    f"{row['ratio']:.3f}" if row["ratio"] else "–",
                    between,
                    number(row["gb_per_s"]) if row["gb_per_s"] else "–",
                    f"{100 * row['occupancy']:.0f} %" if row["occupancy"] is not None else "–",
                    f"{row['speedup']:.2f}×" if row["speedup"] else "–",
                )
            )
        if told:
            head = ("choice", "", facts.unit, "of champion", "95 % interval", "GB/s", "occupancy", "speedup")
            made += f"<h3>{title}</h3>" + table(head, told, range(2, 8))
    return f"<p>Trial {facts.ablation.trial}, {escape(facts.ablation.created)}.</p>" + made
