"""Sections about the genes: results of each value, effects on the time, and pairs of genes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from evokern.analysis.genes.gene_report import is_decisive
from evokern.declaration.genes import Value
from evokern.report.advice import steps
from evokern.report.facts import Facts
from evokern.report.gene_values import GeneValues, genes_with_ablation_cost, important_genes, link_to, ordered
from evokern.report.plots import bars
from evokern.report.search_sections import slow_meaning
from evokern.report.tables import Cell, TextTable
from evokern.report.trial_counts import ValueFacts, pairs
from evokern.wording import count_noun

DECIDING = 8
"""Number of most important genes whose values are shown."""
PAIRED = 3
"""Number of genes whose pairs are shown."""


def linked(facts: Facts) -> dict[str, Any]:
    """Return the section with the linked gene plots; the page's script draws the plots."""
    return {
        "about": "parallel coordinates of the most important genes, and time against any gene; click to open a trial"
    }


def matrix(facts: Facts) -> dict[str, Any]:
    """Return the section with the results of each gene value, the next steps, and a matrix shaded by time."""
    eligible = (t for t in facts.measured if t.number not in facts.refuted)
    best = min((t.evaluation.time_us or 0.0 for t in eligible), default=0.0)
    chosen = facts.best.config if facts.best else {}
    by_value = GeneValues(facts)
    return {
        "about": "trials with each value, the best of them, failure reasons, and next steps",
        "next": steps(facts, by_value),
        "lines": by_value.genes(),
        "never": by_value.never_timed(),
        "untried": by_value.never_tried(),
        "slow": slow_meaning(facts),
        "unit": facts.unit,
        "genes": [
            (
                name,
                [
                    replace(_cell(one, best, one.value == chosen.get(name)), link=_link(name, one), tip=_counted(one))
                    for one in _by_size(values)
                ],
            )
            for name, values in facts.values.items()
        ],
    }


def _by_size(values: Sequence[ValueFacts]) -> list[ValueFacts]:
    places = {value: place for place, value in enumerate(ordered(one.value for one in values))}
    return sorted(values, key=lambda one: places[one.value])


def _counted(one: ValueFacts) -> str:
    """Return the number of trials that a cell represents, and their results."""
    unchecked = f", {one.unchecked} screened out, not checked" if one.unchecked else ""
    right = f"{one.right} of {one.tried} checked trials were correct"
    return f"{count_noun(one.tried + one.unchecked, 'trial')}: {right}{unchecked}"


def _link(name: str, one: ValueFacts) -> str:
    """Return the URL fragment for the trials with a value; empty if there are none."""
    return link_to(name, one.value) if one.tried or one.unchecked else ""


def _cell(one: ValueFacts, best: float, chosen: bool) -> Cell:
    value = f"{one.value}{' ★' if chosen else ''}"
    if not one.tried:
        return Cell(value, "screened out, not checked" if one.unchecked else "not tried", "dim")
    right = f"{one.right}/{one.tried} correct"
    known = one.best_us if one.seen_us is None else one.seen_us
    if known is None or not best:
        # A correct trial without a time is a duplicate program, or was stopped before its first sample.
        return Cell(value, f"{right} · no time" if one.right else right, "" if one.right else "none")
    more = known / best - 1
    words = "best" if more < 5e-4 else f"+{_percent(more)}{' (slow)' * (one.seen_us is not None)}"
    return Cell(value, f"{right} · {words}", heat=_heat(more))


def _heat(more: float) -> str:
    return f"{max(0.0, 1 - more / 0.6):.2f}"


def _percent(more: float) -> str:
    return f"{100 * more:.0f} %" if more >= 0.1 else f"{100 * more:.1f} %"


