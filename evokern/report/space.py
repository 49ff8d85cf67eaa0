"""Sections about the search: convergence, outcomes, which values of which genes work.

Each takes the facts and returns HTML, or says what is missing and how to get it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from evokern.report.facts import Facts, ValueFacts, pairs, progress, reasons, spread, tunability
from evokern.report.html import missing, table
from evokern.report.plots import Axis, Plot, bars, number, span
from evokern.trial import Trial


def convergence(facts: Facts) -> str:
    """The best so far, over trials and over time, beside the baseline and other samplers' studies."""
    lines = {facts.record.sampler: facts.trials, **facts.controls}
    curves = {label: progress(trials) for label, trials in lines.items()}
    evaluated, count = [], 0
    for trial in facts.trials:
        count += trial.outcome.evaluated
        if trial in facts.measured and trial.evaluation.time_us:
            evaluated.append((count, trial.seconds, trial.evaluation.time_us, trial.number))
    times = [t for _, _, t, _ in evaluated] + [t for curve in curves.values() for _, _, t in curve]
    times += [facts.baseline[1]] if facts.baseline else []
    ceiling = min(max(times), 6 * min(times))
    low, high = span([min(times), ceiling], log=True)
    most = max([sum(t.outcome.evaluated for t in trials) for trials in lines.values()] + [2])
    longest = max([trials[-1].seconds for trials in lines.values() if trials] + [1.0])
    made = []
    for which, axis in ((0, Axis("evaluated trials", 0, most)), (1, Axis("minutes of study", 0, longest / 60))):
        plot = Plot(f"Best time so far over {axis.label}", axis, Axis(facts.unit, low, high, log=True))
        scale = 1.0 if which == 0 else 1 / 60
        plot.points(
            [(p[which] * scale, p[2], f"trial {p[3]}: {number(p[2])} {facts.unit}") for p in evaluated if p[2] <= high],
            "dot",
            2.2,
        )
        for place, (label, curve) in enumerate(curves.items()):
            kind = "own" if place == 0 else f"control{place}"
            plot.steps([(point[which] * scale, point[2]) for point in curve], kind)
            plot.name(kind, f"best so far, {label}")
        if facts.baseline and low <= facts.baseline[1] <= high:
            plot.level(facts.baseline[1], f"baseline {facts.baseline[0]}", "base")
        made.append(plot.svg())
    note = (
        ""
        if facts.controls
        else missing(
            "No control: a study of the same problem with <code>--sampler random</code>"
            " in the same database would be drawn beside."
        )
    )
    return "".join(made) + note


def outcomes(facts: Facts) -> str:
    """How trials ended, why they failed, and what was turned away before."""
    counts: dict[str, int] = {}
    for trial in facts.trials:
        counts[trial.outcome.value] = counts.get(trial.outcome.value, 0) + 1
    rows = sorted(counts.items(), key=lambda pair: -pair[1])
    good = {"measured", "duplicate", "slow"}
    made = bars(
        "Trials by outcome",
        [(name, float(n), str(n)) for name, n in rows],
        lambda name: "own" if name in good else "fault",
    )
    told = [(escape(outcome), escape(reason), str(count)) for outcome, reason, count in reasons(facts)]
    if told:
        made += "<h3>Commonest reasons (numbers as #)</h3>" + table(("outcome", "reason", "trials"), told, numeric=1)
    if facts.rejections:
        listed = [(name, float(count), f"{count:,}") for name, count in list(facts.rejections.items())[:15]]
        made += "<h3>Proposals turned away before a compile</h3>" + bars(
            "Proposals turned away by constraint", listed, lambda name: "dimmed"
        )
    return made


