"""Trial data for the page's script as one JSON object, identical in a file and with `--serve`.

Trials refer to genes, outcomes and reasons by index, so that 5,000 trials need only about a megabyte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evokern.declaration.genes import Gene
from evokern.declaration.space import Space
from evokern.report.facts import Facts, elites, fastest
from evokern.report.plot_marks import MARKS, mark_of, outcome_words
from evokern.report.source_difference import SourceDifference
from evokern.report.times import roofs
from evokern.samplers.genome import Genome
from evokern.store import Milestone, bests, interval_us
from evokern.study.trial import Outcome, Trial

DIFFERENCES = 50
"""Number of fastest trials with a source difference in the page; elites are added."""
MOST_SAMPLES = 24
"""Maximum number of samples per trial in the page; longer series are thinned evenly."""
MOST_REASON = 300
"""Maximum length of a reason in the page, in characters."""
LEADING = 8
"""Number of most important genes shown first in parallel coordinates."""


class TrialRows:
    """Trials as rows of numbers and a table of texts; rows can be added during a search."""

    def __init__(self, genes: Sequence[Gene]) -> None:
        """Start with an empty table.

        Args:
            genes: Genes of the study.
        """
        self._genome = Genome(Space(tuple(genes)))
        self._outcomes = {outcome: place for place, outcome in enumerate(Outcome)}
        self._known: dict[str, int] = {}
        self._programs: tuple[set[str | None], set[str | None]] = set(), set()
        self.texts: list[str] = []
        """Reasons and names of constraints and checks, in order of first use."""

    def row(self, trial: Trial, levels: Sequence[int] | None = None) -> list[Any]:
        """Return a trial as a row with the columns `COLUMNS`.

        Args:
            trial: Trial to convert.
            levels: Value index of each gene; None computes it.
        """
        seen = trial.evaluation
        low, high = interval_us(seen) or (None, None)
        if levels is None:
            levels = self._genome.rows([trial.config])[0].tolist()
        used = seen.resources
        within = seen.outcome.as_seen_by_arm(seen.fingerprint, self._programs[trial.control])
        return [
            trial.number,
            self._outcomes[seen.outcome],
            int(trial.control),
            _short(seen.time_us),
            _short(low),
            _short(high),
            round(trial.seconds, 1),
            levels,
            -1 if seen.outcome is Outcome.MEASURED else self._text(_cut(seen.reason)),
            self._text(_constraint(trial)),
            max((r.registers for r in used), default=None),
            sum(r.spill_bytes for r in used) if used else None,
            max((r.static_shared_bytes + r.dynamic_shared_bytes for r in used), default=None),
            round(100 * min(r.occupancy for r in used)) if used else None,
            round(seen.compile_s, 2),
            round(seen.device_s, 3),
            int(seen.outcome is Outcome.SLOW and not seen.passed_gate),
            int(within.evaluated),
            int(within is Outcome.MEASURED),
        ]

    def _text(self, text: str) -> int:
        if not text:
            return -1
        if text not in self._known:
            self._known[text] = len(self.texts)
            self.texts.append(text)
        return self._known[text]


COLUMNS = (
    *("number", "outcome", "control", "us", "low", "high", "seconds", "genes", "reason", "constraint"),
    *("registers", "spill", "shared", "occupancy", "compile_s", "device_s", "unchecked", "counts", "times"),
)
"""Names of the numbers of a row, as used by the script.

`counts` and `times`: whether the trial is evaluated, or has its own time, if its group counts as a separate search.
"""


def _short(value: float | None) -> float | None:
    """Return a number rounded to six digits, which is as precise as a clock."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _cut(text: str) -> str:
    return text if len(text) <= MOST_REASON else f"{text[:MOST_REASON]} …"


def _constraint(trial: Trial) -> str:
    """Return the constraint or check that a trial failed, or an empty string."""
    evidence = trial.evaluation.evidence
    return str(evidence.get("constraint") or evidence.get("check") or "")


def rows_of(facts: Facts) -> tuple[list[list[Any]], list[str]]:
    """Return the rows of a study's trials, and the texts that the rows refer to."""
    made, levels = TrialRows(facts.record.genes), facts.levels.tolist()
    rows = [made.row(trial, places) for trial, places in zip(facts.trials, levels, strict=True)]
    return rows, made.texts


