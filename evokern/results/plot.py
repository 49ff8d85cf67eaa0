"""Convergence of a search as a Plotly figure."""

from __future__ import annotations

import html
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

from evokern.results.frame import notebook_library
from evokern.store import StudyRecord
from evokern.study.trial import Outcome, Trial

if TYPE_CHECKING:
    import plotly.graph_objects


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
