"""Summary of a study as one line of text, and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evokern.store import Reader, StudyRecord
from evokern.study.trial import Outcome, Trial
from evokern.templating import environment
from evokern.wording import (
    changed_genes_text,
    count_noun,
    duration,
    microseconds,
    missing_baseline_text,
    outcome_counts,
    speedup,
    verification_word,
)

FASTEST = 10
"""Number of trials in the list of the fastest trials."""


def summary_line(summary: Mapping[str, Any]) -> str:
    """Return the number of trials and the best time in one line.

    Args:
        summary: the object that `show --json` prints.
    """
    best = summary["best"]
    trials = count_noun(summary["trials"], "trial")
    if best is None:
        return f"{trials}, none measured"
    unit = "µs predicted" if summary["predicted"] else "µs"
    times = f", {best['speedup']:.2f}× as fast as {summary['baseline']['name']}" if best["speedup"] else ""
    return f"{trials}, best {microseconds(best['time_us'])} {unit} (trial {best['trial']}){times}"


def overview_html(reader: Reader, record: StudyRecord) -> str:
    """Return a study as HTML for a notebook: headline, champion, outcomes and fastest trials, with escaped text."""
    summary = reader.summary(record)
    trials = list(reader.trials(record))
    timed = [t for t in trials if t.outcome is Outcome.MEASURED]
    timed.sort(key=lambda t: (t.evaluation.time_us or 0.0, t.number))
    best = summary["best"]
    baseline_us = summary["baseline"]["time_us"] if summary["baseline"] else None
    spent = f"{count_noun(summary['trials'], 'trial')} in {duration(summary['elapsed_s'])}"
    return (
        environment(__package__)
        .get_template("study.html.j2")
        .render(
            name=record.name,
            about=f"kernel {record.kernel} at {record.problems_in_words()} on {record.device}",
            predicted=record.predicted,
            headline=_headline(summary),
            spent=f"{spent}, sampler {record.sampler}: {outcome_counts(summary)}",
            choices=[(g.name, str(best["config"][g.name]), str(g.default), g.doc) for g in record.genes]
            if best
            else [],
            trial=best["trial"] if best else None,
            unit="predicted µs" if record.predicted else "µs",
            fastest=[_fast(trial, record, baseline_us) for trial in timed[:FASTEST]],
            measured=len(timed),
        )
    )


def _headline(summary: Mapping[str, Any]) -> str:
    best, baseline = summary["best"], summary["baseline"]
    if best is None:
        return "no trial has been measured yet"
    time = f"{microseconds(best['time_us'])} µs"
    if best["ci95_us"] and not summary["predicted"]:
        low, high = best["ci95_us"]
        time += f" (95 % interval {microseconds(low)} to {microseconds(high)})"
    time += f", {verification_word(summary)}"
    if baseline is None:
        return f"{time}; {missing_baseline_text(summary['rejected_baselines'])}"
    return f"{time}, {speedup(best)} as fast as {baseline['name']} ({microseconds(baseline['time_us'])} µs)"


def _fast(trial: Trial, record: StudyRecord, baseline_us: float | None) -> tuple[str, ...]:
    time_us = trial.evaluation.time_us or 1.0  # never 1.0: `Evaluation` requires a time for measured trials
    used = trial.evaluation.resources
    return (
        f"{trial.number}{' control' if trial.control else ''}",
        microseconds(time_us),
        f"{baseline_us / time_us:.2f}×" if baseline_us else "–",
        str(max(launch.registers for launch in used)) if used else "–",
        changed_genes_text(trial.config, record.genes),
    )
