"""Results for each value of each varied gene, and the values to try next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
import numpy.typing as npt

from evokern.analysis.control_verdict import TIE
from evokern.declaration.genes import Gene, Value
from evokern.declaration.space import Space
from evokern.report.facts import Facts
from evokern.report.plot_marks import outcome_words
from evokern.report.tables import clipped
from evokern.samplers.genome import Genome
from evokern.study.trial import Outcome
from evokern.wording import count_noun, counts, microseconds

REFUTED_OUTCOME = "refuted"
"""Name of refuted trials in the page's outcome filter."""
MAX_REASON_LENGTH = 70
"""Maximum length of a failure reason in a line, in characters."""
_OUTCOMES_WITH_COLUMNS = (Outcome.MEASURED, Outcome.DUPLICATE, Outcome.SLOW)
"""Outcomes with a column of their own."""
Places = npt.NDArray[np.intp]
"""Array of trial indices within the study."""


@dataclass(frozen=True)
class LinkedText:
    """Text with an optional link to trials."""

    words: str
    """Text that is shown."""
    link: str
    """URL fragment that the page's script handles; empty for no link."""


@dataclass(frozen=True)
class ValueRow:
    """Results for one value of one gene."""

    value: str
    """Value of the gene."""
    chosen: bool
    """Whether the champion has this value."""
    trials: LinkedText
    """Number of trials with this value, linked to them."""
    without_effect: int
    """Number of these trials in which another choice disables the gene."""
    worked: int
    """Number of correct, timed trials that were not refuted, including duplicate programs."""
    slow: LinkedText | None
    """Number of trials whose timing was stopped early, or None if there are none."""
    failed: tuple[LinkedText, ...]
    """Failed trials by outcome, each with an example reason."""
    best: LinkedText | None
    """Time of the fastest trial, or the partial time of a slow one, linked to that trial."""
    comparison: LinkedText
    """Comparison with the champion: time, and number of genes in which the best or closest trial differs."""
    note: str
    """Why the value is infeasible for the champion or was never fairly compared; may be empty."""


@dataclass(frozen=True)
class RangeEnd:
    """A numeric gene for which the champion uses the largest or smallest value."""

    gene: str
    """Name of the gene."""
    value: int
    """Value of the champion."""
    next_value: int
    """Next value outside the current range."""
    beyond: str
    """Side on which the range ends: `above` or `below`."""
    words: str
    """The champion's value and the gene's other values, as text."""
    why: str
    """Why the champion cannot use the next value; empty if it can or if that is unknown."""
    last_times: str
    """Best times with the last two values if the last one is faster; otherwise empty."""


def link_to(gene: str, value: Value, outcome: str = "") -> str:
    """Return the URL fragment for the trials with a gene's value, optionally limited to one outcome."""
    ended = {"outcome": outcome} if outcome else {}
    return f"#{urlencode({'gene': gene, 'value': value, **ended, 'at': 'trials'})}"


def ordered(values: Iterable[Value]) -> list[Value]:
    """Return numbers sorted by size, and names in their declared order."""
    listed = list(values)
    return sorted(listed) if all(isinstance(value, int | float) for value in listed) else listed


def important_genes(facts: Facts) -> list[str]:
    """Return the genes with the greatest effect on the time according to the model, greatest first.

    A gene is omitted if the best trials with each of its values are equally fast.
    """
    effects = facts.learned.effects
    found = []
    for name in sorted(effects, key=lambda name: -effects[name].share):
        timed = [one.best_us for one in facts.values[name] if one.best_us is not None]
        if len(timed) < 2 or max(timed) > min(timed) * (1 + TIE):
            found.append(name)
    return found


def genes_with_ablation_cost(facts: Facts) -> list[str]:
    """Return the genes whose reset made the champion slower, largest slowdown first."""
    if facts.best is None or facts.ablation is None or facts.ablation.trial != facts.best.number:
        return []
    rows = [row for row in facts.ablation.result["alone"] if row["gene"] and row["time_us"] and row["ratio"] > 1 + TIE]
    return [row["gene"] for row in sorted(rows, key=lambda row: -float(row["ratio"]))]


def decisive_choice(facts: Facts) -> tuple[str, Value] | None:
    """Return the most important gene and the champion's value, according to an ablation or else to the model.

    Returns:
        Name and value of the gene, or None without a champion or without data.
    """
    best = facts.best
    if best is None:
        return None
    space = Space(facts.record.genes)
    active = {gene.name for gene in space.genes if space.active(gene, best.config)}
    worst = next((name for name in genes_with_ablation_cost(facts) if name in active), "")
    if worst:
        return worst, best.config[worst]
    most = next((name for name in important_genes(facts) if name in active), "")
    return (most, best.config[most]) if most else None


