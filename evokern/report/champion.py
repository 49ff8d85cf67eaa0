"""Sections about the champion: verification and ablation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from evokern.report.facts import Facts
from evokern.report.plots import bars, change, number, percent
from evokern.report.tables import TextTable, clipped, flattened, plain
from evokern.store import OWN_PROBLEM
from evokern.wording import GATE_COUNTS, count_noun, counts, limit_name, microseconds, stage_label

_MARKS = {"passed": "good", "failed": "bad", "skipped": "dim"}
"""CSS class of each verification state."""
_FIGURES = {
    "relative_error": "relative error",
    "tolerance_spent": "root-mean-square error ÷ tolerance",
    "input_sets": "inputs",
    "runs": "runs per input",
}
"""Label of each figure of the correctness gate."""
MAX_REFUTED = 2
"""Maximum number of refuted trials named on the first screen."""
MAX_BRIEF_LENGTH = 170
"""Maximum length of a verification summary on the first screen, in characters."""
MAX_PROBLEMS_NAMED = 2
"""Maximum number of problems named on the first screen."""
MAX_REFUTATION_LENGTH = 100
"""Maximum length of a refutation reason on the first screen, in characters."""


def proof(facts: Facts) -> dict[str, Any]:
    """Return the section with the champion's configuration and its verification results."""
    result = facts.proof.result if facts.proof else {}
    played = result.get("playoff")
    best = facts.best
    return {
        "about": "all choices of the champion, its gate results, and each verification stage"
        f"{', and the playoff' * bool(played)}",
        "trial": best.number if best else None,
        "drawn_by": ", proposed by the control" if best and best.control else "",
        "choices": [
            (gene.name, str(best.config[gene.name]), str(gene.default), gene.doc) for gene in facts.record.genes
        ]
        if best
        else [],
        "gate": [(facts.record.in_words(key, every=True), _gate(found)) for key, found in best.evaluation.gate.items()]
        if best
        else [],
        "asked_again": _verification_margin(facts, result),
        "refuted": [(str(number), why) for number, why in facts.refuted.items()],
        "proof": facts.proof,
        "stages": [
            (_MARKS[stage["state"]], stage["state"], stage_label(name), stage["detail"])
            for name, stage in result.get("stages", {}).items()
        ],
        "playoff": _playoff(played, facts.unit) if played else None,
        "playoff_how": _method(played) if played else "",
    }


def _verification_margin(facts: Facts, result: Mapping[str, Any]) -> str:
    """Return how close the errors came to their limit in the verification's gate, which uses new inputs."""
    stage = result.get("stages", {}).get("gate", {})
    if facts.best is None or facts.proof is None or facts.proof.trial != facts.best.number:
        return ""
    return (
        _largest_error_text(facts, stage["gate"]).removeprefix("; ") if isinstance(stage.get("gate"), Mapping) else ""
    )


def _table(value: object, name: str) -> dict[str, Any]:
    """Return a stored table; an unexpected value from a damaged file is wrapped under the given name."""
    if isinstance(value, Mapping):
        return dict(value)
    return {} if value is None else {name: value}


def _gate(report: object) -> TextTable:
    """Return the gate's results for a problem as labelled rows; unknown entries keep their own names."""
    left = _table(report, "gate")
    checks = _table(left.pop("checks", None), "checks")
    spent = _table(checks.pop("of_tolerance", None), "inputs")
    if left.get("runs") == 1:
        checks.pop("differing_bytes", None)  # a single run cannot differ
    rows = [(words, plain(left.pop(name))) for name, words in _FIGURES.items() if name in left]
    if limit_name(left.get("worst")) == "bound":
        rows = [(words.replace("÷ tolerance", "÷ bound"), value) for words, value in rows]
    limit = limit_name(left.get("worst"))
    rows += [(f"largest error ÷ {limit}, {_words(kind)} inputs", plain(share)) for kind, share in spent.items()]
    rows += [(GATE_COUNTS.get(name, _words(name)), plain(count)) for name, count in checks.items()]
    match left.pop("worst", None):
        case {"output": output, "index": [*index], "got": got, "expected": expected, "allowed": allowed, **more}:
            text = f"{output}[{plain(index)}] is {_exact(got)}, expected {_exact(expected)} within {_exact(allowed)}"
            kind = _words(str(more.get("input_set", "")))
            rows.append((f"element closest to its {limit}", f"{text} ({kind} inputs)"))
    match left.pop("timed_calls", None):
        case {"changed": [*changed], "calls": calls, "kept": kept}:
            text = f"changed in one of {calls} graph calls: {plain(changed) or 'nothing'}; {kept} elements compared"
            rows.append(("changes between timed calls", text))
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
        cells = (one["name"], one["standing"], microseconds(one["time_us"]), f"{one['ratio']:.3f}")
        # A prediction has no samples and therefore no interval and no effect size.
        paired = () if played["predicted"] else (f"{low:.3f} to {high:.3f}", f"{one['cliffs_delta']:+.2f}")
        rows.append((*cells, *paired))
    head = ("", "standing", unit, "÷ champion", "95 % interval", "Cliff's δ")
    return TextTable(head[: 4 if played["predicted"] else 6], rows, range(2, 6))