def page_data(facts: Facts, known: tuple[list[list[Any]], list[str]]) -> dict[str, Any]:
    """Return the complete data for the script.

    Args:
        facts: Facts about the study.
        known: Rows of the trials and the texts they refer to.
    """
    record, best = facts.record, facts.best
    table, texts = known
    return {
        "study": record.name,
        "predicted": record.predicted,
        "unit": facts.unit,
        "columns": COLUMNS,
        "marks": [[mark.kind, mark.label_for(record.predicted), mark.lane, mark.path] for mark in MARKS],
        "mark_of": [mark_of(outcome) for outcome in Outcome],
        "outcomes": [outcome_words(outcome, record.predicted) for outcome in Outcome],
        "genes": [{"name": g.name, "values": [str(v) for v in g.values], "doc": g.doc} for g in record.genes],
        "choices": [place for place, gene in enumerate(record.genes) if gene.layer == "mutation"],
        "leading": leading(facts),
        "champion": best.number if best else None,
        "champion_us": _short(best.evaluation.time_us) if best else None,
        "baseline": [facts.baseline[0], _short(facts.baseline[1])] if facts.baseline else None,
        "refuted": {str(number): _cut(why) for number, why in facts.refuted.items()},
        "sampler": record.sampler,
        "control": record.control if record.control != "none" else "",
        "others": [
            {"label": label, "points": [_reached(when, time_us) for when, time_us in bests(trials)]}
            for label, trials in list(facts.curves.items())[2 if facts.control else 1 :]
        ],
        "roofline": _roofline(facts),
        "rows": table,
        "texts": texts,
        "samples": {str(n): thinned(samples) for n, samples in facts.samples.items()},
        "differences": _differences(facts),
        "source": bool(facts.sources),
    }


def leading(facts: Facts) -> list[int]:
    """Return the indices of the most important genes, then of the genes with the most tried values."""
    effects = facts.learned.effects
    tried = {name: sum(bool(one.tried + one.unchecked) for one in values) for name, values in facts.values.items()}
    order = sorted(
        (gene for gene in facts.record.genes if tried[gene.name] > 1),
        key=lambda gene: (-(effects[gene.name].share if gene.name in effects else -1.0), -tried[gene.name], gene.name),
    )
    places = {gene.name: place for place, gene in enumerate(facts.record.genes)}
    return [places[gene.name] for gene in order[:LEADING]]


def thinned(samples: Sequence[float]) -> list[Any]:
    """Return the number of samples, their median, and some samples as deviations from the median in units of 1e-4."""
    step = max(1.0, len(samples) / MOST_SAMPLES)
    middle = sorted(samples)[len(samples) // 2]
    kept = [samples[int(place * step)] for place in range(min(len(samples), MOST_SAMPLES))]
    return [len(samples), _short(middle), [round(1e4 * (value / middle - 1)) for value in kept]]


def _differences(facts: Facts) -> dict[str, list[list[str]]]:
    if facts.best is None:
        return {}
    source = SourceDifference(facts.sources, facts.record.genes)
    if not source.known:
        return {}
    wanted = dict.fromkeys([*fastest(facts.trials, DIFFERENCES), *sorted(elites(facts))])
    by_number = {trial.number: trial for trial in facts.trials}
    best = facts.best
    return {str(number): difference(source, best, by_number[number]) for number in wanted if number != best.number}


def difference(source: SourceDifference, best: Trial, trial: Trial) -> list[list[str]]:
    """Return the lines that differ between a trial's source and the champion's, each with its mark."""
    return [[line.mark, line.text] for line in source.between(best.config, trial.config)]


def _reached(when: Milestone, time_us: float) -> list[float | None]:
    return [when.evaluated, round(when.elapsed_s / 60, 3), _short(time_us)]


def _roofline(facts: Facts) -> Mapping[str, float] | None:
    """Return the work of a call and the chip's rates, or None if unknown."""
    found = roofs(facts)
    if found is None:
        return None
    plain = {name: value for name, value in vars(found).items() if name != "measured"}
    rates = found.measured
    if rates is None:
        return plain
    return plain | {"measured_peak": rates.matrix_flops_per_s, "measured_dram": rates.dram_bytes_per_s}
