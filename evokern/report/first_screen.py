"""First screen of the report: the best variant, its speed and verification, progress, and important genes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evokern.analysis.control_verdict import TIE, cost_text
from evokern.declaration.genes import Gene, Value
from evokern.declaration.space import Space
from evokern.measurement.grid import grid_facts
from evokern.report.advice import changed_genes, faster_without, short_advice, simpler_candidate, steps
from evokern.report.champion import proof_card
from evokern.report.facts import Facts
from evokern.report.gene_values import GeneValues, genes_with_ablation_cost, important_genes
from evokern.report.plots import IntervalBar, change, interval_bars, interval_text, percent
from evokern.report.search_sections import convergence_plot, progress_text, slow_trials
from evokern.report.trial_counts import ValueFacts
from evokern.store import StudyRecord, interval_us
from evokern.study.trial import Outcome, Timing
from evokern.wording import (
    count_noun,
    duration,
    head_to_head_text,
    mean_suffix,
    microseconds,
    missing_baseline_text,
)

CHOICES = 7
"""Number of choices shown before the rest is collapsed."""
GENES = 3
"""Number of genes shown with their effect on the time."""
VALUES = 4
"""Number of fastest values shown per gene, in addition to the champion's."""
UNGUIDED = ("random", "grid")
"""Samplers that do not learn from results, for which a random control is pointless."""


def first_screen(facts: Facts, *, curve: bool = True) -> dict[str, Any]:
    """Return the data of the first screen.

    Args:
        facts: Facts about the study.
        curve: Whether to include the convergence plot; False for updates of a page that already has it.
    """
    values = GeneValues(facts)
    return {
        "about": _about(facts),
        "variant": _variant(facts),
        "speed": _speed(facts),
        "proof": proof_card(facts),
        "curve": convergence_plot(facts, over_time=False, width=760, height=250) if curve else None,
        "verdict": facts.verdict,
        "ended": facts.ended,
        "uncontrolled": facts.record.sampler not in UNGUIDED,
        "control": _control(facts),
        "slow": slow_trials(facts),
        "progress": progress_text(facts),
        "next": short_advice(steps(facts, values)),
        "decides": _decides(facts, values),
    }


def _about(facts: Facts) -> list[tuple[str, str]]:
    """Return the parts of the study's description, each with its tooltip."""
    record = facts.record
    spent = sum(session.elapsed_s for session in facts.sessions)
    sessions = f", {len(facts.sessions)} sessions" if len(facts.sessions) > 1 else ""
    parts = [
        (f"kernel {record.kernel}", ""),
        *((f"at {record.in_words(one)}", _meant(record, one)) for one in record.problems),
        (f"on {record.device}", ""),
        (f"{count_noun(len(facts.trials), 'trial')} in {duration(spent)}{sessions}", ""),
    ]
    cost = record.cost(spent)
    return [*parts, *([(cost_text(cost), "")] if cost else [])]


def _meant(record: StudyRecord, problem: str) -> str:
    """Return all fields of a problem with their meanings, such as `S=512 (sequence length)`."""
    return ", ".join(f"{name}={value}{f' ({doc})' if doc else ''}" for name, value, doc in record.meanings(problem))


def _variant(facts: Facts) -> dict[str, Any]:
    """Return the champion's choices that differ from the default, largest gain first."""
    best = facts.best
    if best is None:
        return {"trial": None}
    worth = _choice_gains(facts)
    effects = facts.learned.effects
    changed = changed_genes(facts)
    changed.sort(
        key=lambda gene: (
            -worth[gene.name][0] if gene.name in worth else 0.0,
            -(effects[gene.name].share if gene.name in effects else 0.0),
        )
    )
    faster = {row["gene"] for row in faster_without(facts)} if worth else set()
    rows = [
        {
            "gene": gene.name,
            "faster": gene.name in faster,
            "value": str(best.config[gene.name]),
            "default": str(gene.default),
            "worth": worth.get(gene.name, (0.0, ""))[1],
            "doc": gene.doc,
        }
        for gene in changed
    ]
    # Never collapse a choice that makes the champion slower, although its gain is the smallest.
    kept = [row for row in rows if row["faster"]]
    shown = [*[row for row in rows if not row["faster"]][: max(0, CHOICES - len(kept))], *kept]
    return {
        "trial": best.number,
        "drawn_by": ", proposed by the control" if best.control else "",
        "shown": shown,
        "more": [row for row in rows if row not in shown],
        "same": len(facts.record.genes) - len(changed),
        "faster": simpler.words if worth and (simpler := simpler_candidate(facts)) else "",
        "ablated": bool(worth),
    }


