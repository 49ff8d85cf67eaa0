"""What a user may do next, with what speaks for it: what follows from results first, what nobody tried as no advice."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from evokern.report.facts import Facts
from evokern.report.gene_values import GeneValues
from evokern.report.plots import percent
from evokern.report.space import STILL, gains

NAMED = 2
"""Genes whose values end too early that the first screen names."""


@dataclass(frozen=True)
class Advice:
    """Something to do."""

    short: str
    """For a sentence of the first screen."""
    words: str
    """With what speaks for it."""
    command: str = ""
    """The command that does it; empty where a file is to be changed, or nothing is to be done."""


def steps(facts: Facts, values: GeneValues) -> list[Advice]:
    """Return what to do next, in the order in which it pays; nothing without a champion, or while the search runs.

    Args:
        facts: the study.
        values: what its trials say of each value.
    """
    if facts.best is None or (facts.sessions and facts.sessions[-1].ended is None):
        return []
    name = shlex.quote(facts.record.name)
    found = []
    if facts.verification.verified is None:
        why = "nobody knows yet whether it is right outside the search's gate"
        found.append(Advice("verify it", f"Verify the champion: {why}.", f"evokern verify {name}"))
    if facts.record.predicted:
        start = shlex.quote(f"{facts.file}:{facts.record.name}")
        found.append(
            Advice(
                "measure it on the chip itself",
                "Measure on the chip itself: a model's times are good for order, no more. A search there may begin "
                "with what this one found.",
                f"evokern search {name} --device cuda:0 --db measured.db --warm-start {start}",
            )
        )
    return [*found, *_search_on(facts, name), *_more_values(values), *_profile(facts, name)]


def _search_on(facts: Facts, name: str) -> list[Advice]:
    gained = gains(facts)
    if gained is None:
        return []
    if gained.quarter >= STILL:
        brought = f"the last quarter of its trials brought {gained.words(gained.quarter)}"
        on = f"evokern search {name} --extend 30m"
        return [Advice(f"search on: {brought}", f"Search on: it was still improving, {brought}.", on)]
    brought = f"the last quarter of the trials brought {gained.words(gained.quarter)}"
    return [
        Advice(
            f"not a longer search of the same values ({brought})",
            f"A longer search of the same values promises little: {brought}.",
        )
    ]


def _more_values(values: GeneValues) -> list[Advice]:
    """Return which genes deserve more values: those that got faster up to the end at which the champion stands."""
    open_ = [edge for edge in values.edges() if edge.falling and not edge.why]
    if not open_:
        return []
    several = ", ".join(f"{edge.gene} {edge.beyond} {edge.value}" for edge in open_[:NAMED])
    told = "; ".join(f"{edge.gene} ({edge.falling}; {edge.farther} comes next)" for edge in open_)
    words = f"Allow more values in the kernel's space. Times fell up to the end of these genes: {told}."
    return [Advice(f"allow {several} in the kernel", words)]


def _profile(facts: Facts, name: str) -> list[Advice]:
    far = f": {percent(facts.limit.share)} of the chip's limit" if facts.limit else ""
    bound = str(facts.best.evaluation.evidence.get("bound", "")) if facts.best else ""
    told = f"{far}{f', {bound}' if far and bound else f': {bound}' if bound else ''}"
    return [
        Advice(
            f"profile it{told}",
            "Profile the champion: which lines it spends its time on, what bounds them, and which genes act on that"
            f"{told.replace(':', '; it is at', 1) if far else ''}.",
            f"evokern profile {name}",
        )
    ]


def sentence(found: list[Advice]) -> str:
    """Return the first screen's words on what to do next; empty for nothing."""
    return "; ".join(step.short for step in found)
