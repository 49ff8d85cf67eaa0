"""What a user may do next, with what speaks for it: only what follows from results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.analysis.control_verdict import TIE
from evokern.declaration.genes import Gene, Value
from evokern.report.facts import Facts
from evokern.report.gene_values import GeneValues
from evokern.report.plots import percent
from evokern.report.space import gains
from evokern.store import db_option
from evokern.study.discovery import study_files
from evokern.wording import command, microseconds, several

FEW = 60
"""Evaluated trials of the sampler below which a search is not told to end, whatever the last ones brought: one of nine
that had found nothing but the default was 1.23 times as fast after 36."""
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
    """What to type, or to write into a file; empty where nothing is to be done."""


@dataclass(frozen=True)
class Simpler:
    """A candidate that an ablation found as fast as the champion, or faster, with fewer changes of the default."""

    words: str
    """Which one, and its time."""
    back: Mapping[str, Value]
    """The champion's choices that it takes back, gene → default."""


def steps(facts: Facts, values: GeneValues) -> list[Advice]:
    """Return what to do next, in the order in which it pays; nothing without a champion, or while the search runs.

    Args:
        facts: the study.
        values: what its trials say of each value.
    """
    if facts.best is None or (facts.sessions and facts.sessions[-1].ended is None):
        return []
    name, db = facts.record.name, db_option(facts.file)
    found = []
    if facts.verification.verified is None:
        why = "nobody knows yet whether it is right outside the search's gate"
        found.append(Advice("verify it", f"Verify the champion: {why}.", command("verify", name, *db)))
    # A study that does not come with evokern is searched by its file, which is called as it is.
    study = name if name in study_files() else f"{name}.toml"
    start = ("--warm-start", f"{facts.file}:{name}")
    if facts.record.predicted:
        chip = facts.record.device.removeprefix("sim:").upper()
        found.append(
            Advice(
                f"measure on a real {chip}",
                f"Measure on a real {chip}, beside the baseline: a model's times are good for order, no more. A search "
                "there begins with this champion and with what was nearly as fast here.",
                command("search", study, "--device", "cuda:0", "--db", "measured.db", *start),
            )
        )
    found.append(_profile(facts, db))
    if told := simpler(facts):
        held = ", ".join(f"{gene} = [{_toml(value)}]" for gene, value in told.back.items())
        words = (
            f"Search among simpler ones. {told.words}. Hold what it takes back in the study's file, "
            f"genes = {{ {held} }}, and search there, beginning with what is known."
        )
        device = ("--device", facts.record.device) if facts.record.predicted else ()
        line = command("search", study, *device, "--db", "simpler.db", *start)
        found.append(Advice("search among simpler ones", words, line))
    found += [*_search_on(facts, db), *_more_values(values)]
    if facts.verification.verified:
        words = "Take it into your code: one file with launcher, checks and a main that proves itself."
        found.append(Advice("export it", words, command("export", name, *db, "-o", "best.cu")))
    return found


def sentence(found: Sequence[Advice]) -> str:
    """Return the first screen's words on what to do next; empty for nothing."""
    return "; ".join(step.short for step in found)


def _toml(value: Value) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def _search_on(facts: Facts, db: Sequence[str]) -> list[Advice]:
    name, limit, ended = facts.record.name, facts.record.trials_limit, facts.sessions[-1].end_reason
    more, all_told = ("--extend", "30m"), ""
    if limit and ended == "trials":
        more = ("--trials", str(2 * limit))
        all_told = f" ({more[1]} trials in all, the {len(facts.trials)} there are among them)"
    if ended in ("interrupted", "paused", "failed"):
        return [Advice("go on", "Go on: the search did not come to its end.", command("resume", name, *db))]
    gained = gains(facts)
    if gained is None or gained.evaluated < FEW:
        evaluated = gained.evaluated if gained else sum(trial.outcome.evaluated for trial in facts.trials)
        little = f"{several(evaluated, 'trial')} tell little of a space of {len(facts.record.genes)} genes"
        words = f"Search on: {little}{all_told}."
        return [Advice("search on", words, command("resume", name, *db, *more))]
    brought = f"the last quarter of the sampler's trials brought {gained.words(gained.quarter)}"
    if gained.improving:
        came = f", and its best is number {gained.place} of {gained.evaluated}" if gained.late else ""
        words = f"Search on: {brought}{came}{all_told}."
        return [Advice("search on", words, command("resume", name, *db, *more))]
    words = f"A longer search of the same values promises little: {brought}."
    return [Advice("no longer search of the same values", words)]


