"""Report on a study's genes, as printed by `show --genes`.

The main source is pairs of trials that differ in one gene (`evokern.analysis.genes.genes`). If there are no such pairs,
a forest over all trials estimates the effects (`evokern.analysis.genes.importance`). Failures of value pairs come last
(`evokern.analysis.genes.genes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from evokern.analysis.genes.genes import FailingPair, GeneFinding, Kind, failing_pairs, gene_findings
from evokern.analysis.genes.importance import FULL, Effort, ForestFit, Forests, GeneEffect, importance
from evokern.declaration.genes import Config, Value
from evokern.declaration.space import Space
from evokern.errors import StudyError
from evokern.samplers.contract import objective
from evokern.store import Reader, StudyRecord
from evokern.study.trial import Outcome, Trial

DECISIVE_SHARE = 0.02
"""Smallest lower bound of a decisive gene's share in a forest."""
DECISIVE_RATIO = 1.02
"""Smallest lower bound of a decisive gene's worst time divided by its best time."""
TRUSTED = 0.5
"""Smallest share of explained variance on held-out trials for a forest's ranking to count as a finding."""


@dataclass(frozen=True)
class GenesReport:
    """Report on a study's genes."""

    study: str
    """Name of the study."""
    trials: int
    """Number of recorded trials."""
    timed: int
    """Number of trials with a time, without duplicates."""
    predicted: bool
    """Whether times are predicted, not measured."""
    findings: tuple[GeneFinding, ...]
    """Dead, locked, barred and decisive genes."""
    effects: Mapping[str, GeneEffect] = field(default_factory=dict)
    """Gene → effect estimated by the forest; empty with too few trials."""
    explained: float | None = None
    """Share of the variance of log(time) that the forest explains on held-out trials, or None without a forest."""
    combinations: tuple[FailingPair, ...] = ()
    """Pairs of values that never work together, although each works with other values."""
    inconclusive: tuple[str, ...] = ()
    """Genes with several values about which there are no findings."""
    single: tuple[str, ...] = ()
    """Genes with a single value in the study."""
    slow: int = 0
    """Number of slow trials among `timed`; their times come from partial measurements."""
    partial: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """Gene → values that occur only in slow trials, which were not timed completely."""

    @property
    def trusted(self) -> bool:
        """Whether the forest explains enough variance on held-out trials to rank genes."""
        return self.explained is not None and self.explained >= TRUSTED

    def findings_of(self, kind: Kind) -> list[GeneFinding]:
        """Return the findings of a kind; decisive genes are sorted by share, then by effect, in descending order."""
        found = [finding for finding in self.findings if finding.kind == kind]
        if kind == "decisive":
            found.sort(key=lambda f: (-self._shares.get(f.gene, 0.0), -f.effect))
        return found

    def share(self, gene: str) -> str:
        """Return a gene's share of the forest's importance with its interval as text, or an empty string.

        A gene that is decisive by its pairs may have no share, because the effects of other genes are much larger.
        """
        if gene not in self._shares:
            return ""
        low, high = self.effects[gene].share_ci95
        return f"{100 * self._shares[gene]:.0f} % [{100 * low:.0f} %, {100 * high:.0f} %] of the importance"

    @property
    def _shares(self) -> dict[str, float]:
        return {gene: effect.share for gene, effect in self.effects.items() if self.trusted and is_decisive(effect)}

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `show --genes --json` prints."""
        effects = []
        for gene, effect in self.effects.items():
            relative = {str(value): ratio for value, ratio in effect.relative.items()}
            effects.append({"gene": gene, **asdict(effect), "relative": relative, "best": effect.best})
        return {
            "study": self.study,
            "trials": self.trials,
            "timed": self.timed,
            "predicted": self.predicted,
            "findings": [finding.as_dict() for finding in self.findings],
            "explained": self.explained,
            "importance": sorted(effects, key=lambda effect: -effect["share"]),
            "combinations": [{**asdict(c), "values": dict(c.values), "text": c.text} for c in self.combinations],
            "quiet": list(self.inconclusive),
            "single": list(self.single),
        }


def genes_report(reader: Reader, record: StudyRecord) -> GenesReport:
    """Return the report on a stored study's genes.

    Raises:
        StudyError: the study has no finished trial.
    """
    trials = list(reader.trials(record))
    if not trials:
        raise StudyError(f"study {record.name} has no finished trial to analyse; run `evokern search` first")
    return report(record.name, Space(record.genes), trials, predicted=record.predicted)


def report(
    study: str,
    space: Space,
    trials: Sequence[Trial],
    *,
    predicted: bool = False,
    effort: Effort = FULL,
    fit: Callable[[Forests], Sequence[ForestFit]] = Forests.fit,
) -> GenesReport:
    """Return the report on the genes of some trials.

    Args:
        study: name for the report.
        space: the genes.
        trials: the trials.
        predicted: whether times are predicted.
        effort: computational effort of the forest.
        fit: function that fits forests, in this or another process.
    """
    timed = [
        (t, v) for t in trials if t.outcome is not Outcome.DUPLICATE and (v := objective(t.evaluation)) is not None
    ]
    configs, values = [trial.config for trial, _ in timed], [value for _, value in timed]
    # Concurrently with the rest, which needs no model: a separate process may fit the forests.
    with ThreadPoolExecutor(1) as background:
        fitted = background.submit(importance, space, configs, values, effort=effort, fit=fit)
        findings = list(gene_findings(space.genes, trials))
        barred = {finding.gene for finding in findings if finding.kind in ("locked", "barred")}
        combinations = tuple(failing_pairs(space, trials, barred))
        model = fitted.result()
    effects = model.effects if model else {}
    in_full = [trial.config for trial in trials if trial.outcome in (Outcome.MEASURED, Outcome.DUPLICATE)]
    partial = {gene: _lacking(gene, effect.relative, in_full) for gene, effect in effects.items()}
    with_finding = {finding.gene for finding in findings if finding.kind in ("dead", "decisive")}
    if model and model.explained >= TRUSTED:
        findings += [
            model_finding(gene, e, len(timed), partial[gene])
            for gene, e in effects.items()
            if gene not in with_finding and is_decisive(e)
        ]
    reported = {finding.gene for finding in findings}
    return GenesReport(
        study,
        len(trials),
        len(timed),
        predicted,
        tuple(findings),
        effects,
        model.explained if model else None,
        combinations,
        tuple(gene.name for gene in space.genes if len(gene.values) > 1 and gene.name not in reported),
        tuple(gene.name for gene in space.genes if len(gene.values) == 1),
        sum(trial.outcome is Outcome.SLOW for trial, _ in timed),
        partial,
    )


def _lacking(gene: str, values: Iterable[Value], configs: Iterable[Config]) -> tuple[Value, ...]:
    """Return a gene's values that no configuration has."""
    left = dict.fromkeys(values)
    for config in configs:
        left.pop(config[gene], None)
        if not left:
            break
    return tuple(left)


def is_decisive(effect: GeneEffect) -> bool:
    """Return whether a gene is decisive: the forest's confidence intervals exclude a negligible effect."""
    return effect.share_ci95[0] > DECISIVE_SHARE and effect.ratio_ci95[0] > DECISIVE_RATIO


def model_finding(gene: str, effect: GeneEffect, trials: int, partial: Sequence[Value]) -> GeneFinding:
    """Return the finding about a gene that is decisive in a model.

    Args:
        gene: name of the gene.
        effect: effect estimated by the model.
        trials: number of trials in the model.
        partial: values of the gene that were never timed completely.
    """
    worst = max(effect.relative, key=lambda value: effect.relative[value])
    low, high = (bound - 1 for bound in effect.ratio_ci95)
    text = (
        f"{gene}: {worst}{', never timed to the end,' if worst in partial else ''} takes "
        f"{100 * (effect.ratio - 1):.1f} % longer than {effect.best} "
        f"[{100 * low:.1f} %, {100 * high:.1f} %] in a model of {trials} trials"
    )
    return GeneFinding(gene, "decisive", text, trials, effect.ratio - 1, (low, high))