def proof_card(facts: Facts) -> dict[str, Any]:
    """Return the verification card of the first screen; details are collapsed."""
    found, share = facts.verification, facts.verification.share
    refuted_faster = [
        {
            "trial": trial.number,
            "time": f"{microseconds(trial.evaluation.time_us or 0.0)} {facts.unit}",
            "why": clipped(facts.refuted[trial.number], MAX_REFUTATION_LENGTH),
            "whole": facts.refuted[trial.number],
        }
        for trial in facts.refuted_faster[:MAX_REFUTED]
    ]
    # A refuted trial can be faster than the new champion, which is not verified yet.
    refuted = found.verified is False or (found.verified is None and bool(refuted_faster))
    parts, own = _parts(facts), stage_label(full_size_stage(facts))
    return {
        "kind": "bad" if refuted else "good" if found.verified else "unasked",
        "word": "refuted" if refuted else "verified" if found.verified else "not verified",
        "where": facts.record.problems_in_words(every=True)
        if len(facts.record.problems) <= MAX_PROBLEMS_NAMED
        else f"the study's {len(facts.record.problems)} problems",
        "share": "" if share is None or share >= 1 or not parts else f"{percent(share)} of its blocks ran",
        "reason": "" if found.verified or facts.best is None else found.reason,
        "next": facts.best.number if facts.best and refuted_faster else None,
        "own": next(
            (part["name"] for part in parts if part["name"] == own and part["state"] != "skipped"),
            "",
        ),
        "counts": f"all {count_noun(len(parts), 'stage')} passed"
        if all(part["state"] == "passed" for part in parts)
        else counts(Counter(part["state"] for part in parts)),
        "parts": parts,
        "algebra": "" if facts.best is None else found.algebra,
        "refuted_faster": refuted_faster,
        "more_refuted_faster": max(0, len(facts.refuted_faster) - MAX_REFUTED),
    }


def _parts(facts: Facts) -> list[dict[str, Any]]:
    """Return the verification stages: failures first, then the full-size problem, skipped stages, and the rest."""
    result = facts.own_proof.result if facts.own_proof else {}
    stages: dict[str, Mapping[str, Any]] = dict(result.get("stages", {}))
    parts = []
    for name, stage in stages.items():
        brief, detail = _brief(facts, name, stage, result.get("playoff")), str(stage["detail"])
        problems = [*stage.get("problems", ())] if isinstance(stage.get("problems"), Sequence | Mapping) else []
        parts.append(
            {
                "state": stage["state"],
                "name": stage_label(name),
                "brief": clipped(brief, MAX_BRIEF_LENGTH),
                "detail": detail,
                # The sanitizer's summary repeats the shapes that are listed below it.
                "full": brief if name == "sanitizer" and problems else detail,
                "shapes": [facts.record.in_words(str(one), every=True) for one in (*problems, *stage.get("near", ()))],
            }
        )
    if (
        stages
        and "gate" not in stages
        and facts.best
        and (nearest := _largest_error_text(facts, facts.best.evaluation.gate))
    ):
        brief = f"passed in the search{nearest}"
        parts.append({"state": "passed", "name": "gate", "brief": brief, "detail": brief, "full": brief, "shapes": []})
    own = stage_label(full_size_stage(facts))
    order = {"failed": 0, "skipped": 2}
    return sorted(parts, key=lambda part: order.get(part["state"], 1 if part["name"] == own else 3))


def full_size_stage(facts: Facts) -> str:
    """Return the stage that ran the full-size problems. On a GPU, the gate runs all of their blocks."""
    stages = facts.own_proof.result.get("stages", {}) if facts.own_proof else {}
    return OWN_PROBLEM if OWN_PROBLEM in stages else "gate"