def _choice_gains(facts: Facts) -> dict[str, tuple[float, str]]:
    """Return the gain of each choice in the latest ablation: the champion's slowdown without that choice."""
    if facts.ablation is None or facts.best is None or facts.ablation.trial != facts.best.number:
        return {}
    found: dict[str, tuple[float, str]] = {}
    for row in facts.ablation.result["alone"]:
        if not row["gene"]:
            continue
        if not row["time_us"]:
            # Rows without a time have an unknown gain. Sort them last and show only the constraint's name.
            found[row["gene"]] = 0.0, f"without it {': '.join(row['note'].split(': ')[:2]) or 'no time'}"
            continue
        text = change(row["ratio"])
        if row["ratio_ci95"] and not facts.record.predicted:
            low, high = (100 * (end - 1) for end in row["ratio_ci95"])
            text += f" [{low:+.1f}, {high:+.1f}]"
        found[row["gene"]] = row["ratio"], text
    return found


def _speed(facts: Facts) -> dict[str, Any]:
    """Return the champion's time and the times for comparison, as bars with intervals."""
    best, baseline = facts.best, facts.baseline
    if best is None or not best.evaluation.time_us:
        return {"time": ""}
    time_us = best.evaluation.time_us
    ratio = facts.in_turn["ratio"] if facts.in_turn else baseline[1] / time_us if baseline else None
    interval = None if facts.record.predicted else interval_us(best.evaluation)
    bars: list[tuple[str, str, float, tuple[float, float] | None]] = [("champion", "own", time_us, interval)]
    default = _default_us(facts) if best.config != Space(facts.record.genes).default() else None
    if default:
        bars.append(("default candidate", "dimmed", default, None))
    timing = facts.baseline_timing
    if baseline:
        # With several problems, the baseline's time is a geometric mean. The interval of one problem does not apply.
        single = timing if timing and len(facts.record.problems) == 1 else None
        bars.append((baseline[0], "base", baseline[1], single.ci95_us if single else None))
        bars += [(name, "dimmed", us, None) for name, us in facts.baselines.items() if name != baseline[0]]
    if facts.control and (drawn := facts.control["arms"][1]["best_us"]):
        bars.append((f"best of the control ({facts.control['arms'][1]['sampler']})", "control", drawn, None))
    if facts.limit:
        bars.append(("roofline bound", "limit", facts.limit.time_us, None))
    return {
        "time": microseconds(time_us),
        "unit": facts.unit,
        "mean": mean_suffix(len(facts.record.problems)),
        "interval": interval_text(*interval) if interval else "",
        "predicted": facts.record.predicted,
        "speedup": f"{ratio:.2f}×" if ratio else "",
        "slower": ratio is not None and ratio < 1,
        "speedup_interval": _interval_in_turn(facts.in_turn)
        if facts.in_turn
        else _ratio_interval(interval, timing if baseline else None, len(facts.record.problems)),
        "baseline": facts.in_turn["baseline"]["name"] if facts.in_turn else baseline[0] if baseline else "",
        "playoff": best.evaluation.evidence.get("time_from") == "playoff",
        "over_default": f"{default / time_us:.2f}×" if default else "",
        "limit": f"{percent(facts.limit.share)} of the roofline bound, set by {facts.limit.setter}"
        if facts.limit
        else "",
        "no_baseline": missing_baseline_text(facts.rejected_baselines),
        "grid": grid_facts(best.evaluation.resources, facts.limit.share if facts.limit else None)["note"],
        "near": _ties_text(facts),
        "bound": str(best.evaluation.evidence.get("bound", "")),
        "bars": interval_bars(bars, facts.unit),
    }


def _interval_in_turn(found: Mapping[str, Any]) -> str:
    """Return the interval of a head-to-head ratio, and both times."""
    low, high = found["ratio_ci95"]
    return f"{low:.2f} to {high:.2f}, {head_to_head_text(found['time_us'], found['baseline']['time_us'])}"


def _ties_text(facts: Facts) -> str:
    """Return the number of trials that tie with the champion as text, or an empty string if there are none.

    The comparison uses search times, even if the champion has a playoff time.
    """
    if facts.best is None:
        return ""
    time_us, apart_from = facts.champion_search_us, {facts.best.number, *facts.refuted}
    others = [trial for trial in facts.measured if trial.number not in apart_from]
    count = sum(time_us / (1 + TIE) <= (t.evaluation.time_us or 0.0) <= time_us * (1 + TIE) for t in others)
    return f"{count_noun(count, 'other trial')} within {100 * TIE:.0f} % of this time" if count else ""


