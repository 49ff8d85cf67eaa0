"""Sections about the genes: which values work, which genes decide the time, and what two of them do together."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import combinations

from evokern.report.facts import Facts, ValueFacts, pairs, tunability
from evokern.report.html import missing, table
from evokern.report.plots import bars

DECIDING = 8
"""Genes whose values are drawn, those that decide most."""
TOGETHER = 3
"""Genes that are shown in pairs."""


def matrix(facts: Facts) -> str:
    """Which values of which genes work, and how fast the best candidate with each is."""
    best = min((t.evaluation.time_us or 0.0 for t in facts.measured), default=0.0)
    rows = []
    for name, values in tunability(facts).items():
        cells = "".join(_cell(one, best, one.value == facts.best.config.get(name)) for one in values)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return (
        "<p>A cell: the value, how many of the trials with it worked, and how much slower than the fastest trial the "
        "best of them is. The darker, the better; hatched: none worked; ★ marks the champion's choice.</p>"
        f'<div class="wide"><table class="matrix"><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _cell(one: ValueFacts, best: float, chosen: bool) -> str:
    value = f"<b>{escape(str(one.value))}{' ★' if chosen else ''}</b>"
    if not one.tried:
        return f'<td class="dim">{value}<small>not tried</small></td>'
    works = f"{one.worked}/{one.tried} work"
    if one.best_us is None:
        # What worked without a time was stopped by racing, or its time is another trial's.
        return (
            f"<td>{value}<small>{works} · slow</small></td>"
            if one.worked
            else (f'<td class="none">{value}<small>{works}</small></td>')
        )
    more = one.best_us / best - 1
    words = "best" if more < 5e-4 else f"+{_percent(more)}"
    return f'<td style="--heat:{_heat(more):.2f}">{value}<small>{works} · {words}</small></td>'


def _heat(more: float) -> float:
    return max(0.0, 1 - more / 0.6)


def _percent(more: float) -> str:
    return f"{100 * more:.0f} %" if more >= 0.1 else f"{100 * more:.1f} %"


def effects(facts: Facts) -> str:
    """What was learned of the genes, what a model says each value costs, and the genes that decide most in pairs."""
    learned = facts.learned
    said = "".join(_findings(facts))
    if not learned.effects:
        return said + missing(
            f"{learned.timed} timed trials are too few, or too much alike, for a model of the genes' effects."
        )
    order = sorted(learned.effects, key=lambda name: -learned.effects[name].share)
    rows = []
    for name in order[:DECIDING]:
        effect = learned.effects[name]
        low, high = effect.share_ci95
        worst = max(effect.relative, key=lambda value: effect.relative[value])
        rows.append(
            (
                escape(name),
                f"{100 * effect.share:.0f} %",
                f"{100 * low:.0f} to {100 * high:.0f} %",
                escape(str(effect.best)),
                escape(str(worst)),
                f"+{_percent(effect.ratio - 1)}",
                f"{_percent(effect.ratio_ci95[0] - 1)} to {_percent(effect.ratio_ci95[1] - 1)}",
            )
        )
    head = ("gene", "share", "95 % interval", "best value", "worst value", "worst over best", "95 % interval")
    explained = max(learned.explained or 0.0, 0.0)
    drawn = [
        (f"{name}={value}", ratio - 1, f"+{_percent(ratio - 1)}")
        for name in order[:DECIDING]
        for value, ratio in learned.effects[name].relative.items()
    ]
    return (
        f"{said}<h3>What decides the time</h3><p>By a model of {learned.timed} timed trials that explains "
        f"{100 * explained:.0f} % of the variance of trials it has not seen.</p>{table(head, rows, (1, 2, 5, 6))}"
        "<h3>What each value costs</h3><p>Predicted time over that of the gene's best value, everything else alike.</p>"
        + bars("Predicted cost of each value", drawn)
        + _together(facts, order[:TOGETHER])
    )


def _findings(facts: Facts) -> Iterator[str]:
    titles = {"decisive": "Decisive", "locked": "Locked", "barred": "Barred", "dead": "Without effect"}
    rows = [
        (title, escape(finding.text))
        for kind, title in titles.items()
        for finding in facts.learned.having(kind)  # type: ignore[arg-type]
    ]
    rows += [("Never together", escape(failing.text)) for failing in facts.learned.combinations]
    if rows:
        yield "<p>From pairs of trials that differ in one gene, from a model of all, and from what failed:</p>"
        yield table(("", "finding"), rows)


def _together(facts: Facts, names: list[str]) -> str:
    best = min(t.evaluation.time_us or 0.0 for t in facts.measured)
    values = {gene.name: gene.values for gene in facts.record.genes}
    made = []
    for down, across in combinations(names, 2):
        times = pairs(facts, down, across)
        rows = []
        for value in values[down]:
            cells = "".join(_pair(times.get((value, other)), best) for other in values[across])
            rows.append(f'<tr><th scope="row">{escape(str(value))}</th>{cells}</tr>')
        head = "".join(f'<th scope="col">{escape(str(value))}</th>' for value in values[across])
        made.append(
            f"<div><h4>{escape(down)} (down), {escape(across)} (across)</h4>"
            f'<div class="wide"><table class="matrix"><thead><tr><th></th>{head}</tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div></div>"
        )
    if not made:
        return ""
    words = "<p>Time of the fastest trial with both values over that of the fastest trial.</p>"
    return f'<h3>Two genes together</h3>{words}<div class="several">{"".join(made)}</div>'


def _pair(time_us: float | None, best: float) -> str:
    if time_us is None:
        return '<td class="dim"><small>–</small></td>'
    more = time_us / best - 1
    return f'<td style="--heat:{_heat(more):.2f}"><b>+{_percent(more)}</b></td>'
