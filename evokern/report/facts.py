"""What a report shows, gathered from the database alone: no kernel folder is imported."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from evokern.analysis.control_verdict import control_verdict
from evokern.analysis.genes.forest import ForestFit, ForestProcess, Forests
from evokern.analysis.genes.gene_report import GenesReport, report
from evokern.analysis.genes.importance import Effort
from evokern.analysis.stored import chip_of
from evokern.declaration.genes import Value
from evokern.declaration.space import Space
from evokern.errors import EvokernError
from evokern.hardware.profiles import Profile
from evokern.measurement.roofline import Limit
from evokern.report.marks import outcome_words
from evokern.report.trial_counts import ValueFacts, tunability
from evokern.samplers.genome import Genome, Rows
from evokern.store import DEFAULT_DB, ProofRecord, Reader, SessionRecord, StudyRecord, Verification, arms, control_table
from evokern.study.trial import Outcome, Timing, Trial
from evokern.wording import counts, microseconds

EFFORT = Effort(repeats=6, most=300)
"""What the model of the genes may cost: the page is made in seconds."""
SAMPLED = 1000
"""Trials, the fastest ones, whose samples the page holds."""


@dataclass(frozen=True)
class Facts:
    """Everything about one study."""

    record: StudyRecord
    """The study."""
    trials: tuple[Trial, ...]
    """Every recorded trial, without samples."""
    best: Trial | None
    """The champion with its samples, at the playoff's time where there was one; None while nothing is measured."""
    best_digest: str
    """Identity of the kernel's code that the champion ran; without one, of the code that was searched last."""
    sources: Mapping[str, str]
    """That code, file → text."""
    sessions: tuple[SessionRecord, ...]
    """The study's sessions."""
    baseline: tuple[str, float] | None
    """Name and time in µs of the fastest baseline."""
    in_turn: Mapping[str, Any] | None
    """What champion and baseline took measured in turn (`Reader.in_turn`); None where they never were."""
    baseline_timing: Timing | None
    """Its samples at the first problem."""
    rejections: Mapping[str, int]
    """Constraint → proposals turned away before they became trials."""
    proof: ProofRecord | None
    """The latest verification, of whichever trial."""
    own_proof: ProofRecord | None
    """The champion's latest verification."""
    verification: Verification
    """What is proved of the champion."""
    refuted: Mapping[int, str]
    """Trial → what refuted it in its last verification."""
    turned_down: tuple[Trial, ...]
    """Refuted trials that would be the champion otherwise: faster than it, the fastest first."""
    samples: Mapping[int, tuple[float, ...]]
    """Trial → its samples at the first problem, µs a call, of the fastest trials."""
    ablation: ProofRecord | None
    """The latest ablation."""
    control: Mapping[str, Any] | None
    """What `show --json` says of the study's own control."""
    curves: Mapping[str, tuple[Trial, ...]]
    """Label → trials: the sampler's, the control's, and those of other studies of the same problem and device."""
    learning: Callable[[], GenesReport]
    """Works out, or waits for, what the study learned of its genes (`learned`)."""
    chip: Profile | None
    """The chip's peak rates, where it is known."""
    limit: Limit | None
    """How near the champion is to the limit of its chip, where its work is known."""
    neighbours: Mapping[tuple[str, Value], Mapping[str, Any]] | None = None
    """Gene and value → why the champion cannot take that value alone; None where the search did not tell."""
    warm_start: Mapping[str, Any] | None = None
    """What `show --json` says of its warm start; None where it began cold."""
    file: str = DEFAULT_DB
    """Name of the database's file, for commands that a user may give."""

    @property
    def unit(self) -> str:
        """µs, or predicted µs."""
        return "predicted µs" if self.record.predicted else "µs"

    @cached_property
    def learned(self) -> GenesReport:
        """What the study learned of its genes."""
        return self.learning()

    @cached_property
    def levels(self) -> Rows:
        """Which of its values each gene has in each trial, trials × genes in their order."""
        return Genome(Space(self.record.genes)).rows(trial.config for trial in self.trials)

    @cached_property
    def values(self) -> Mapping[str, Sequence[ValueFacts]]:
        """What became of the trials with each value of each gene."""
        return tunability(self.trials, self.record.genes, self.levels, self.refuted)

    @cached_property
    def measured(self) -> list[Trial]:
        """Trials with a time of their own."""
        return [t for t in self.trials if t.outcome is Outcome.MEASURED and t.evaluation.time_us is not None]

    @property
    def champion_search_us(self) -> float:
        """The champion's time as the search measured it, also where a playoff gave it another one; 0 for none, µs."""
        if self.best is None:
            return 0.0
        return float(self.best.evaluation.evidence.get("search_time_us") or self.best.evaluation.time_us or 0.0)

    @cached_property
    def ended(self) -> str:
        """How many trials ended how, in words."""
        return counts(Counter(outcome_words(trial.outcome, self.record.predicted) for trial in self.trials))

    @property
    def verdict(self) -> str:
        """Whether the sampler earned its keep, in a sentence; empty without a control."""
        return control_verdict(self.control, self.unit, microseconds) if self.control else ""