def effects(facts: Facts) -> dict[str, Any]:
    """Return the section with the findings, the predicted cost of each value, and pairs of the most important genes."""
    learned = facts.learned
    order = sorted(learned.effects, key=lambda name: -learned.effects[name].share)
    # For the other genes, the model does not know whether they matter or which value is best.
    sure = [name for name in order if is_decisive(learned.effects[name])]
    unsure = len(order) - len(sure) if sure else 0
    order = sure or order
    rows = []
    for name in order[:DECIDING]:
        effect = learned.effects[name]
        low, high = effect.share_ci95
        worst = max(effect.relative, key=lambda value: effect.relative[value])
        rows.append(
            (
                name,
                f"{100 * effect.share:.0f} %",
                f"{100 * low:.0f} to {100 * high:.0f} %",
                _value(effect.best, learned.partial.get(name, ())),
                _value(worst, learned.partial.get(name, ())),
                f"+{_percent(effect.ratio - 1)}",
                f"{_percent(effect.ratio_ci95[0] - 1)} to {_percent(effect.ratio_ci95[1] - 1)}",
            )
        )
    decided = ", ".join([name for name in important_genes(facts) if is_decisive(learned.effects[name])][:PAIRED])
    explained = f"{100 * max(learned.explained or 0.0, 0.0):.0f} %"
    model = "a model of all trials" if learned.trusted else f"a weak model (explains {explained}), only a hint"
    head = ("gene", "share", "95 % interval", "best value", "worst value", "worst ÷ best", "95 % interval")
    paired = _pair_matrices(facts, order[:PAIRED]) if facts.measured else []
    costs = [
        (f"{name}={_value(value, learned.partial.get(name, ()))}", ratio - 1, f"+{_percent(ratio - 1)}")
        for name in order[:DECIDING]
        for value, ratio in learned.effects[name].relative.items()
    ]
    return {
        "about": f"{decided} matter{'s' * (', ' not in decided)} most, by {model}; findings, cost of each value"
        f"{', pairs of genes' * bool(paired)}"
        if decided
        else "findings from pairs of trials and from failures",
        "findings": _findings(facts),
        "timed": learned.timed,
        "slow": learned.slow,
        "explained": explained,
        "weak": not learned.trusted,
        "unsure": count_noun(unsure, "more gene") if unsure else "",
        "ablated": ", ".join(genes_with_ablation_cost(facts)[:PAIRED]),
        "effects": TextTable(head, rows, (1, 2, 5, 6)),
        "costs": bars("Predicted cost of each value", costs),
        "pairs": paired,
    }


def _value(value: Value, partial: Sequence[Value]) -> str:
    return f"{value} (slow only)" if value in partial else str(value)


def _findings(facts: Facts) -> TextTable:
    # A few pairs with equal code do not outweigh a difference that an ablation measured.
    doubted = set(genes_with_ablation_cost(facts))
    titles = {"decisive": "Decisive", "locked": "Locked", "barred": "Barred", "dead": "No effect"}
    rows = [
        (title, finding.text)
        for kind, title in titles.items()
        for finding in facts.learned.findings_of(kind)  # type: ignore[arg-type]
        if kind != "dead" or finding.gene not in doubted
    ]
    rows += [("Never together", failing.text) for failing in facts.learned.combinations]
    return TextTable(("", "finding"), rows)


def _pair_matrices(facts: Facts, names: list[str]) -> list[dict[str, Any]]:
    """Return the matrix of best times for each pair of genes."""
    best = min(t.evaluation.time_us or 0.0 for t in facts.measured)
    values = {gene.name: gene.values for gene in facts.record.genes}
    made = []
    for down, across in combinations(names, 2):
        times = pairs(facts.measured, down, across)
        rows = [(value, [_pair(times.get((value, other)), best) for other in values[across]]) for value in values[down]]
        made.append({"down": down, "across": across, "columns": values[across], "rows": rows})
    return made


def _pair(time_us: float | None, best: float) -> Cell:
    if time_us is None:
        return Cell(note="–", kind="dim")
    more = time_us / best - 1
    return Cell(f"+{_percent(more)}", heat=_heat(more))