def _brief(facts: Facts, name: str, stage: Mapping[str, Any], played: Mapping[str, Any] | None) -> str:
    """Return a one-line summary of a stage, or the stage's own text if it did not pass."""
    detail, shapes = str(stage["detail"]), stage.get("problems")
    if stage["state"] != "passed":
        return detail
    if name == "gate" and isinstance(stage.get("gate"), Mapping):
        return detail + _largest_error_text(facts, stage["gate"])
    if name == "sanitizer" and isinstance(shapes, list):
        return f"no findings on {count_noun(len(shapes), 'small shape')}"
    if name == OWN_PROBLEM and isinstance(shapes, Mapping) and len(shapes) > 1:
        least = min(shapes, key=lambda one: float(shapes[one][0] / shapes[one][1]))
        blocks, of = shapes[least]
        return f"{detail}; smallest share for {facts.record.in_words(least)}: {blocks:,} of {of:,} blocks ran"
    if name == "fuzz" and "cases" in stage:
        near = f" and {len(stage['near'])} close to the full-size problem" if stage.get("near") else ""
        return (
            f"{count_noun(stage['cases'], 'case')} on {count_noun(stage['problems'], 'small shape')}{near}; none failed"
        )
    if name == "playoff" and played:
        finalists = played["finalists"]
        tied = sum(one["standing"] == "tie" for one in finalists)
        ties = f", {tied} {'ties' if tied == 1 else 'tie'} with it" if tied else ""
        return f"fastest of {count_noun(len(finalists), 'finalist')}{ties}"
    return detail


def _largest_error_text(facts: Facts, gate: Mapping[str, Any]) -> str:
    """Return the gate's largest error relative to its limit as the end of a sentence, or an empty string."""
    checks = {problem: report.get("checks") for problem, report in gate.items() if isinstance(report, Mapping)}
    shares = {problem: found.get("of_tolerance") for problem, found in checks.items() if isinstance(found, Mapping)}
    spent = [
        (share, kind, problem)
        for problem, found in shares.items()
        if isinstance(found, Mapping)
        for kind, share in found.items()
        if isinstance(share, float | int) and math.isfinite(share)
    ]
    if not spent:
        return ""
    share, kind, problem = max(spent)
    report = gate[problem]
    limit = "its bound" if limit_name(report.get("worst")) == "bound" else "the tolerance"
    return f"; at most {percent(share)} of {limit} ({_words(kind)} inputs at {facts.record.in_words(problem)})"


def ablation(facts: Facts) -> dict[str, Any]:
    """Return the section on the effect of reverting each of the champion's choices."""
    about = "effect of reverting each of the champion's choices"
    if facts.ablation is None:
        return {"about": f"{about}: not measured yet", "proof": None}
    found = facts.ablation.result
    way = found.get("path", ())
    about += ", and the steps from the default to the champion" if way else ""
    costs = [
        (_change(row), max(row["ratio"] - 1, 0.0), change(row["ratio"])) for row in found["alone"] if row["time_us"]
    ]
    rows = sorted(found["alone"], key=lambda row: not row["time_us"])  # rows without a time last
    alone = _ablated([found["champion"], *rows], "the champion", facts.unit)
    path = _ablated(way, "the default", facts.unit)
    return {
        "about": about,
        "proof": facts.ablation,
        "costs": bars("Cost of reverting each choice", costs),
        "tables": [
            ("Each choice reverted alone", alone),
            ("From the default to the champion, one change at a time", path),
        ],
    }


def _change(row: Mapping[str, Any]) -> str:
    return f"{row['gene']}={row['value']}"


def _ablated(rows: Sequence[Mapping[str, Any]], first: str, unit: str) -> TextTable:
    """Return the table of an ablation.

    Args:
        rows: Measured rows.
        first: Name of the first row, which changes no gene.
        unit: Unit of the times.
    """
    ablated_rows = [
        (
            _change(row) if row["gene"] else first if place == 0 else "all other changes together",
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
    head = ("choice", "", unit, "÷ champion", "95 % interval", "GB/s", "occupancy", "speedup")
    columns = [column for column in range(8) if column < 4 or any(row[column] != "–" for row in ablated_rows)]
    kept = [tuple(row[column] for column in columns) for row in ablated_rows]
    return TextTable([head[column] for column in columns], kept, range(2, len(columns)))
