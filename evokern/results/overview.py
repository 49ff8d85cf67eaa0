"""Summary of a study as text and HTML, its trials as a pandas data frame, and its convergence as a Plotly figure."""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from evokern.errors import UsageError
from evokern.store import Reader, StudyRecord, interval_us
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

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects

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


def trials_dataframe(trials: Iterable[Trial], genes: Sequence[str]) -> pandas.DataFrame:
    """Return a data frame with one row per trial (see `StudyResults.trials_dataframe`).

    Args:
        trials: the trials.
        genes: names of the genes, in declaration order.

    Raises:
        UsageError: pandas is not installed.
    """
    pandas = notebook_library("pandas", "trials_dataframe")
    rows = [_row(trial, genes) for trial in trials]
    return pandas.DataFrame({column: [row[column] for row in rows] for column in _columns(genes)}).astype(
        {"time_us": float, "ci95_low_us": float, "ci95_high_us": float, "occupancy": float}
    )


def notebook_library(name: str, method: str) -> Any:
    """Import a library of the extra `evokern[notebook]`.

    Args:
        name: name of the library.
        method: method that needs it, for the message.

    Raises:
        UsageError: the library is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        top = name.partition(".")[0]
        raise UsageError(
            f"{method} needs {top}, which is not installed; run `pip install 'evokern[notebook]'` or "
            f"`pip install {top}`, or use `.trials` instead"
        ) from error


def _columns(genes: Sequence[str]) -> list[str]:
    return [
        *("number", "outcome", "time_us", *(f"params_{name}" for name in genes)),
        *("ci95_low_us", "ci95_high_us", "reason", "control", "seconds", "compile_s", "device_s"),
        *("registers", "spill_bytes", "shared_bytes", "occupancy", "fingerprint"),
    ]


def _row(trial: Trial, genes: Sequence[str]) -> dict[str, Any]:
    evaluation = trial.evaluation
    used = evaluation.resources
    low, high = interval_us(evaluation) or (None, None)
    return {
        "number": trial.number,
        "outcome": trial.outcome.value,
        "time_us": evaluation.time_us,
        **{f"params_{name}": trial.config.get(name) for name in genes},
        "ci95_low_us": low,
        "ci95_high_us": high,
        "reason": evaluation.reason,
        "control": trial.control,
        "seconds": trial.seconds,
        "compile_s": evaluation.compile_s,
        "device_s": evaluation.device_s,
        "registers": max((launch.registers for launch in used), default=None),
        "spill_bytes": max((launch.spill_bytes for launch in used), default=None),
        "shared_bytes": max(
            (launch.static_shared_bytes + launch.dynamic_shared_bytes for launch in used), default=None
        ),
        "occupancy": min((launch.occupancy for launch in used), default=None),
        "fingerprint": evaluation.fingerprint,
    }


def convergence(
    record: StudyRecord, trials: Iterable[Trial], baseline: tuple[str, float] | None
) -> plotly.graph_objects.Figure:
    """Return a figure of the time of each measured trial, the best time so far, and the baseline.

    Args:
        record: the study.
        trials: the trials of the study, in number order.
        baseline: name and time in µs of the fastest baseline, if one was measured.

    Raises:
        UsageError: Plotly is not installed.
    """
    graph = notebook_library("plotly.graph_objects", "plot_convergence")
    timed = [(t.number, t.time_us) for t in trials if t.outcome is Outcome.MEASURED and t.time_us is not None]
    numbers, times = [number for number, _ in timed], [time_us for _, time_us in timed]
    figure = graph.Figure()
    figure.add_scatter(x=numbers, y=times, mode="markers", name="trial")
    figure.add_scatter(x=numbers, y=list(accumulate(times, min)), mode="lines", line_shape="hv", name="best so far")
    if baseline:
        figure.add_hline(y=baseline[1], line_dash="dash", annotation_text=html.escape(baseline[0]))
    unit = "predicted time (µs)" if record.predicted else "time (µs)"
    figure.update_layout(title=html.escape(record.name), xaxis_title="trial", yaxis_title=unit)
    figure.update_yaxes(type="log")
    return figure
