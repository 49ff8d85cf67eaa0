"""Sections about the champion: headline, proof, and why it wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evokern.report.facts import Facts
from evokern.report.plots import bars, number
from evokern.report.tables import TextTable, flattened, plain
from evokern.wording import microseconds

_MARKS = {"passed": "good", "failed": "bad", "skipped": "dim"}
"""State of a stage of a verification → class of its colour."""
_FIGURES = {
    "relative_error": "relative error",
    "tolerance_spent": "share of the tolerance that is spent",
    "input_sets": "inputs",
    "runs": "runs on each",
}
"""Figure of the gate → words."""
_CHECKS = {
    "guard_bytes": "bytes changed outside the buffers",
    "input_words": "words changed in inputs",
    "bad_elements": "elements beyond the tolerance",
    "differing_bytes": "bytes that differ between runs",
}
"""Check of the gate → words of what it counts."""


def proof(facts: Facts) -> dict[str, Any]:
    """Return the champion's configuration, and what verification found."""
    result = facts.proof.result if facts.proof else {}
    played = result.get("playoff")
    best = facts.best
    return {
        "about": "every choice of the champion, the gate's figures, each stage of the verification, the playoff",
        "trial": best.number if best else None,
        "drawn_by": ", drawn by the control" if best and best.control else "",
        "choices": [
            (gene.name, str(best.config[gene.name]), str(gene.default), gene.doc) for gene in facts.record.genes
        ]
        if best
        else [],
        "gate": [(problem, _gate(report)) for problem, report in best.evaluation.gate.items()] if best else [],
        "refuted": [(str(number), why) for number, why in facts.refuted.items()],
        "proof": facts.proof,
        "stages": [
            (_MARKS[stage["state"]], stage["state"], name, stage["detail"])
            for name, stage in result.get("stages", {}).items()
        ],
        "playoff": _playoff(played, facts.unit) if played else None,
        "playoff_how": _method(played) if played else "",
    }


def _table(value: object, name: str) -> dict[str, Any]:
    """Return a stored table, or what a damaged file has in its place under a name."""
    if isinstance(value, Mapping):
        return dict(value)
    return {} if value is None else {name: value}


def _gate(report: object) -> TextTable:
    """Return what the gate found at a problem, in words; what this version has no words for under its own name."""
    left = _table(report, "gate")
    checks = _table(left.pop("checks", None), "checks")
    spent = _table(checks.pop("of_tolerance", None), "inputs")
    rows = [(words, plain(left.pop(name))) for name, words in _FIGURES.items() if name in left]
    rows += [(f"largest error ÷ tolerance, inputs {_words(kind)}", plain(share)) for kind, share in spent.items()]
    rows += [(_CHECKS.get(name, _words(name)), plain(count)) for name, count in checks.items()]
    match left.pop("worst", None):
        case {"output": output, "index": [*index], "got": got, "expected": expected, "allowed": allowed, **more}:
            told = f"{output}[{plain(index)}] is {_exact(got)}, expected {_exact(expected)} within {_exact(allowed)}"
            kind = _words(str(more.get("input_set", "")))
            rows.append(("the element nearest its tolerance", f"{told}, inputs {kind}"))
    match left.pop("timed_calls", None):
        case {"changed": [*changed], "calls": calls, "kept": kept}:
            told = f"{plain(changed) or 'nothing'} around one of {calls} calls of a graph, {kept} elements compared"
            rows.append(("changed between timed calls", told))
    return TextTable(("", ""), [*rows, *flattened(left).rows])


def _exact(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else plain(value)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _method(played: Mapping[str, Any]) -> str:
    return "predicted times" if played["predicted"] else f"{played['rounds']} rounds, error budget {played['level']:g}"


def _playoff(played: Mapping[str, Any], unit: str) -> TextTable:
    rows = []
    for one in played["finalists"]:
        low, high = one["ratio_ci95"]
        told = (one["name"], one["standing"], microseconds(one["time_us"]), f"{one['ratio']:.3f}")
        # A prediction has no samples, so neither an interval nor an effect size.
        paired = () if played["predicted"] else (f"{low:.3f} to {high:.3f}", f"{one['cliffs_delta']:+.2f}")
        rows.append((*told, *paired))
    head = ("", "standing", unit, "of champion", "95 % interval", "Cliff's δ")
    return TextTable(head[: 4 if played["predicted"] else 6], rows, range(2, 6))


def ablation(facts: Facts) -> dict[str, Any]:
    """Return what became of each choice of the champion taken back."""
    about = "each of the champion's choices taken back at the default, and the way from the default to it"
    if facts.ablation is None:
        return {"about": f"{about}: not asked for yet", "proof": None}
    found = facts.ablation.result
    costs = [
        (_change(row), max(row["ratio"] - 1, 0.0), f"{100 * (row['ratio'] - 1):+.1f} %")
        for row in found["alone"]
        if row["time_us"]
    ]
    alone = _ablated([found["champion"], *found["alone"]], "the champion", facts.unit)
    path = _ablated(found["path"], "the default", facts.unit)
    return {
        "about": about,
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
