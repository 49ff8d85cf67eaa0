"""What became of each value of each gene that was varied, and what is worth trying next."""

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
from evokern.report.marks import outcome_words
from evokern.report.tables import clipped
from evokern.samplers.genome import Genome
from evokern.study.trial import Outcome
from evokern.wording import counts, microseconds, several

ENDED_REFUTED = "refuted"
"""What the page's filter of outcomes calls trials that their verification refuted."""
FIRST_WORDS = 70
"""Characters of a failure's reason that a line shows."""
_TOLD_APART = (Outcome.MEASURED, Outcome.DUPLICATE, Outcome.SLOW)
"""Outcomes that a line tells in columns of their own."""
Places = npt.NDArray[np.intp]
"""Trials, by their places among all of a study."""


@dataclass(frozen=True)
class Linked:
    """Words that lead to trials."""

    words: str
    """What is said."""
    link: str
    """Address behind `#`, as the page's script reads it; empty for none."""


@dataclass(frozen=True)
class ValueLine:
    """One value of one gene."""

    value: str
    """The value."""
    chosen: bool
    """Whether it is the champion's."""
    trials: Linked
    """How many trials have it."""
    without_effect: int
    """Those of them in which another choice takes the gene's effect away."""
    worked: int
    """Trials that were right and timed, and that no verification refuted; the same program as another counts too."""
    slow: Linked | None
    """Trials that were not timed to the end; None for none."""
    failed: tuple[Linked, ...]
    """The others by outcome, each with the first words of a reason."""
    best: Linked | None
    """Time of the fastest that stands, of a slow one what was seen of it; leads to that trial."""
    told: Linked
    """What the champion is held against: in how many genes the best, or the nearest of those that failed, differs."""
    remark: str
    """Whether it was ever tried with the decisive choice."""


@dataclass(frozen=True)
class Edge:
    """A number of the champion's at an end of its gene's values, beyond which they could go on."""

    gene: str
    """The gene."""
    value: int
    """The champion's value."""
    farther: int
    """What would come next."""
    beyond: str
    """On which side that is: `beyond` the largest, or `below` the smallest."""
    words: str
    """The value among the gene's."""
    why: str
    """Why the champion could not take what would come next; empty where it could, or nobody knows."""
    falling: str
    """The fastest times with the last two values, where the end is faster; empty where it is not."""


def link_to(gene: str, value: Value, outcome: str = "") -> str:
    """Return the address of the trials with a gene's value, or of those among them that the page's filter calls so."""
    ended = {"outcome": outcome} if outcome else {}
    return f"#{urlencode({'gene': gene, 'value': value, **ended, 'at': 'trials'})}"


def ordered(values: Iterable[Value]) -> list[Value]:
    """Return values as they are read: numbers by size, names as they were declared."""
    listed = list(values)
    return sorted(listed) if all(isinstance(value, int | float) for value in listed) else listed


def deciding(facts: Facts) -> list[str]:
    """Return the genes that decide the time by the model, the first one most.

    A gene is left out where the best trials with each of its values take the same: what it does shows in none of them.
    """
    effects = facts.learned.effects
    found = []
    for name in sorted(effects, key=lambda name: -effects[name].share):
        timed = [one.best_us for one in facts.values[name] if one.best_us is not None]
        if len(timed) < 2 or max(timed) > min(timed) * (1 + TIE):
            found.append(name)
    return found


def costly(facts: Facts) -> list[str]:
    """Return the genes without whose choice the champion was slower when it was ablated, the dearest first."""
    if facts.best is None or facts.ablation is None or facts.ablation.trial != facts.best.number:
        return []
    rows = [row for row in facts.ablation.result["alone"] if row["gene"] and row["time_us"] and row["ratio"] > 1 + TIE]
    return [row["gene"] for row in sorted(rows, key=lambda row: -float(row["ratio"]))]


def decisive_choice(facts: Facts) -> tuple[str, Value] | None:
    """Return the champion's value of the gene that decides most: by its ablation, else by the model of the genes.

    Returns:
        The gene's name and the value; None without a champion, or where neither says so.
    """
    best = facts.best
    if best is None:
        return None
    space = Space(facts.record.genes)
    active = {gene.name for gene in space.genes if space.active(gene, best.config)}
    worst = next((name for name in costly(facts) if name in active), "")
    if worst:
        return worst, best.config[worst]
    most = next((name for name in deciding(facts) if name in active), "")
    return (most, best.config[most]) if most else None


