"""Render a sweep as one HTML page: the state and result of each study, and the reason for each slice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from evokern import report
from evokern.report.tables import TextTable
from evokern.store import open_readonly
from evokern.sweep.journal import Journal
from evokern.sweep.plan import Sweep
from evokern.sweep.rule import FIRST_SLICE, SLICES_FIRST
from evokern.sweep.study_state import StudyState, totals
from evokern.templating import environment
from evokern.wording import changed_genes_text, duration, microseconds, verification_text, warm_start_text


def sweep_page(sweep: Sweep, folder: Path, states: Sequence[StudyState]) -> str:
    """Return the page as a single file without scripts; all text is escaped.

    Args:
        sweep: sweep to render.
        folder: folder of its databases.
        states: states of the sweep's studies, in order.

    Raises:
        StoreError: a database or the journal cannot be read.
    """
    return (
        environment(report.__name__)
        .get_template("sweep.html.j2")
        .render(
            heading=sweep.path.stem,
            about=totals(states),
            predicted=any(one.predicted for one in states),
            studies=_studies(sweep, states),
            notes=[f"{one.name}: {one.reason}" for one in states if one.state == "unverified" or one.failed],
            slices=_slices(Journal.of(folder)),
            first_slice=FIRST_SLICE,
            slices_first=SLICES_FIRST,
        )
    )


def _studies(sweep: Sweep, states: Sequence[StudyState]) -> TextTable:
    head = ("study", "state", "trials", "time", "best µs", "× baseline", "proof", "started from", "changed genes")
    rows = []
    for planned, one in zip(sweep.studies, states, strict=True):
        row = (planned.name, one.state, str(one.trials), duration(one.elapsed_s), one.best)
        rows.append((*row, *(_found(one) if one.state != "waiting" else ("",) * 4)))
    return TextTable(head, rows, (2, 3, 4, 5))


def _found(one: StudyState) -> tuple[str, str, str, str]:
    """Return a study's speedup, verification and warm start, and the champion's changed genes."""
    with open_readonly(one.db) as reader:
        record = reader.study(one.name)
        summary = reader.summary(record)
    best, warm = summary["best"], summary["warm_start"]
    began = "nothing"
    if warm:
        source = Path(warm["source"]).name.rpartition(":")[2]
        began = warm_start_text({**warm, "source": source})
    if best is None:
        return "", "", began, ""
    speedup = f"{best['speedup']:.2f}" if best["speedup"] else "–"
    return (
        speedup,
        verification_text(summary).partition(":")[0],
        began,
        changed_genes_text(best["config"], record.genes),
    )


def _slices(journal: Journal) -> TextTable:
    head = ("slice", "study", "trials", "why", "best before", "best after", "time", "improvement per second")
    rows = []
    for number, one in enumerate(journal.slices, 1):
        rate = "first correct candidate" if math.isinf(one.rate) else f"{one.rate:.3g}"
        rows.append(
            (
                str(number),
                one.study,
                f"{one.first} to {'its end' if one.last is None else one.last}",
                one.why,
                microseconds(one.before_us),
                microseconds(one.after_us),
                "running" if one.seconds is None else duration(one.seconds),
                "" if one.seconds is None else rate,
            )
        )
    return TextTable(head, rows, (0, 4, 5, 6, 7))