@dataclass(frozen=True)
class KnownFacts:
    """What a caller that follows a study has of it already: the costly parts of `gather`."""

    trials: tuple[Trial, ...]
    """Its recorded trials in number order."""
    learned: GenesReport
    """What they tell of the genes, or some of them did a while ago."""


def gather(
    reader: Reader, name: str | None, known: KnownFacts | None = None, forests: ForestProcess | None = None
) -> Facts:
    """Read a study.

    A study without a measured trial has no champion; everything else is told of it.

    Args:
        reader: the open database.
        name: the study's name; None takes the one searched last.
        known: its trials and what was learned of its genes, where the caller has them; None reads and learns them.
        forests: fits the model of the genes while the rest of the page is made; None fits it here, once it is needed.

    Raises:
        StudyError: there is no such study.
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
    return forests.beside(partial(learn, record, trials, forests.fit))


def with_champion(reader: Reader, facts: Facts, trials: tuple[Trial, ...], number: int) -> Facts:
    """Return what is known of a study where another trial became its champion since the facts were gathered.

    Genes' effects, samples and curves stay those of the trials that there were.

    Args:
        reader: the open database.
        facts: what was gathered.
        trials: the trials that there are now, in number order.
        number: the champion among them.

    Raises:
        StudyError: there is no such trial.
    """
    record = facts.record
    best = reader.trial(record, number).trial
    changed = _of_champion(reader, record, trials, best, facts.refuted)
    return replace(facts, trials=trials, control=control_table(record, trials), **changed)


def _of_champion(
    reader: Reader, record: StudyRecord, trials: Sequence[Trial], best: Trial | None, refuted: Mapping[int, str]
) -> dict[str, Any]:
    """Return the fields of `Facts` that depend on which trial is the champion."""
    digest = reader.trial(record, best.number).kernel_digest if best else record.kernel_digest
    found: dict[str, Any] = {
        "best": best,
        "best_digest": digest,
        "sources": reader.source(digest, shown=True),
        "turned_down": _turned_down(trials, refuted, best),
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


def _neighbours(told: Sequence[Mapping[str, Any]] | None) -> dict[tuple[str, Value], Mapping[str, Any]] | None:
    return None if told is None else {(one["gene"], one["value"]): one for one in told}


def learn(
    record: StudyRecord, trials: Sequence[Trial], fit: Callable[[Forests], Sequence[ForestFit]] = Forests.fit
) -> GenesReport:
    """Return what trials of a study tell of its genes, at the page's `EFFORT`.

    Args:
        record: the study.
        trials: its trials.
        fit: fits the model, here or in another process.
    """
    return report(record.name, Space(record.genes), trials, predicted=record.predicted, effort=EFFORT, fit=fit)


def fastest(trials: Iterable[Trial], most: int) -> list[int]:
    """Return the numbers of the fastest trials with a time of their own, the fastest first."""
    timed = [(t.evaluation.time_us, t.number) for t in trials if t.outcome is Outcome.MEASURED and t.evaluation.time_us]
    return [number for _, number in sorted(timed)[:most]]


def elites(facts: Facts) -> set[int]:
    """Return the numbers of the fastest trials with each value of each code choice; refuted ones are none."""
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
    """Return the stage that failed in a trial's last verification, and what it found."""
    last = next(proof for proof in reversed(proofs) if proof.trial == number)
    stages = last.result.get("stages", {}).items()
    return next((f"{name}: {stage['detail']}" for name, stage in stages if stage.get("state") == "failed"), "")


def _turned_down(trials: Iterable[Trial], refuted: Mapping[int, str], best: Trial | None) -> tuple[Trial, ...]:
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
