"""Findings about genes: genes without effect, values or pairs that never work, and genes that decide the time.

The findings come from recorded trials, mostly from *pairs*: two trials that differ in one gene only. The sampler uses
the same evidence during the search (`evokern.samplers.evo`).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from evokern.declaration.genes import Gene, Value
from evokern.declaration.space import Space
from evokern.measurement.statistics import student_quantile
from evokern.samplers.genome import Genome, InertGenes, Rows, single_gene_pairs
from evokern.study.trial import Evaluation, Outcome, Trial

CHANCE = 0.01
"""Significance level of a failing pair, for all tested pairs together."""
LEAST_PAIR_FAILURES = 5
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
            if works[column][level] and failed[level] >= LEAST_PAIR_FAILURES:
                names.append((gene.name, value))
                has_columns.append((rows[:, column] == level) & active)
    has = np.array(has_columns, dtype=np.float32).reshape(len(names), len(tried)).T
    together, passed = np.triu(has.T @ has, 1), np.triu(has[right].T @ has[right], 1)
    limit = CHANCE / max(int(np.count_nonzero(together)), 1)
    groups: dict[tuple[tuple[str, Value], ...], list[Trial]] = {}
    # Sort by first occurrence, so that ties below have a fixed order.
    pairs = np.argwhere((together >= LEAST_PAIR_FAILURES) & (passed == 0)).tolist()
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


TIMED = frozenset({Outcome.MEASURED, Outcome.DUPLICATE})
"""Outcomes with a comparable time."""
FAILED = frozenset({Outcome.WRONG, Outcome.CRASHED, Outcome.HUNG, Outcome.OVER_RESOURCES, Outcome.COMPILE_ERROR})
"""Outcomes of candidates that do not work."""
NEGLIGIBLE = 0.01
"""Relative change of the time below which a gene counts as dead; about the noise of a repeated measurement."""
LEAST_PAIRS = 3
"""Minimum number of pairs for an interval."""
LEAST_FAILURES = 5
"""Minimum number of failures for a value without a success to count as barred."""

Kind = Literal["dead", "locked", "barred", "decisive"]


@dataclass(frozen=True)
class GeneFinding:
    """A finding about a gene."""

    gene: str
    """The gene's name."""
    kind: Kind
    """`dead`: no effect. `locked`: one value works. `barred`: a value never works. `decisive`: affects the time."""
    text: str
    """The finding as text."""
    trials: int
    """Number of trials or pairs that support the finding."""
    effect: float = 0.0
    """Relative change of the time: 0.27 for 27 % slower than the best value; 0 for findings not about time."""
    interval: tuple[float, float] | None = None
    """95 % confidence interval of the effect."""

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as a JSON-serialisable dictionary."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def gene_findings(genes: Sequence[Gene], trials: Sequence[Trial]) -> tuple[GeneFinding, ...]:
    """Return the findings about genes: dead, locked, barred, then decisive genes by effect.

    Args:
        genes: the study's genes.
        trials: the study's trials; infeasible ones are ignored.
    """
    genome = Genome(Space(tuple(genes)))
    ran = [trial for trial in trials if trial.outcome in TIMED | FAILED]
    judged = [trial for trial in trials if trial.outcome in FAILED or trial.evaluation.passed_gate]
    rows = genome.rows(trial.config for trial in ran)
    dead = list(_dead_in_code(genome, ran, rows))
    silent = {finding.gene for finding in dead}
    effects = [effect for effect in _effects(genome, ran, rows) if effect.gene not in silent]
    dead += [effect for effect in effects if effect.kind == "dead"]
    decisive = sorted((e for e in effects if e.kind == "decisive"), key=lambda e: -e.effect)
    stuck = sorted(_locked_and_barred(genes, judged), key=lambda finding: finding.kind != "locked")
    return (*dead, *stuck, *decisive)


def _dead_in_code(genome: Genome, ran: Sequence[Trial], rows: Rows) -> Iterator[GeneFinding]:
    codes: dict[str | None, int] = {None: -1}
    prints = np.array(
        [codes.setdefault(trial.evaluation.fingerprint, len(codes)) for trial in ran], dtype=np.int64
    )  # fmt: skip
    for inert in InertGenes(genome, rows, prints).genes:
        gene, where = genome.genes[inert.gene], ""
        if inert.context is not None:
            other = genome.genes[inert.context[0]]
            where = f" while {other.name}={other.values[inert.context[1]]}"
        text = f"{gene.name} does not change the machine code{where}: equal in {inert.pairs} of {inert.pairs} pairs"
        yield GeneFinding(gene.name, "dead", text, inert.pairs)


