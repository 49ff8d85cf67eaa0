"""What a report shows, gathered from the database alone: no kernel folder is imported."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.analysis.genes.gene_report import GenesReport, report
from evokern.analysis.genes.importance import Effort
from evokern.analysis.stored import chip_of
from evokern.declaration.space import Space, Value
from evokern.errors import EvokernError, StudyError
from evokern.hardware.profiles import Profile
from evokern.measurement.roofline import Limit
from evokern.store import ProofRecord, Reader, SessionRecord, StudyRecord, Verification, arms, control_table
from evokern.study.trial import Outcome, Timing, Trial
from evokern.wording import command

EFFORT = Effort(repeats=8, most=400)
"""What the model of the genes may cost: the page is made in seconds."""
_NO_FAILURE = (Outcome.MEASURED, Outcome.DUPLICATE, Outcome.SLOW)
_REASON_WIDTH = 160


@dataclass(frozen=True)
class Facts:
    """Everything about one study."""

    record: StudyRecord
    """The study."""
    trials: tuple[Trial, ...]
    """Every recorded trial, without samples."""
    best: Trial
    """The champion with its samples, at the playoff's time where there was one."""
    best_digest: str
    """Identity of the kernel's code that the champion ran."""
    sources: Mapping[str, str]
    """That code, file → text."""
    sessions: tuple[SessionRecord, ...]
    """The study's sessions."""
    baseline: tuple[str, float] | None
    """Name and time in µs of the fastest baseline."""
    baseline_timing: Timing | None
    """Its samples at the first problem."""
    rejections: Mapping[str, int]
    """Constraint → proposals turned away before they became trials."""
    proof: ProofRecord | None
    """The latest verification."""
    verification: Verification
    """What is proved of the champion."""
    ablation: ProofRecord | None
    """The latest ablation."""
    control: Mapping[str, Any] | None
    """What `show --json` says of the study's own control."""
    curves: Mapping[str, tuple[Trial, ...]]
    """Label → trials: the sampler's, the control's, and those of other studies of the same problem and device."""
    learned: GenesReport
    """What the study learned of its genes."""
    chip: Profile | None
    """The chip's peak rates, where it is known."""
    limit: Limit | None
    """How near the champion is to the limit of its chip, where its work is known."""

    @property
    def unit(self) -> str:
        """µs, or predicted µs."""
        return "predicted µs" if self.record.predicted else "µs"

    @property
    def measured(self) -> list[Trial]:
        """Trials with a time of their own."""
        return [t for t in self.trials if t.outcome is Outcome.MEASURED and t.evaluation.time_us is not None]


def gather(reader: Reader, name: str | None) -> Facts:
    """Read a study.

    Raises:
        StudyError: there is no such study, or none of its trials was measured.
    """
    record = reader.study(name)
    trials = tuple(reader.trials(record))
    best = reader.best(record)
    if best is None:
        counts = Counter(t.outcome.value for t in trials)
        ended = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()) or "none yet"
        raise StudyError(
            f"study {record.name} has no measured trial, so there is no champion to report on (trials: {ended}); "
            f"`{command('show', record.name, '--db', reader.path)}` tells what there is"
        )
    digest = reader.trial(record, best.number).kernel_digest
    sessions = tuple(reader.sessions(record))
    baseline = reader.baseline(record)
    verified, ablated = reader.proofs(record, "verify"), reader.proofs(record, "ablate")
    return Facts(
        record,
        trials,
        best,
        digest,
        reader.source(digest, shown=True),
        sessions,
        baseline,
        _baseline_timing(sessions, baseline[0] if baseline else None),
        reader.rejections(record),
        verified[-1] if verified else None,
        reader.verification(record, best),
        ablated[-1] if ablated else None,
        control_table(record, trials),
        _curves(reader, record, trials),
        report(record.name, Space(record.genes), trials, predicted=record.predicted, effort=EFFORT),
        _chip(record, sessions),
        reader.limit(record, best),
    )


