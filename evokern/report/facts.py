"""Data of a report, read only from the database without importing a kernel folder."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from evokern.analysis.candidates import chip_of
from evokern.analysis.control_verdict import control_verdict
from evokern.analysis.genes.gene_report import GenesReport, report
from evokern.analysis.genes.importance import Effort, ForestFit, ForestProcess, Forests
from evokern.declaration.as_data.changes import newest_texts
from evokern.declaration.genes import Value
from evokern.declaration.space import Space
from evokern.errors import EvokernError
from evokern.hardware.profiles import Profile
from evokern.measurement.roofline import RooflineBound
from evokern.report.plot_marks import outcome_words
from evokern.report.trial_counts import ValueFacts, results_by_value
from evokern.samplers.genome import Genome, Rows
from evokern.store import DEFAULT_DB, ProofRecord, Reader, SessionRecord, StudyRecord, Verification, arms, control_table
from evokern.study.trial import Outcome, Timing, Trial
from evokern.wording import counts, microseconds

EFFORT = Effort(repeats=6, most=300)
"""Effort for the gene model, small enough to build a page in seconds."""
SAMPLED = 1000
"""Number of fastest trials whose samples are included in the page."""


@dataclass(frozen=True)
class Facts:
    """All data about one study that the report shows."""

    record: StudyRecord
    """Record of the study."""
    trials: tuple[Trial, ...]
    """All recorded trials, without their samples."""
    best: Trial | None
    """The champion with its samples and, if available, its playoff time; None if no trial has been measured."""
    best_digest: str
    """Digest of the kernel source of the champion or, without a champion, of the last search."""
    sources: Mapping[str, str]
    """Files of this source, by name."""
    sessions: tuple[SessionRecord, ...]
    """Sessions of the study."""
    baseline: tuple[str, float] | None
    """Name and time in µs of the fastest baseline."""
    baselines: Mapping[str, float]
    """Correct baseline → time in µs, fastest first."""
    rejected_baselines: Mapping[str, str]
    """Name and error of each baseline that failed."""
    in_turn: Mapping[str, Any] | None
    """Head-to-head result of champion and baseline (`Reader.in_turn`), or None."""
    baseline_timing: Timing | None
    """Samples of the baseline on the first problem."""
    rejections: Mapping[str, int]
    """Number of rejected proposals, by constraint."""
    proof: ProofRecord | None
    """Latest verification of any trial."""
    own_proof: ProofRecord | None
    """Latest verification of the champion."""
    verification: Verification
    """Verification state of the champion."""
    refuted: Mapping[int, str]
    """Reason of the last refutation, by trial number."""
    refuted_faster: tuple[Trial, ...]
    """Refuted trials at least as fast as the champion, fastest first."""
    samples: Mapping[int, tuple[float, ...]]
    """Samples of the fastest trials on the first problem in µs per call, by trial number."""
    ablation: ProofRecord | None
    """Latest ablation of the study."""
    control: Mapping[str, Any] | None
    """Control results as in `show --json`; None without a control."""
    curves: Mapping[str, tuple[Trial, ...]]
    """Trials of the sampler, the control, and other studies of the same problem and device, by label."""
    learning: Callable[[], GenesReport]
    """Function that returns the analysis of the genes (see `learned`); it computes the analysis or waits for it."""
    chip: Profile | None
    """Peak rates of the chip, if known."""
    limit: RooflineBound | None
    """Roofline bound for the champion, if its work is known."""
    neighbours: Mapping[tuple[str, Value], Mapping[str, Any]] | None = None
    """Infeasible single changes of the champion with their reasons, by gene and value; None if not recorded."""
    warm_start: Mapping[str, Any] | None = None
    """Warm start as in `show --json`; None without one."""
    file: str = DEFAULT_DB
    """File name of the database, for suggested commands."""

    @property
    def unit(self) -> str:
        """Unit of the times: µs or predicted µs."""
        return "predicted µs" if self.record.predicted else "µs"

    @cached_property
    def learned(self) -> GenesReport:
        """Analysis of the effects of the genes."""
        return self.learning()

    @cached_property
    def levels(self) -> Rows:
        """Value index of each gene in each trial, shape trials × genes."""
        return Genome(Space(self.record.genes)).rows(trial.config for trial in self.trials)

    @cached_property
    def values(self) -> Mapping[str, Sequence[ValueFacts]]:
        """Results of the trials with each value, by gene name."""
        return results_by_value(self.trials, self.record.genes, self.levels, self.refuted)

    @cached_property
    def measured(self) -> list[Trial]:
        """Trials with their own measured time."""
        return [t for t in self.trials if t.outcome is Outcome.MEASURED and t.evaluation.time_us is not None]

    @property
    def champion_search_us(self) -> float:
        """Time of the champion in µs, measured by the search, not by a playoff; 0 without a champion."""
        if self.best is None:
            return 0.0
        return float(self.best.evaluation.evidence.get("search_time_us") or self.best.evaluation.time_us or 0.0)

    @cached_property
    def ended(self) -> str:
        """Number of trials with each outcome, in words."""
        return counts(Counter(outcome_words(trial.outcome, self.record.predicted) for trial in self.trials))

    @property
    def verdict(self) -> str:
        """Comparison of the sampler with its control in one sentence; empty without a control."""
        return control_verdict(self.control, self.unit, microseconds) if self.control else ""


@dataclass(frozen=True)
class KnownFacts:
    """Inputs of `gather` that are costly to compute and that the caller already has."""

    trials: tuple[Trial, ...]
    """Recorded trials in order of their numbers."""
    learned: GenesReport
    """Analysis of the genes, possibly from an earlier set of trials."""


def gather(
    reader: Reader, name: str | None, known: KnownFacts | None = None, forests: ForestProcess | None = None
) -> Facts:
    """Read a study from the database.

    A study without a measured trial has no champion.

    Args:
        reader: Open database.
        name: Name of the study; None selects the latest one.
        known: Trials and gene analysis if the caller has them; None reads the trials and computes the analysis.
        forests: Process that fits the gene model in the background; None fits it in this process on demand.

    Raises:
        StudyError: There is no such study.
    """
    record = reader.study(name)
    trials = tuple(reader.trials(record)) if known is None else known.trials
    learning = _learning(record, trials, known, forests)
    best = reader.best(record)
    sessions = tuple(reader.sessions(record))
    baseline = reader.baseline(record)
    verified, ablated = reader.proofs(record, "verify"), reader.proofs(record, "ablate")
    refuted = {number: _why_refuted(verified, number) for number in sorted(reader.refuted(record))}
    return Facts(
        record=record,
        trials=trials,
        sessions=sessions,
        baseline=baseline,
        baselines=reader.baselines(record),
        rejected_baselines=reader.rejected_baselines(record),
        baseline_timing=_baseline_timing(sessions, baseline[0] if baseline else None),
        rejections=reader.rejections(record),
        proof=verified[-1] if verified else None,
        refuted=refuted,
        samples=reader.samples(record, fastest(trials, SAMPLED)),
        ablation=ablated[-1] if ablated else None,
        control=control_table(record, trials),
        curves=_curves(reader, record, trials),
        chip=_chip(record, sessions),
        warm_start=reader.warm_start(record),
        file=Path(reader.path).name,
        **_of_champion(reader, record, trials, best, refuted),
        learning=learning,
    )


def _learning(
    record: StudyRecord, trials: Sequence[Trial], known: KnownFacts | None, forests: ForestProcess | None
) -> Callable[[], GenesReport]:
    if known is not None:
        return lambda: known.learned
    if forests is None:
        return partial(learn, record, trials, Forests.fit)
    return forests.submit(partial(learn, record, trials, forests.fit))


def facts_with_champion(reader: Reader, facts: Facts, trials: tuple[Trial, ...], number: int) -> Facts:
    """Return the facts of a study after another trial has become its champion.

    Gene effects, samples and curves are not updated.

    Args:
        reader: Open database.
        facts: Facts gathered before.
        trials: Current trials in order of their numbers.
        number: Number of the new champion.

    Raises:
        StudyError: There is no such trial.
    """
    record = facts.record
    best = reader.trial(record, number).trial
    changed = _of_champion(reader, record, trials, best, facts.refuted)
    return replace(facts, trials=trials, control=control_table(record, trials), **changed)


def _of_champion(
    reader: Reader, record: StudyRecord, trials: Sequence[Trial], best: Trial | None, refuted: Mapping[int, str]
) -> dict[str, Any]:
    """Return the fields of `Facts` that depend on the champion."""
    digest = reader.trial(record, best.number).kernel_digest if best else record.kernel_digest
    found: dict[str, Any] = {
        "best": best,
        "best_digest": digest,
        "sources": newest_texts(reader.source(digest, shown=True), reader.source(record.kernel_digest, shown=True)),
        "refuted_faster": _refuted_faster(trials, refuted, best),
    }
    if best is None:
        nothing = Verification(None, "no trial has been measured yet", None)
        return found | {"own_proof": None, "verification": nothing, "limit": None, "in_turn": None, "neighbours": None}
    proofs = reversed(reader.proofs(record, "verify"))
    return found | {
        "own_proof": next((proof for proof in proofs if proof.trial == best.number), None),
        "verification": reader.verification(record, best),
        "limit": reader.limit(record, best),
        "in_turn": reader.in_turn(record, best.number),
        "neighbours": _neighbours(reader.infeasible_neighbours(record, best.number)),
    }


def _neighbours(stored: Sequence[Mapping[str, Any]] | None) -> dict[tuple[str, Value], Mapping[str, Any]] | None:
    return None if stored is None else {(one["gene"], one["value"]): one for one in stored}


def learn(
    record: StudyRecord, trials: Sequence[Trial], fit: Callable[[Forests], Sequence[ForestFit]] = Forests.fit
) -> GenesReport:
    """Return the analysis of the genes, computed with the page's `EFFORT`.

    Args:
        record: Record of the study.
        trials: Trials of the study.
        fit: Function that fits the model, in this or another process.
    """
    return report(record.name, Space(record.genes), trials, predicted=record.predicted, effort=EFFORT, fit=fit)


def fastest(trials: Iterable[Trial], most: int) -> list[int]:
    """Return the numbers of the fastest trials with their own time, fastest first."""
    timed = [(t.evaluation.time_us, t.number) for t in trials if t.outcome is Outcome.MEASURED and t.evaluation.time_us]
    return [number for _, number in sorted(timed)[:most]]


def elites(facts: Facts) -> set[int]:
    """Return the numbers of the fastest trials with each value of each code choice, without refuted trials."""
    choices = [gene.name for gene in facts.record.genes if gene.layer == "mutation"]
    best: dict[tuple[str, Value | None], tuple[float, int]] = {}
    for trial in facts.measured:
        if trial.number in facts.refuted:
            continue
        reached = trial.evaluation.time_us or math.inf, trial.number
        for name in choices:
            key = name, trial.config.get(name)
            if key not in best or reached < best[key]:
                best[key] = reached
    return {number for _, number in best.values()}


def _why_refuted(proofs: Sequence[ProofRecord], number: int) -> str:
    """Return the stage that failed in a trial's last verification, with its detail."""
    last = next(proof for proof in reversed(proofs) if proof.trial == number)
    stages = last.result.get("stages", {}).items()
    return next((f"{name}: {stage['detail']}" for name, stage in stages if stage.get("state") == "failed"), "")


def _refuted_faster(trials: Iterable[Trial], refuted: Mapping[int, str], best: Trial | None) -> tuple[Trial, ...]:
    limit = best.evaluation.time_us if best else None
    found = [t for t in trials if t.number in refuted and t.evaluation.time_us]
    faster = [t for t in found if limit is None or (t.evaluation.time_us or 0.0) <= limit]
    return tuple(sorted(faster, key=lambda t: (t.evaluation.time_us or 0.0, t.number)))


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