def _more_values(values: GeneValues) -> list[Advice]:
    """Return which genes deserve more values: those that got faster up to the end at which the champion stands."""
    open_ = [edge for edge in values.edges() if edge.falling and not edge.why]
    if not open_:
        return []
    ends = ", ".join(f"{edge.gene} {edge.beyond} {edge.value}" for edge in open_[:NAMED])
    told = "; ".join(f"{edge.gene} ({edge.falling}; {edge.farther} comes next)" for edge in open_)
    words = f"Allow more values in the kernel's space. Times fell up to the end of these genes: {told}."
    return [Advice(f"allow {ends} in the kernel", words)]


def _profile(facts: Facts, db: Sequence[str]) -> Advice:
    at = f"it is at {percent(facts.limit.share)} of the chip's limit" if facts.limit else ""
    bound = str(facts.best.evaluation.evidence.get("bound", "")) if facts.best else ""
    told = ", ".join(filter(None, (at, bound)))
    words = "Profile it: on which lines its time goes, what bounds them, and which genes act on that"
    words += " (by the model, no GPU is needed)" if facts.record.predicted else ""
    return Advice("profile it", f"{words}{f'; {told}' * bool(told)}.", command("profile", facts.record.name, *db))


# ---- what an ablation found


def faster_without(facts: Facts) -> list[dict[str, Any]]:
    """Return the rows of the champion's ablation in which it is faster without a choice, the fastest first."""
    assert facts.ablation is not None
    rows = [row for row in facts.ablation.result["alone"] if row["gene"] and row["time_us"] and row["ratio"] < 1 - TIE]
    return sorted(rows, key=lambda row: float(row["ratio"]))


def changed_genes(facts: Facts) -> list[Gene]:
    """Return the genes in which the champion differs from the default candidate."""
    best = facts.best
    return [] if best is None else [gene for gene in facts.record.genes if best.config[gene.name] != gene.default]


def simpler(facts: Facts) -> Simpler | None:
    """Return which candidate is faster than the champion without some choices, or as fast with fewer changes.

    None where nobody took the champion apart, or there is none.
    """
    if facts.ablation is None or facts.best is None or facts.ablation.trial != facts.best.number:
        return None
    changed = {gene.name: gene.default for gene in changed_genes(facts)}
    rows = faster_without(facts)
    path = facts.ablation.result.get("path", ())
    on_the_way = [(place, row) for place, row in enumerate(path[1:], 1) if row["gene"] and row["time_us"]]

    def at(place: int) -> tuple[str, dict[str, Value]]:
        kept = [row["gene"] for row in path[1 : place + 1]]
        changes = ", ".join(f"{row['gene']}={row['value']}" for row in path[1 : place + 1])
        words = f"the default with {changes} ({microseconds(path[place]['time_us'])} {facts.unit})"
        return words, {gene: default for gene, default in changed.items() if gene not in kept}

    place, row = min(on_the_way, key=lambda one: float(one[1]["ratio"]), default=(0, None))
    if row and row["ratio"] < min([1 - TIE, *(one["ratio"] for one in rows)]):
        words, back = at(place)
        return Simpler(f"Faster, not verified: {words}", back)
    if not rows:
        # What is as fast with fewer changes is the better program: the first such is.
        if path and path[0]["time_us"] and path[0]["ratio"] <= 1 + TIE:
            return Simpler(f"As fast: the default ({microseconds(path[0]['time_us'])} {facts.unit})", changed)
        place = next((place for place, row in on_the_way if row["ratio"] <= 1 + TIE), len(changed))
        if place >= len(changed):
            return None
        words, back = at(place)
        return Simpler(f"As fast with {place} of the {len(changed)} changes, not verified: {words}", back)
    first, more = rows[0], len(rows) - 1
    rest = f" and {more} more" if more else ""
    words = f"{first['gene']}={first['value']} ({microseconds(first['time_us'])} {facts.unit}){rest}"
    return Simpler(f"Faster, not verified: {words}", {first["gene"]: first["value"]})