class GeneValues:
    """What a study's trials say of each value of its genes."""

    def __init__(self, facts: Facts) -> None:
        """Sort the trials by the values that they have.

        Args:
            facts: the study.
        """
        self._facts = facts
        self._space = Space(facts.record.genes)
        self._decisive = decisive_choice(facts)
        self._together = "=".join(map(str, self._decisive or ()))
        self._predicted = facts.record.predicted
        ended = [
            ENDED_REFUTED if trial.number in facts.refuted else self._words(trial.outcome) for trial in facts.trials
        ]
        self._ends = list(dict.fromkeys([*(self._words(one) for one in _TOLD_APART), ENDED_REFUTED, *ended]))
        """How trials ended, by the words of the page's filter: those that are told apart from failures come first."""
        self._code = code = {words: place for place, words in enumerate(self._ends)}
        self._end_of = np.array([code[words] for words in ended], dtype=np.intp)
        """How each trial ended, its place in `_ends`."""
        # What was seen of a slow one before it was stopped says more than a worse time in full.
        timed = (t.outcome is Outcome.MEASURED or (t.outcome is Outcome.SLOW and t.evaluation.passed_gate)
                 for t in facts.trials)  # fmt: skip
        times = (
            (t.evaluation.time_us or math.inf) if known else math.inf
            for t, known in zip(facts.trials, timed, strict=True)
        )
        self._times_us = np.array(list(times), dtype=float)
        """What is known of each trial's time, µs; infinite for nothing, and of those that were refuted."""
        self._times_us[self._end_of == code[ENDED_REFUTED]] = math.inf
        self._column = {gene.name: facts.levels[:, column] for column, gene in enumerate(self._space.genes)}
        """Gene → which of its values each trial has."""
        self._having = {
            (gene.name, value): np.flatnonzero(self._column[gene.name] == level)
            for gene in self._space.genes
            for level, value in enumerate(gene.values)
        }
        """Gene and value → places of the trials that have it; a gene without effect has its default there."""
        self._apart = np.zeros(len(facts.trials), dtype=np.intp)
        """In how many genes each trial differs from the champion; zeros without one."""
        if facts.best is not None:
            self._apart = (facts.levels != Genome(self._space).rows([facts.best.config])).sum(axis=1)

    def _words(self, outcome: Outcome) -> str:
        return outcome_words(outcome, self._predicted)

    def genes(self) -> list[dict[str, Any]]:
        """Return every gene of which several values were tried, with a line for each of its values."""
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
        """Return in how many genes besides one the fastest trial timed in full with a value differs from the champion.

        Args:
            gene: the gene.
            value: its value.
        """
        best, trials = self._facts.best, self._facts.trials
        timed = [
            place
            for place in self._having[gene.name, value]
            if trials[place].outcome is Outcome.MEASURED and trials[place].number not in self._facts.refuted
        ]
        if best is None or not timed:
            return 0
        return int(self._apart[min(timed, key=self._times_us.__getitem__)]) - (value != best.config[gene.name])

    def edges(self) -> list[Edge]:
        """Return the genes whose values could go on beyond the champion's, those that decide most first."""
        best = self._facts.best
        # Beyond the end of a gene that changes no machine code there is nothing to find.
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
            found.append(Edge(gene.name, chosen, farther, *_edge(gene, chosen), why, self._falling(gene, chosen)))
        return found

    def _of_champion(self) -> list[Gene]:
        """Return the genes that have an effect in the champion: what was measured comes before what a model says."""
        best = self._facts.best
        if best is None:
            return []
        effects = self._facts.learned.effects
        order = [*costly(self._facts), *sorted(effects, key=lambda name: -effects[name].share)]
        genes = [gene for gene in self._space.genes if self._space.active(gene, best.config)]
        return sorted(genes, key=lambda gene: order.index(gene.name) if gene.name in order else len(order))

    def _falling(self, gene: Gene, chosen: Value) -> str:
        """Return the fastest times with the value beside the chosen one and with it, where it is faster."""
        values = ordered(gene.values)
        beside = values[-2] if chosen == values[-1] else values[1]
        near_us, end_us = self._fastest_us(gene, beside), self._fastest_us(gene, chosen)
        if not math.isfinite(near_us) or near_us <= end_us * (1 + TIE):
            return ""
        return f"fastest with {beside} {microseconds(near_us)}, with {chosen} {microseconds(end_us)} {self._facts.unit}"

    def _fastest_us(self, gene: Gene, value: Value) -> float:
        """Return the least time that was measured with a value where it has an effect, µs; infinite for none."""
        mine = self._having[gene.name, value]
        mine = mine[self._effective(gene, mine) & (self._end_of[mine] == self._code[self._words(Outcome.MEASURED)])]
        return float(self._times_us[mine].min(initial=math.inf))

    def _without_effect(self, gene: Gene) -> str:
        """Return which choice of the champion takes a gene's effect away; empty where it has one."""
        chosen = self._facts.best.config if self._facts.best else {}
        return next((f"{one}={chosen[one]}" for one, of in gene.when.items() if chosen and chosen[one] not in of), "")

    def _line(self, gene: Gene, value: Value) -> ValueLine:
        best, name = self._facts.best, gene.name
        mine = self._having[name, value]
        ends = self._end_of[mine]
        counted = dict(zip(self._ends, np.bincount(ends, minlength=len(self._ends)).tolist(), strict=True))
        timed, same, slow = (counted.pop(self._words(one)) for one in _TOLD_APART)
        refuted = counted.pop(ENDED_REFUTED)
        # The first of each kind is its example; of two that are as many the one that came first stands first.
        firsts = {words: int(mine[np.argmax(ends == self._code[words])]) for words, of in counted.items() if of}
        failed = []
        for words in sorted(firsts, key=lambda words: (-counted[words], firsts[words])):
            why = clipped(self._facts.trials[firsts[words]].evaluation.reason, FIRST_WORDS)
            failed.append(Linked(f"{counted[words]} {words}: {why}", link_to(name, value, words)))
        if refuted:
            first = self._facts.trials[int(mine[np.argmax(ends == self._code[ENDED_REFUTED])])]
            why = clipped(self._facts.refuted[first.number], FIRST_WORDS)
            failed.append(Linked(f"{refuted} refuted by verification: {why}", link_to(name, value, ENDED_REFUTED)))
        known = self._times_us[mine]
        place = int(mine[np.argmin(known)]) if np.isfinite(known).any() else None
        fastest = None if place is None else self._facts.trials[place]
        stopped = "" if fastest is None or fastest.outcome is Outcome.MEASURED else " (slow)"
        chosen = best is not None and best.config[name] == value
        forbidden = self._forbidden(gene, value)
        remarks = (
            forbidden and f"the champion cannot take it alone, {forbidden}{self._together_with(gene, value)}",
            f"never tried with {self._together}: no fair comparison"
            if mine.size and self._untried(gene, value)
            else "",
        )
        return ValueLine(
            value=str(value),
            chosen=chosen,
            trials=Linked(str(mine.size), link_to(name, value) if mine.size else ""),
            # A gene without effect is at its default.
            without_effect=self._idle(gene) if value == gene.default else 0,
            worked=timed + same,
            slow=Linked(str(slow), link_to(name, value, self._words(Outcome.SLOW))) if slow else None,
            failed=tuple(failed),
            best=Linked(f"{microseconds(fastest.evaluation.time_us)}{stopped}", f"#trial={fastest.number}")
            if fastest
            else None,
            told=self._compared(gene, value, place, chosen=chosen) or self._in_vain(mine, slow, same=bool(same)),
            remark="; ".join(filter(None, remarks)),
        )

    def _forbidden(self, gene: Gene, value: Value) -> str:
        """Return why the champion cannot take a value while all else stays; empty where it can, or nobody knows."""
        return str((self._facts.neighbours or {}).get((gene.name, value), {}).get("reason", ""))

    def _together_with(self, gene: Gene, value: Value) -> str:
        """Return with which second change the champion could take a value, to end a sentence; empty where with none.

        One that takes the choice back that decides most is told where there is no other.
        """
        found: dict[str, Value] = (self._facts.neighbours or {}).get((gene.name, value), {}).get("together", {})
        decisive = self._decisive[0] if self._decisive else ""
        told = []
        for other, changed in ({name: of for name, of in found.items() if name != decisive} or found).items():
            having = self._having[gene.name, value], self._having[other, changed]
            both = np.intersect1d(*having, assume_unique=True).size
            tried = f"{several(both, 'trial')} had both" if both else "untried"
            told.append(f"{other}={changed} ({tried})")
        return f"; it could with {' or '.join(told)}" if told else ""

    def never_timed(self) -> list[Linked]:
        """Return the values that were tried and never gave a time, each with what became of its trials."""
        found = []
        in_full = [self._code[self._words(one)] for one in (Outcome.MEASURED, Outcome.DUPLICATE)]
        for gene in self._space.genes:
            for value in ordered(gene.values):
                ends = self._end_of[self._having[gene.name, value]]
                if ends.size and not np.isin(ends, in_full).any():
                    told = counts(Counter(self._ends[end] for end in ends.tolist()))
                    found.append(Linked(f"{gene.name}={value} ({told})", link_to(gene.name, value)))
        return found

    def never_tried(self) -> list[str]:
        """Return the values that no trial has."""
        return [
            f"{gene.name}={value}"
            for gene in self._space.genes
            for value in ordered(gene.values)
            if not self._having[gene.name, value].size
        ]

    def _idle(self, gene: Gene) -> int:
        """Return in how many trials with a gene's default another choice takes its effect away."""
        return int(np.count_nonzero(~self._effective(gene, self._having[gene.name, gene.default])))

    def _effective(self, gene: Gene, places: Places) -> npt.NDArray[np.bool_]:
        """Return in which of some trials no other choice takes a gene's effect away."""
        active = np.ones(len(places), dtype=bool)
        for other, allowed in gene.when.items():
            matter = [self._space.gene(other).values.index(value) for value in allowed]
            active &= np.isin(self._column[other][places], matter)
        return active

    def _compared(self, gene: Gene, value: Value, place: int | None, *, chosen: bool) -> Linked | None:
        """Return in how many genes the best trial with a value differs from the champion; None without either.

        Args:
            gene: the gene.
            value: its value.
            place: of the best trial that has it; None where none has a time.
            chosen: whether the champion has it.
        """
        best = self._facts.best
        if best is None or (place is None and not chosen):
            return None
        if chosen or place is None or self._facts.trials[place].number == best.number:
            return Linked("the champion's", f"#trial={best.number}")
        apart = int(self._apart[place])
        alone = apart == 1 and value != best.config[gene.name]
        slower = f"its best{self._slower(place)} differs"
        words = f"{slower} from the champion in this gene alone" if alone else _apart(slower, apart)
        return Linked(words, f"#trial={self._facts.trials[place].number}")

    def _slower(self, place: int) -> str:
        """Return how much slower than the champion a trial is, `, 5.5 % slower,`; of a slow one that nobody knows."""
        champion_us, trial = self._facts.champion_search_us, self._facts.trials[place]
        if not champion_us or trial.outcome is not Outcome.MEASURED:
            return ""
        more = (trial.evaluation.time_us or 0.0) / champion_us - 1
        if abs(more) < 5e-4:
            return ", as fast,"
        return f", {100 * abs(more):.1f} % {'slower' if more > 0 else 'faster'} in the search,"

    def _in_vain(self, mine: Places, slow: int, *, same: bool) -> Linked:
        """Return what is known of a value without a time of its own: no more than how far away it was tried."""
        if not mine.size:
            return Linked("not tried", "")
        if same:
            return Linked("only as the same program as another trial", "")
        if self._facts.best is None:
            return Linked("there is no champion", "")
        nearest = int(mine[np.argmin(self._apart[mine])])
        kind = "slow or failed" if 0 < slow < mine.size else "slow" if slow else "failed"
        one = f"{kind} in 1 trial, which differs"
        all_of_them = f"{kind} in all {mine.size} trials; the nearest differs"
        words = _apart(one if mine.size == 1 else all_of_them, int(self._apart[nearest]))
        return Linked(words, f"#trial={self._facts.trials[nearest].number}")

    def _untried(self, gene: Gene, value: Value) -> bool:
        """Tell whether no trial has a value together with the decisive choice, although it has an effect there."""
        best = self._facts.best
        if self._decisive is None or best is None or gene.name == self._decisive[0]:
            return False
        name, chosen = self._decisive
        tried = np.intersect1d(self._having[gene.name, value], self._having[name, chosen], assume_unique=True)
        return not tried.size and self._space.active(gene, best.config)


def _apart(words: str, count: int) -> str:
    return f"{words} from the champion in {several(count, 'gene')}"


def _edge(gene: Gene, chosen: Value) -> tuple[str, str]:
    """Return at which end of its values a number stands, as `Edge` tells it: the side, and the value among them."""
    values = ordered(gene.values)
    side, end = ("beyond", "largest") if chosen == values[-1] else ("below", "smallest")
    return side, f"{gene.name}={chosen} (the {end} of {', '.join(map(str, values))})"
