"""Detection of failing pairs: two gene values that never work together, although each works with other values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evokern.declaration.genes import Value
from evokern.declaration.space import Space
from evokern.samplers.genome import Genome
from evokern.study.trial import Evaluation, Outcome, Trial

CHANCE = 0.01
"""Significance level of a failing pair, for all tested pairs together."""
LEAST_FAILURES = 5
"""Minimum number of failures for a report."""

_OUTCOME_VERBS: Mapping[Outcome, str] = {
    Outcome.WRONG: "gave wrong results",
    Outcome.CRASHED: "crashed",
    Outcome.HUNG: "hung",
    Outcome.OVER_RESOURCES: "exceeded resource limits",
    Outcome.COMPILE_ERROR: "did not compile",
}


@dataclass(frozen=True)
class FailingPair:
    """A failing pair of gene values."""

    values: tuple[tuple[str, Value], ...]
    """The two genes and their values."""
    where: str
    """Values of other genes that make the pair active, such as `WARP_ROLES=loaders`; empty if always active."""
    count: int
    """Number of trials with these values; all of them failed."""
    outcome: Outcome
    """Most frequent outcome of these trials."""
    reason: str
    """Most frequent reason of this outcome."""
    reason_count: int
    """Number of trials with this reason."""

    @property
    def text(self) -> str:
        """The finding as text."""
        values = " with ".join(f"{name}={value}" for name, value in self.values)
        whole = self.reason_count == self.count
        how = f"{self.count} of {self.count}" if whole else f"0 of {self.count} trials passed, {self.reason_count}"
        how += f" {_OUTCOME_VERBS.get(self.outcome, self.outcome.value)}"
        where = f" (active with {self.where})" if self.where else ""
        return f"{values}{where} never works: {how}, {self.reason}"


def failing_pairs(space: Space, trials: Sequence[Trial], barred: Collection[str], most: int = 6) -> list[FailingPair]:
    """Return the failing pairs of gene values, sorted by the number of failed trials in descending order.

    A pair is reported if, at the overall failure rate, its number of failures has a probability below 1 %. The level
    is corrected for the number of pairs (Bonferroni).

    Args:
        space: the genes.
        trials: all trials.
        barred: genes with single values that already explain failures.
        most: largest number of pairs to return.
    """
    # Skip trials that neither passed nor failed: predicted slow (not checked), infeasible and lost (not run).
    unknown = (Outcome.INFEASIBLE, Outcome.SLOW, Outcome.LOST)
    tried = [t for t in trials if t.outcome not in unknown or t.evaluation.passed_gate]
    rows = Genome(space).rows(t.config for t in tried)
    right = np.array([t.evaluation.passed_gate for t in tried], dtype=bool)
    sizes = [len(gene.values) for gene in space.genes]
    works = [np.bincount(rows[right, column], minlength=size) > 0 for column, size in enumerate(sizes)]
    # Skip failures that a single value explains.
    kept = np.ones(len(tried), dtype=bool)
    for column, gene in enumerate(space.genes):
        if gene.name in barred:
            kept &= works[column][rows[:, column]]
    tried, rows, right = [t for t, keep in zip(tried, kept, strict=True) if keep], rows[kept], right[kept]
    rate = (np.count_nonzero(~right) + 1) / (len(tried) + 2)
    at = {gene.name: column for column, gene in enumerate(space.genes)}
    names: list[tuple[str, Value]] = []
    has_columns = []
    for column, gene in enumerate(space.genes):
        if len(gene.values) < 2:
            continue
        # Ignore the value of a gene in trials where the gene is inactive.
        active = np.ones(len(tried), dtype=bool)
        for other, allowed in gene.when.items():
            matter = [space.genes[at[other]].values.index(value) for value in allowed]
            active &= np.isin(rows[:, at[other]], matter)
        failed = np.bincount(rows[~right, column], minlength=len(gene.values))
        for level, value in enumerate(gene.values):
            if works[column][level] and failed[level] >= LEAST_FAILURES:
                names.append((gene.name, value))
                has_columns.append((rows[:, column] == level) & active)
    has = np.array(has_columns, dtype=np.float32).reshape(len(names), len(tried)).T
    together, passed = np.triu(has.T @ has, 1), np.triu(has[right].T @ has[right], 1)
    limit = CHANCE / max(int(np.count_nonzero(together)), 1)
    groups: dict[tuple[tuple[str, Value], ...], list[Trial]] = {}
    # Sort by first occurrence, so that ties below have a fixed order.
    pairs = np.argwhere((together >= LEAST_FAILURES) & (passed == 0)).tolist()
    members = {(one, two): np.flatnonzero(has[:, one] * has[:, two]).tolist() for one, two in pairs}
    for one, two in sorted(members, key=lambda pair: (members[pair][0], pair)):
        if rate ** len(members[one, two]) < limit:
            groups[names[one], names[two]] = [tried[row] for row in members[one, two]]
    found = [_failing(pair, _where(space, pair), group) for pair, group in groups.items()]
    distinct: list[FailingPair] = []
    distinct_members: list[set[int]] = []
    for failing in sorted(found, key=lambda failing: -failing.count):
        numbers = {trial.number for trial in groups[failing.values]}
        # Skip a pair if most of its trials belong to a larger pair.
        if all(len(numbers - other) > len(numbers) / 2 for other in distinct_members):
            distinct.append(failing)
            distinct_members.append(numbers)
    return distinct[:most]


def failure_reason(evaluation: Evaluation) -> str:
    """Return the reason of a failure without candidate-specific numbers, indices and addresses."""
    evidence = evaluation.evidence
    finding = evidence.get("finding")
    if isinstance(finding, dict) and finding.get("kind"):
        line = finding.get("line")
        return str(finding["kind"]).replace("_", " ") + (f" at line {line}" if line else "")
    if evidence.get("diagnosis"):
        return str(evidence["diagnosis"]).split("(")[0].strip()
    match evaluation.outcome:
        case Outcome.CRASHED:
            return str(evidence["error"]).removeprefix("CUDA_ERROR_").replace("_", " ").lower()
        case Outcome.WRONG:
            output, inputs = evidence.get("output"), evidence.get("input_set")
            where = f" of {output}" if output else ""
            return f"{evidence['check']}{where}" + (f", {inputs} inputs" if inputs else "")
        case Outcome.OVER_RESOURCES:
            return str(evidence["constraint"])
        case Outcome.HUNG:
            return "never ended"
        case _:
            return re.sub(r"^\S*?\((\d+)\)", r"line \1", evaluation.reason)


def _where(space: Space, pair: Sequence[tuple[str, Value]]) -> str:
    """Return the values of other genes with which a pair is active, or an empty string if it is always active."""
    named = [name for name, _ in pair]
    allowed: dict[str, list[Value]] = {}
    for name in named:
        for other, values in space.gene(name).when.items():
            allowed[other] = [value for value in allowed.get(other, values) if value in values]
    return " ".join(f"{other}={'|'.join(map(str, of))}" for other, of in allowed.items() if other not in named)


def _failing(values: tuple[tuple[str, Value], ...], where: str, members: Sequence[Trial]) -> FailingPair:
    (outcome, reason), count = Counter((t.outcome, failure_reason(t.evaluation)) for t in members).most_common(1)[0]
    return FailingPair(values, where, len(members), outcome, reason, count)