def _baseline_timing(sessions: Sequence[SessionRecord], name: str | None) -> Timing | None:
    for session in reversed(sessions):
        for baseline in session.baselines:
            if baseline.name == name and baseline.timings:
                return baseline.timings[0]
    return None


def _curves(reader: Reader, record: StudyRecord, trials: Sequence[Trial]) -> dict[str, tuple[Trial, ...]]:
    mine, drawn = arms(record, trials)
    found = {record.sampler: mine}
    if drawn:
        found[f"{record.control} (control)"] = drawn
    same = [
        other
        for other in reader.studies()
        if other.uuid != record.uuid
        and (other.kernel, other.problems, other.device) == (record.kernel, record.problems, record.device)
    ]
    return found | {f"{other.name} ({other.sampler})": tuple(reader.trials(other)) for other in same[:2]}


def _chip(record: StudyRecord, sessions: Sequence[SessionRecord]) -> Profile | None:
    try:
        return chip_of(record.device, sessions)
    except EvokernError:
        return None


@dataclass(frozen=True)
class ValueFacts:
    """One value of one gene."""

    value: Value
    """The value."""
    tried: int
    """Trials that had it and ran to a verdict on their answers, or failed before."""
    worked: int
    """Those that were right and ran, however slowly."""
    unchecked: int
    """Further trials, which were predicted to be slow and never checked."""
    best_us: float | None
    """Fastest of them, µs."""


def tunability(facts: Facts) -> dict[str, list[ValueFacts]]:
    """Return, for every gene, what became of the trials with each of its values."""
    found: dict[str, list[ValueFacts]] = {}
    for gene in facts.record.genes:
        by_value: dict[Any, list[Trial]] = defaultdict(list)
        for trial in (t for t in facts.trials if t.outcome is not Outcome.LOST):
            by_value[trial.config.get(gene.name)].append(trial)
        row = []
        for value in gene.values:
            mine = by_value.get(value, [])
            times = [t.evaluation.time_us for t in mine if t.outcome is Outcome.MEASURED and t.evaluation.time_us]
            worked = sum(t.evaluation.passed_gate for t in mine)
            unchecked = sum(t.outcome is Outcome.SLOW and not t.evaluation.passed_gate for t in mine)
            row.append(ValueFacts(value, len(mine) - unchecked, worked, unchecked, min(times, default=None)))
        found[gene.name] = row
    return found


def pairs(facts: Facts, one: str, two: str) -> dict[tuple[Value, Value], float]:
    """Return the fastest time of each pair of two genes' values, µs."""
    found: dict[tuple[Value, Value], float] = {}
    for trial in facts.measured:
        key = (trial.config[one], trial.config[two])
        time_us = trial.evaluation.time_us or 0.0
        found[key] = min(found.get(key, time_us), time_us)
    return found


@dataclass(frozen=True)
class FailureReason:
    """Trials that failed for one reason, apart from its numbers."""

    outcome: str
    """How they ended."""
    example: str
    """The reason as the first of them has it."""
    trial: int
    """Which trial that is."""
    count: int
    """How many they are."""


def reasons(trials: Iterable[Trial], most: int | None = 12) -> list[FailureReason]:
    """Return the commonest reasons of failure, None for all, each with one real example."""
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], Trial] = {}
    for trial in trials:
        if trial.outcome in _NO_FAILURE:
            continue
        text = re.sub(r"\[[\d, ]+\]", "[…]", trial.evaluation.reason)
        key = trial.outcome.value, re.sub(r"(?<!line )(?<![\d.])-?(\d+(\.\d+)?(e[+-]?\d+)?|\bnan\b|\binf\b)", "#", text)
        counts[key] += 1
        if key not in first or trial.number < first[key].number:
            first[key] = trial
    return [
        FailureReason(key[0], _shortened(first[key].evaluation.reason), first[key].number, count)
        for key, count in counts.most_common(most)
    ]


def _shortened(text: str) -> str:
    return text if len(text) <= _REASON_WIDTH else f"{text[:_REASON_WIDTH]} …"