class GeneValues:
    """Results of a study for each value of its genes."""

    def __init__(self, facts: Facts) -> None:
        """Group the trials by gene value.

        Args:
            facts: Facts about the study.
        """
        self._facts = facts
        self._space = Space(facts.record.genes)
        self._decisive = decisive_choice(facts)
        self._together = "=".join(map(str, self._decisive or ()))
        self._predicted = facts.record.predicted
        ended = [
            REFUTED_OUTCOME if trial.number in facts.refuted else self._words(trial.outcome) for trial in facts.trials
        ]
        self._ends = list(
            dict.fromkeys([*(self._words(one) for one in _OUTCOMES_WITH_COLUMNS), REFUTED_OUTCOME, *ended])
        )
        """Outcome names in the page's filter; names with a column of their own come first."""
        self._code = code = {words: place for place, words in enumerate(self._ends)}
        self._end_of = np.array([code[words] for words in ended], dtype=np.intp)
        """Index of each trial's outcome in `_ends`."""
        # For a slow trial, the partial time is more useful than a longer complete time of another trial.
        timed = (t.outcome is Outcome.MEASURED or (t.outcome is Outcome.SLOW and t.evaluation.passed_gate)
                 for t in facts.trials)  # fmt: skip
        times = (
            (t.evaluation.time_us or math.inf) if known else math.inf
            for t, known in zip(facts.trials, timed, strict=True)
        )
        self._times_us = np.array(list(times), dtype=float)
        """Known time of each trial in µs; infinite if unknown or refuted."""
        self._times_us[self._end_of == code[REFUTED_OUTCOME]] = math.inf
        self._column = {gene.name: facts.levels[:, column] for column, gene in enumerate(self._space.genes)}
        """Value index of each trial, by gene name."""
        self._having = {
            (gene.name, value): np.flatnonzero(self._column[gene.name] == level)
            for gene in self._space.genes
            for level, value in enumerate(gene.values)
        }
        """Indices of the trials with a value, by gene name and value. A disabled gene has its default value."""
        self._distance = np.zeros(len(facts.trials), dtype=np.intp)
        """Number of genes in which each trial differs from the champion; zeros without a champion."""
        if facts.best is not None:
            self._distance = (facts.levels != Genome(self._space).rows([facts.best.config])).sum(axis=1)

    def _words(self, outcome: Outcome) -> str:
        return outcome_words(outcome, self._predicted)

    def genes(self) -> list[dict[str, Any]]:
        """Return every gene with several tried values, and one row for each value."""
        return [
            {
                "name": gene.name,
                "doc": gene.doc,
                "inactive": self._without_effect(gene),
                "lines": [self._line(gene, value) for value in ordered(gene.values)],
            }
            for gene in self._space.genes
            if sum(bool(self._having[gene.name, value].size) for value in gene.values) > 1
        ]

    def others(self, gene: Gene, value: Value) -> int:
        """Return the number of other genes in which the fastest trial with a given value differs from the champion.

        Only completely timed trials count.

        Args:
            gene: A gene.
            value: One of the gene's values.
        """
        best, trials = self._facts.best, self._facts.trials
        timed = [
            place
            for place in self._having[gene.name, value]
            if trials[place].outcome is Outcome.MEASURED and trials[place].number not in self._facts.refuted
        ]
        if best is None or not timed:
            return 0
        return int(self._distance[min(timed, key=self._times_us.__getitem__)]) - (value != best.config[gene.name])

    def edges(self) -> list[RangeEnd]:
        """Return the genes for which the champion uses the largest or smallest value, most important first."""
        best = self._facts.best
        # Extending a gene that changes no machine code is useless.
        dead = {finding.gene for finding in self._facts.learned.findings if finding.kind == "dead"}
        found = []
        for gene in (one for one in self._of_champion() if one.name not in dead):
            assert best is not None
            chosen = best.config[gene.name]
            farther = gene.beyond(chosen)
            if farther is None:
                continue
            assert isinstance(chosen, int)
            why = self._forbidden(gene, farther)
            found.append(RangeEnd(gene.name, chosen, farther, *_edge(gene, chosen), why, self._falling(gene, chosen)))
        return found

    def _of_champion(self) -> list[Gene]:
        """Return the champion's active genes, measured effects first, then modelled effects."""
        best = self._facts.best
        if best is None:
            return []
        effects = self._facts.learned.effects
        order = [*genes_with_ablation_cost(self._facts), *sorted(effects, key=lambda name: -effects[name].share)]
        genes = [gene for gene in self._space.genes if self._space.active(gene, best.config)]
        return sorted(genes, key=lambda gene: order.index(gene.name) if gene.name in order else len(order))

    def _falling(self, gene: Gene, chosen: Value) -> str:
        """Return the best times with the last two values if the last one is faster."""
        values = ordered(gene.values)
        neighbour = values[-2] if chosen == values[-1] else values[1]
        near_us, end_us = self._fastest_us(gene, neighbour), self._fastest_us(gene, chosen)
        if not math.isfinite(near_us) or near_us <= end_us * (1 + TIE):
            return ""
        unit = self._facts.unit
        return f"best {microseconds(near_us)} {unit} with {neighbour}, {microseconds(end_us)} {unit} with {chosen}"

    def _fastest_us(self, gene: Gene, value: Value) -> float:
        """Return the shortest measured time with a value while its gene is active, in µs; infinite if unknown."""
        mine = self._having[gene.name, value]
        mine = mine[self._effective(gene, mine) & (self._end_of[mine] == self._code[self._words(Outcome.MEASURED)])]
        return float(self._times_us[mine].min(initial=math.inf))

    def _without_effect(self, gene: Gene) -> str:
        """Return the champion's choice that disables a gene, or an empty string if the gene is active."""
        chosen = self._facts.best.config if self._facts.best else {}
        return next((f"{one}={chosen[one]}" for one, of in gene.when.items() if chosen and chosen[one] not in of), "")

    def _line(self, gene: Gene, value: Value) -> ValueRow:
        best, name = self._facts.best, gene.name
        mine = self._having[name, value]
        ends = self._end_of[mine]
        counted = dict(zip(self._ends, np.bincount(ends, minlength=len(self._ends)).tolist(), strict=True))
        timed, same, slow = (counted.pop(self._words(one)) for one in _OUTCOMES_WITH_COLUMNS)
        refuted = counted.pop(REFUTED_OUTCOME)
        # The first trial with an outcome is its example. Ties are ordered by the first trial.
        firsts = {words: int(mine[np.argmax(ends == self._code[words])]) for words, of in counted.items() if of}
        failed = []
        for words in sorted(firsts, key=lambda words: (-counted[words], firsts[words])):
            why = clipped(self._facts.trials[firsts[words]].evaluation.reason, MAX_REASON_LENGTH)
            failed.append(LinkedText(f"{counted[words]} {words}: {why}", link_to(name, value, words)))
        if refuted:
            first = self._facts.trials[int(mine[np.argmax(ends == self._code[REFUTED_OUTCOME])])]
            why = clipped(self._facts.refuted[first.number], MAX_REASON_LENGTH)
            failed.append(
                LinkedText(f"{refuted} refuted by verification: {why}", link_to(name, value, REFUTED_OUTCOME))
            )
        known = self._times_us[mine]
        place = int(mine[np.argmin(known)]) if np.isfinite(known).any() else None
        fastest = None if place is None else self._facts.trials[place]
        stopped = "" if fastest is None or fastest.outcome is Outcome.MEASURED else " (slow)"
        chosen = best is not None and best.config[name] == value
        forbidden = self._forbidden(gene, value)
        remarks = (
            forbidden and f"infeasible as the champion's only change: {forbidden}{self._together_with(gene, value)}",
            f"never tried with {self._together}, so there is no fair comparison"
            if mine.size and self._never_with_decisive(gene, value)
            else "",
        )
        return ValueRow(
            value=str(value),
            chosen=chosen,
            trials=LinkedText(str(mine.size), link_to(name, value) if mine.size else ""),
            # A disabled gene has its default value.
            without_effect=self._disabled_trials(gene) if value == gene.default else 0,
            worked=timed + same,
            slow=LinkedText(str(slow), link_to(name, value, self._words(Outcome.SLOW))) if slow else None,
            failed=tuple(failed),
            best=LinkedText(f"{microseconds(fastest.evaluation.time_us)}{stopped}", f"#trial={fastest.number}")
            if fastest
            else None,
            comparison=self._compared(gene, value, place, chosen=chosen)
            or self._without_time(mine, slow, same=bool(same)),
            note="; ".join(filter(None, remarks)),
        )

    def _forbidden(self, gene: Gene, value: Value) -> str:
        """Return why changing only this gene of the champion is infeasible; empty if it is feasible or unknown."""
        return str((self._facts.neighbours or {}).get((gene.name, value), {}).get("reason", ""))

    def _together_with(self, gene: Gene, value: Value) -> str:
        """Return the second changes that make a value feasible for the champion, as the end of a sentence.

        A change of the decisive choice is listed only if there is no other.
        """
        found: dict[str, Value] = (self._facts.neighbours or {}).get((gene.name, value), {}).get("together", {})
        decisive = self._decisive[0] if self._decisive else ""
        partners = []
        for other, changed in ({name: of for name, of in found.items() if name != decisive} or found).items():
            having = self._having[gene.name, value], self._having[other, changed]
            both = np.intersect1d(*having, assume_unique=True).size
            tried = f"tried in {count_noun(both, 'trial')}" if both else "not tried"
            partners.append(f"{other}={changed} ({tried})")
        return f"; feasible together with {' or '.join(partners)}" if partners else ""

    def never_timed(self) -> list[LinkedText]:
        """Return the values that were tried but never timed, each with the outcomes of its trials."""
        found = []
        in_full = [self._code[self._words(one)] for one in (Outcome.MEASURED, Outcome.DUPLICATE)]
        for gene in self._space.genes:
            for value in ordered(gene.values):
                ends = self._end_of[self._having[gene.name, value]]
                if ends.size and not np.isin(ends, in_full).any():
                    outcomes = counts(Counter(self._ends[end] for end in ends.tolist()))
                    found.append(LinkedText(f"{gene.name}={value} ({outcomes})", link_to(gene.name, value)))
        return found

    def never_tried(self) -> list[str]:
        """Return the values that occur in no trial."""
        return [
            f"{gene.name}={value}"
            for gene in self._space.genes
            for value in ordered(gene.values)
            if not self._having[gene.name, value].size
        ]

    def _disabled_trials(self, gene: Gene) -> int:
        """Return the number of trials in which another choice disables a gene."""
        return int(np.count_nonzero(~self._effective(gene, self._having[gene.name, gene.default])))

    def _effective(self, gene: Gene, places: Places) -> npt.NDArray[np.bool_]:
        """Return a mask of the trials in which a gene is active."""
        active = np.ones(len(places), dtype=bool)
        for other, allowed in gene.when.items():
            matter = [self._space.gene(other).values.index(value) for value in allowed]
            active &= np.isin(self._column[other][places], matter)
        return active

    def _compared(self, gene: Gene, value: Value, place: int | None, *, chosen: bool) -> LinkedText | None:
        """Return the comparison of a value's best trial with the champion, or None without either.

        Args:
            gene: A gene.
            value: One of the gene's values.
            place: Index of the best trial with this value; None if none was timed.
            chosen: Whether the champion has this value.
        """
        best = self._facts.best
        if best is None or (place is None and not chosen):
            return None
        if chosen or place is None or self._facts.trials[place].number == best.number:
            return LinkedText("the champion's value", f"#trial={best.number}")
        distance = int(self._distance[place])
        alone = distance == 1 and value != best.config[gene.name]
        slower = self._slower(place)
        differs = f"best trial is {slower} and differs" if slower else "best trial differs"
        words = f"{differs} from the champion only in this gene" if alone else _differs_in(differs, distance)
        return LinkedText(words, f"#trial={self._facts.trials[place].number}")

    def _slower(self, place: int) -> str:
        """Return the comparison of a trial's time with the champion's, such as `5.5 % slower in the search`."""
        champion_us, trial = self._facts.champion_search_us, self._facts.trials[place]
        if not champion_us or trial.outcome is not Outcome.MEASURED:
            return ""
        more = (trial.evaluation.time_us or 0.0) / champion_us - 1
        if abs(more) < 5e-4:
            return "as fast in the search"
        return f"{100 * abs(more):.1f} % {'slower' if more > 0 else 'faster'} in the search"

    def _without_time(self, mine: Places, slow: int, *, same: bool) -> LinkedText:
        """Return a description of a value without a time of its own."""
        if not mine.size:
            return LinkedText("not tried", "")
        if same:
            return LinkedText("tried only as a duplicate program", "")
        if self._facts.best is None:
            return LinkedText("no champion to compare with", "")
        nearest = int(mine[np.argmin(self._distance[mine])])
        kind = "slow or failed" if 0 < slow < mine.size else "slow" if slow else "failed"
        one = f"{kind} in its only trial, which differs"
        all_of_them = f"{kind} in all {mine.size} trials; the closest differs"
        words = _differs_in(one if mine.size == 1 else all_of_them, int(self._distance[nearest]))
        return LinkedText(words, f"#trial={self._facts.trials[nearest].number}")

    def _never_with_decisive(self, gene: Gene, value: Value) -> bool:
        """Return whether an active gene's value was never tried with the decisive choice."""
        best = self._facts.best
        if self._decisive is None or best is None or gene.name == self._decisive[0]:
            return False
        name, chosen = self._decisive
        tried = np.intersect1d(self._having[gene.name, value], self._having[name, chosen], assume_unique=True)
        return not tried.size and self._space.active(gene, best.config)


def _differs_in(words: str, count: int) -> str:
    return f"{words} from the champion in {count_noun(count, 'gene')}"


def _edge(gene: Gene, chosen: Value) -> tuple[str, str]:
    """Return the side of the range that ends at the champion's value, and that value among its neighbours."""
    values = ordered(gene.values)
    side, end = ("above", "largest") if chosen == values[-1] else ("below", "smallest")
    return side, f"{gene.name}={chosen} (the {end} of {', '.join(map(str, values))})"