def _effects(genome: Genome, ran: Sequence[Trial], rows: Rows) -> Iterator[GeneFinding]:
    timed = np.array([trial.outcome in TIMED and trial.log_time is not None for trial in ran], dtype=bool)
    values = np.array([trial.log_time for trial, t in zip(ran, timed, strict=True) if t], dtype=float)
    rows = rows[timed]
    for index, gene in enumerate(genome.genes):
        pairs = single_gene_pairs(genome, rows, index)
        if len(pairs) < LEAST_PAIRS:
            continue
        found = _largest_effect(gene, rows[:, index], values, pairs)
        if found is None:
            spread = values[pairs[:, 1]] - values[pairs[:, 0]]
            low, high = _interval(spread)
            if max(abs(low), abs(high)) < NEGLIGIBLE:
                text = f"{gene.name} does not change the time: {_percent(spread.mean())} [{_percent(low)}, "
                text += f"{_percent(high)}] over {len(pairs)} pairs"
                yield GeneFinding(gene.name, "dead", text, len(pairs), float(spread.mean()), (low, high))
        else:
            yield found


def _largest_effect(
    gene: Gene, column: npt.NDArray[np.int16], values: npt.NDArray[np.float64], pairs: npt.NDArray[np.intp]
) -> GeneFinding | None:
    """Return the largest slowdown between two values of a gene whose interval excludes negligible effects."""
    one, two = pairs.T
    swapped = column[one] > column[two]
    one, two = np.where(swapped, two, one), np.where(swapped, one, two)
    kinds = column[one].astype(np.int64) * len(gene.values) + column[two]
    order = np.argsort(kinds, kind="stable")
    differences = (values[two] - values[one])[order]
    best: GeneFinding | None = None
    for spread, kind in zip(*_grouped(differences, kinds[order]), strict=True):
        if len(spread) < LEAST_PAIRS:
            continue
        a, b = divmod(kind, len(gene.values))
        mean = float(spread.mean())
        fast, slow = (a, b) if mean >= 0 else (b, a)
        low, high = sorted(math.copysign(1.0, mean) * bound for bound in _interval(spread))
        effect, bounds = math.expm1(abs(mean)), (math.expm1(low), math.expm1(high))
        if bounds[0] <= NEGLIGIBLE or (best is not None and effect <= best.effect):
            continue
        text = (
            f"{gene.name}: {gene.values[slow]} takes {_percent(abs(mean))} longer than {gene.values[fast]} "
            f"[{_percent(low)}, {_percent(high)}] over {len(spread)} pairs that differ only in this gene"
        )
        best = GeneFinding(gene.name, "decisive", text, len(spread), effect, bounds)
    return best


def _grouped(
    values: npt.NDArray[np.float64], kinds: npt.NDArray[np.int64]
) -> tuple[list[npt.NDArray[np.float64]], list[int]]:
    """Return the values grouped by kind, and the kinds; `kinds` must be sorted."""
    begins = np.flatnonzero(np.diff(kinds, prepend=-1))
    return np.split(values, begins[1:]), kinds[begins].tolist()


def _locked_and_barred(genes: Sequence[Gene], judged: Sequence[Trial]) -> Iterator[GeneFinding]:
    right: dict[str, Counter[Value]] = {gene.name: Counter() for gene in genes}
    failed: dict[str, dict[Value, list[Trial]]] = {gene.name: defaultdict(list) for gene in genes}
    for trial in judged:
        wrong = trial.outcome in FAILED
        for name, value in trial.config.items():
            if name not in right:
                continue
            if wrong:
                failed[name][value].append(trial)
            else:
                right[name][value] += 1
    for gene in genes:
        works, fails = right[gene.name], failed[gene.name]
        barred = [value for value in gene.values if len(fails[value]) >= LEAST_FAILURES and not works[value]]
        if not barred:
            continue
        failures = [trial for value in barred for trial in fails[value]]
        why = _commonest_reason(failures)
        if len(works) == 1 and len(barred) + 1 >= sum(1 for value in gene.values if works[value] or fails[value]):
            (value,) = works
            others = f"{len(failures)} of {len(failures)} trials with other values"
            text = f"{gene.name} works only with {value}: {others} {why}"
            yield GeneFinding(gene.name, "locked", text, len(failures))
            continue
        for value in barred:
            count = len(fails[value])
            text = f"{gene.name}={value} never works: {count} of {count} {_commonest_reason(fails[value])}"
            yield GeneFinding(gene.name, "barred", text, count)


_VERB: Mapping[Outcome, str] = {
    Outcome.WRONG: "gave wrong results",
    Outcome.CRASHED: "crashed",
    Outcome.HUNG: "hung",
    Outcome.OVER_RESOURCES: "exceeded resource limits",
    Outcome.COMPILE_ERROR: "did not compile",
}


def _commonest_reason(failures: Sequence[Trial]) -> str:
    outcome, count = Counter(trial.outcome for trial in failures).most_common(1)[0]
    reason, _ = Counter(failure_reason(t.evaluation) for t in failures if t.outcome is outcome).most_common(1)[0]
    mostly = "" if count == len(failures) else "failed, mostly "
    return f"{mostly}{_VERB[outcome]}, {reason}"


def _interval(differences: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % confidence interval of a mean by Student's t."""
    half = student_quantile(len(differences) - 1) * float(differences.std(ddof=1)) / math.sqrt(len(differences))
    mean = float(differences.mean())
    return mean - half, mean + half


def _percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):.1f} %"