def elites(facts: Facts, most: int = 15) -> str:
    """The fastest trials, with what distinguishes them from the default."""
    ordered: list[Trial] = sorted(facts.measured, key=lambda t: (t.evaluation.time_us or 0.0, t.number))
    rows = []
    for trial in ordered[:most]:
        changed = [f"{g.name}={trial.config[g.name]}" for g in facts.record.genes if trial.config[g.name] != g.default]
        used = trial.evaluation.resources
        rows.append(
            (
                str(trial.number),
                number(trial.evaluation.time_us or 0.0),
                f"{facts.baseline[1] / (trial.evaluation.time_us or 1.0):.2f}×" if facts.baseline else "–",
                str(max((r.registers for r in used), default=0)),
                f"{100 * min((r.occupancy for r in used), default=0):.0f} %",
                escape(" ".join(changed) or "the default candidate"),
            )
        )
    return table(("trial", facts.unit, "speedup", "registers", "occupancy", "changed genes"), rows)


def matrix(facts: Facts) -> str:
    """Which values of which genes work, and how fast the best candidate with each is."""
    best = min((t.evaluation.time_us or 0.0 for t in facts.measured), default=0.0)
    rows = []
    for name, values in tunability(facts).items():
        cells = "".join(_cell(one, best, one.value == facts.best.config.get(name)) for one in values)
        rows.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    return (
        "<p>A cell: the value, how many of the trials with it worked, and how much slower than the champion the best "
        "of them is. The darker, the better; ★ marks the champion's choice.</p>"
        f'<div class="wide" tabindex="0"><table class="matrix"><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _cell(one: ValueFacts, best: float, chosen: bool) -> str:
    star = " ★" if chosen else ""
    if not one.tried:
        return f'<td class="dim"><b>{escape(str(one.value))}{star}</b><small>not tried</small></td>'
    if one.best_us is None:
        return (
            f'<td class="none"><b>{escape(str(one.value))}{star}</b><small>{one.worked}/{one.tried} work</small></td>'
        )
    more = one.best_us / best - 1
    heat = max(0.0, 1 - more / 0.6)
    words = "best" if more < 5e-4 else f"+{100 * more:.0f} %" if more >= 0.1 else f"+{100 * more:.1f} %"
    return (
        f'<td style="--heat:{heat:.2f}"><b>{escape(str(one.value))}{star}</b>'
        f"<small>{one.worked}/{one.tried} work · {words}</small></td>"
    )


def effects(facts: Facts) -> str:
    """The best and the median time at each value, genes that seem to matter most first; and two of them together."""
    found = tunability(facts)
    order = sorted(found, key=lambda name: -spread(found[name]))
    shown = [name for name in order if spread(found[name]) > 1][:8]
    if not shown:
        return missing("Too few measured trials to compare the values of any gene.")
    best = min(t.evaluation.time_us or 0.0 for t in facts.measured)
    rows = [
        (f"{name}={one.value}", one.best_us / best - 1, f"+{100 * (one.best_us / best - 1):.1f} %")
        for name in shown
        for one in found[name]
        if one.best_us
    ]
    made = "<p>Best time with each value against the champion's, among the trials of this search.</p>"
    made += bars("Best time at each value of a gene", rows)
    return made + _interaction(facts, shown, best)


def _interaction(facts: Facts, shown: Sequence[str], best: float) -> str:
    if len(shown) < 2:
        return ""
    one, two = shown[:2]
    times = pairs(facts, one, two)
    across = [v for v in facts.record.genes if v.name == two][0].values  # noqa: RUF015 (names are unique)
    down = [v for v in facts.record.genes if v.name == one][0].values  # noqa: RUF015
    rows = []
    for value in down:
        cells = []
        for other in across:
            time_us = times.get((value, other))
            if time_us is None:
                cells.append('<td class="dim"><small>–</small></td>')
            else:
                more = time_us / best - 1
                cells.append(f'<td style="--heat:{max(0.0, 1 - more / 0.6):.2f}"><b>+{100 * more:.0f} %</b></td>')
        rows.append(f"<tr><th>{escape(str(value))}</th>{''.join(cells)}</tr>")
    head = "".join(f"<th>{escape(str(value))}</th>" for value in across)
    return (
        f"<h3>{escape(one)} (down) and {escape(two)} (across) together</h3>"
        f'<div class="wide" tabindex="0"><table class="matrix"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