def _default_us(facts: Facts) -> float | None:
    """Return the time of the default candidate, or None if it was not timed."""
    config = Space(facts.record.genes).default()
    return next((t.evaluation.time_us for t in facts.measured if t.config == config), None)


def _control(facts: Facts) -> str:
    """Return the number of timed control trials, and the time of the default candidate."""
    if facts.control is None:
        return ""
    drawn = facts.control["arms"][1]
    timed = sum(trial.outcome is Outcome.MEASURED for trial in list(facts.curves.values())[1])
    default = _default_us(facts)
    alone = f"; the default candidate (no search needed) takes {microseconds(default)} {facts.unit}" if default else ""
    was = "was" if timed == 1 else "were"
    return f"{timed} of {count_noun(drawn['trials'], f'{facts.record.control} trial')} {was} timed{alone}"


def _ratio_interval(interval: tuple[float, float] | None, timing: Timing | None, problems: int) -> str:
    """Return a conservative interval of the speedup, computed from the intervals of both medians."""
    if interval is None or timing is None or problems > 1:
        return ""
    low, high = timing.ci95_us
    return interval_text(low / interval[1], high / interval[0])


def _decides(facts: Facts, values: GeneValues) -> dict[str, Any]:
    """Return the genes with the greatest effect on the time, each with the best times of its values."""
    genes = {gene.name: gene for gene in facts.record.genes}
    found = facts.values
    ablated = genes_with_ablation_cost(facts)
    order = [*ablated, *important_genes(facts)]
    order = [name for name in dict.fromkeys(order) if name in facts.learned.effects][:GENES]
    # Show the measured ablation effect instead of the model's estimate where available.
    worth = {name: text for name, (_, text) in _choice_gains(facts).items() if name in ablated}
    return {
        "genes": [_deciding(genes[name], facts, found[name], values, worth.get(name, "")) for name in order],
        "by_ablation": any(name in worth for name in order),
        "by_model": any(name not in worth for name in order),
        "weak": not facts.learned.trusted,
        "explained": percent(max(facts.learned.explained or 0.0, 0.0)),
        "timed": facts.learned.timed,
        "slow": facts.learned.slow,
        "unit": facts.unit,
    }


def _deciding(
    gene: Gene, facts: Facts, values: Sequence[ValueFacts], results: GeneValues, worth: str
) -> dict[str, Any]:
    effect = facts.learned.effects[gene.name]
    low, high = effect.share_ci95
    chosen = facts.best.config[gene.name] if facts.best else None
    timed = sorted((one for one in values if one.best_us is not None), key=lambda one: one.best_us or 0.0)
    shown = [one for place, one in enumerate(timed) if place < VALUES or one.value == chosen]
    without = [one for one in values if one.best_us is None and one.tried + one.unchecked]
    bars = interval_bars([(str(one.value), "dimmed", one.best_us or 0.0, None) for one in shown], "")
    return {
        "name": gene.name,
        "doc": gene.doc,
        "default": chosen is not None and chosen == gene.default,
        "share": f"{worth} without it" if worth else f"{percent(effect.share)} [{percent(low)} to {percent(high)}]",
        "values": [
            _marked(bar, one, chosen, results.others(gene, one.value)) for bar, one in zip(bars, shown, strict=True)
        ],
        "rest": _rest(len(timed) - len(shown), without),
    }


def _marked(bar: IntervalBar, one: ValueFacts, chosen: Value | None, others: int) -> IntervalBar:
    """Return a value's bar with the champion's star, the number of differing genes, and the count of correct trials."""
    tip = f"{one.right} of {one.tried} checked trials were correct"
    if chosen is None or one.value != chosen:
        differ = f", {count_noun(others, 'other gene')} differ{'s' * (others == 1)}" if others else ""
        return replace(bar, tip=tip, words=bar.words + differ)
    return replace(bar, tip=tip, name=f"{bar.name} ★", kind="own")


def _rest(slower: int, without: Sequence[ValueFacts]) -> str:
    parts = [f"{count_noun(slower, 'slower value')} not shown"] if slower > 0 else []
    if without:
        of = (f"{one.value} ({count_noun(one.tried + one.unchecked, 'trial')})" for one in without)
        parts.append(f"no time for: {', '.join(of)}")
    return "; ".join(parts)
