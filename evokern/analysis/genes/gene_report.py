"""Everything that a study learned of its genes, in one record: for `show --genes`.

Pairs of trials that differ in one gene come first (`evokern.analysis.genes.genes`). Where a search has no such pairs,
a forest over all its trials tells what decides the time (`evokern.analysis.genes.importance`). Failures that need two
values at once come last (`evokern.analysis.genes.failures`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from evokern.analysis.genes.failures import Failing, failing_pairs
from evokern.analysis.genes.forest import ForestFit, Forests
from evokern.analysis.genes.genes import GeneFinding, Kind, learned
from evokern.analysis.genes.importance import FULL, Effort, GeneEffect, importance
from evokern.declaration.genes import Config, Value
from evokern.declaration.space import Space
from evokern.errors import StudyError
from evokern.samplers.contract import objective
from evokern.store import Reader, StudyRecord
from evokern.study.trial import Outcome, Trial

DECISIVE_SHARE = 0.02
"""Least lower bound of the share of a gene that a forest calls decisive."""
DECISIVE_RATIO = 1.02
"""Least lower bound of its worst time ÷ its best."""
TRUSTED = 0.5
"""Share of the variance of trials it has not seen below which a forest's ranking of genes is a hint and no finding."""


@dataclass(frozen=True)
class GenesReport:
    """What a study learned of its genes."""

    study: str
    """Its name."""
    trials: int
    """Recorded trials."""
    timed: int
    """Those that a time is known of, duplicates apart."""
    predicted: bool
    """Whether times are predicted, not measured."""
    findings: tuple[GeneFinding, ...]
    """Dead, locked, barred and decisive genes."""
    effects: Mapping[str, GeneEffect] = field(default_factory=dict)
    """Gene → what the forest says of it; empty with too few trials."""
    explained: float | None = None
    """Share of the variance of log(time) that the forest explains on trials it has not seen; None without one."""
    combinations: tuple[Failing, ...] = ()
    """Pairs of values at which nothing worked, although each works elsewhere."""
    quiet: tuple[str, ...] = ()
    """Genes with several values of which nothing is known."""
    single: tuple[str, ...] = ()
    """Genes that the study gives one value."""
    slow: int = 0
    """How many of `timed` are of slow trials, of which a part of the time is known."""
    partial: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """Gene → its values that were never timed to the end: a model knows of them what was seen of slow trials alone."""

    @property
    def trusted(self) -> bool:
        """Whether the forest explains enough of trials it has not seen to rank genes by it."""
        return self.explained is not None and self.explained >= TRUSTED

    def having(self, kind: Kind) -> list[GeneFinding]:
        """Return the findings of a kind; decisive genes by their share, the largest first, then by their effect."""
        found = [finding for finding in self.findings if finding.kind == kind]
        if kind == "decisive":
            found.sort(key=lambda f: (-self._shares.get(f.gene, 0.0), -f.effect))
        return found

    def share(self, gene: str) -> str:
        """Return a gene's share of what decides, with its interval, as text; empty where the forest does not tell it.

        A gene that is decisive by its pairs may well have no share: a few per cent are nothing beside what another gene
        decides over all trials, and its pairs say it more exactly.
        """
        if gene not in self._shares:
            return ""
        low, high = self.effects[gene].share_ci95
        return f"{100 * self._shares[gene]:.0f} % [{100 * low:.0f} %, {100 * high:.0f} %] of what decides"

    @property
    def _shares(self) -> dict[str, float]:
        return {gene: effect.share for gene, effect in self.effects.items() if self.trusted and decides(effect)}

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
            "quiet": list(self.quiet),
            "single": list(self.single),
        }


def genes_report(reader: Reader, record: StudyRecord) -> GenesReport:
    """Return what a recorded study learned of its genes.

    Raises:
        StudyError: it has no finished trial.
    """
    trials = list(reader.trials(record))
    if not trials:
        raise StudyError(f"study {record.name} has no finished trial to learn from; search it first")
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
    """Return what trials tell of a space's genes.

    Args:
        study: a name for the report.
        space: the genes.
        trials: what was tried.
        predicted: whether times are predicted.
        effort: what the forest may cost.
        fit: fits forests, here or in another process.
    """
    timed = [
        (t, v) for t in trials if t.outcome is not Outcome.DUPLICATE and (v := objective(t.evaluation)) is not None
    ]
    configs, values = [trial.config for trial, _ in timed], [value for _, value in timed]
    # Beside the rest, which needs no model: where another process fits it this one only waits.
    with ThreadPoolExecutor(1) as beside:
        fitted = beside.submit(importance, space, configs, values, effort=effort, fit=fit)
        findings = list(learned(space.genes, trials))
        barred = {finding.gene for finding in findings if finding.kind in ("locked", "barred")}
        combinations = tuple(failing_pairs(space, trials, barred))
        model = fitted.result()
    effects = model.effects if model else {}
    in_full = [trial.config for trial in trials if trial.outcome in (Outcome.MEASURED, Outcome.DUPLICATE)]
    partial = {gene: _lacking(gene, effect.relative, in_full) for gene, effect in effects.items()}
    told = {finding.gene for finding in findings if finding.kind in ("dead", "decisive")}
    if model and model.explained >= TRUSTED:
        findings += [
            model_finding(gene, e, len(timed), partial[gene])
            for gene, e in effects.items()
            if gene not in told and decides(e)
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
    """Return a gene's values that no configuration has; of many the first few mostly have them all."""
    left = dict.fromkeys(values)
    for config in configs:
        left.pop(config[gene], None)
        if not left:
            break
    return tuple(left)


def decides(effect: GeneEffect) -> bool:
    """Tell whether a forest's intervals leave no doubt that a gene moves the time."""
    return effect.share_ci95[0] > DECISIVE_SHARE and effect.ratio_ci95[0] > DECISIVE_RATIO


def model_finding(gene: str, effect: GeneEffect, trials: int, partial: Sequence[Value]) -> GeneFinding:
    """Return what a model says of a gene that decides.

    Args:
        gene: its name.
        effect: by the model.
        trials: that the model knows.
        partial: values of it that were never timed to the end.
    """
    worst = max(effect.relative, key=lambda value: effect.relative[value])
    low, high = (bound - 1 for bound in effect.ratio_ci95)
    text = (
        f"{gene}: {worst}{', never timed to the end,' if worst in partial else ''} takes "
        f"{100 * (effect.ratio - 1):.1f} % longer than {effect.best} "
        f"[{100 * low:.1f} %, {100 * high:.1f} %] in a model of {trials} trials"
    )
    return GeneFinding(gene, "decisive", text, trials, effect.ratio - 1, (low, high))
