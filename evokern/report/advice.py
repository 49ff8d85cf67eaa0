"""Suggested next steps, derived only from results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.analysis.control_verdict import TIE
from evokern.declaration.as_data.declared import reference_option
from evokern.declaration.as_data.words import is_call
from evokern.declaration.genes import Gene, Value
from evokern.report.facts import Facts
from evokern.report.gene_values import GeneValues
from evokern.report.plots import percent
from evokern.report.search_sections import gains
from evokern.store import db_option
from evokern.study.discovery import study_files
from evokern.wording import command, count_noun, microseconds

MIN_TRIALS_FOR_STOP_ADVICE = 60
"""Minimum number of evaluated trials for advice against a longer search.

One of nine searches that had found only the default became 1.23 times as fast after 36 trials."""
CALL_AGAIN = "Call evokern.tune with arrays on the GPU and another name."
"""How a study that `evokern.tune` started continues on a GPU."""
MAX_NAMED_GENES = 2
"""Maximum number of genes with too few values that the first screen names."""


@dataclass(frozen=True)
class Advice:
    """A suggested next step."""

    short: str
    """Short form for the first screen."""
    words: str
    """Full form, with the reason."""
    command: str = ""
    """Command to run; empty if there is none."""


@dataclass(frozen=True)
class SimplerCandidate:
    """A candidate with fewer changes that is as fast as the champion or faster, found by an ablation."""

    words: str
    """The candidate and its time, as text."""
    back: Mapping[str, Value]
    """Gene to revert → its default value."""


def steps(facts: Facts, values: GeneValues) -> list[Advice]:
    """Return the next steps, most useful first; empty without a champion or while the search runs.

    Args:
        facts: Facts about the study.
        values: Results for each gene value.
    """
    if facts.best is None or (facts.sessions and facts.sessions[-1].ended is None):
        return []
    name, db = facts.record.name, db_option(facts.file)
    called = is_call(facts.record.field_names)
    found = []
    if facts.verification.verified is None:
        why = "so far, only the search's own correctness check has run"
        found.append(
            Advice(
                "verify the champion", f"Verify the champion: {why}.", command("verify", name, *db, *_reference(facts))
            )
        )
    # A study that is not part of evokern is searched by its file, which is assumed to have the study's name.
    study = name if name in study_files() else f"{name}.toml"
    start = ("--warm-start", f"{facts.file}:{name}")
    if facts.record.predicted:
        chip = facts.record.device.removeprefix("sim:").upper()
        found.append(
            Advice(
                f"measure on a real {chip}",
                f"Measure on a real {chip}, together with the baseline: predicted times are only good for ranking. "
                + (CALL_AGAIN if called else "The new search starts from this champion and the other fast candidates."),
                "" if called else command("search", study, "--device", "cuda:0", "--db", "measured.db", *start),
            )
        )
    found.append(_profile(facts, db))
    if simpler := simpler_candidate(facts):
        held = ", ".join(f"{gene} = [{_toml(value)}]" for gene, value in simpler.back.items())
        words = f"Search simpler candidates. {simpler.words}. "
        words += (
            f"Give these parameters one value in params ({held}), and call evokern.tune with another name."
            if called
            else f"Fix the reverted genes in the study file, genes = {{ {held} }}, and start a search from the known "
            "results."
        )
        device = ("--device", facts.record.device) if facts.record.predicted else ()
        line = "" if called else command("search", study, *device, "--db", "simpler.db", *start)
        found.append(Advice("search simpler candidates", words, line))
    found += [*_search_on(facts, db), *_more_values(values)]
    if facts.verification.verified:
        words = "Export the champion as one file with a launcher, checks and a main function that tests the kernel."
        found.append(
            Advice("export the champion", words, command("export", name, *db, "-o", "best.cu", *_reference(facts)))
        )
    return found


def _reference(facts: Facts) -> tuple[str, ...]:
    """Return the option that names the reference of a study that `evokern.tune` started."""
    return reference_option(facts.sources)


def short_advice(found: Sequence[Advice]) -> str:
    """Return the first screen's sentence about next steps, or an empty string if there are none."""
    return "; ".join(step.short for step in found)


def _toml(value: Value) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def _search_on(facts: Facts, db: Sequence[str]) -> list[Advice]:
    name, limit, ended = facts.record.name, facts.record.trials_limit, facts.sessions[-1].end_reason
    more, in_total = ("--extend", "30m"), ""
    if limit and ended == "trials":
        more = ("--trials", str(2 * limit))
        in_total = f" ({more[1]} trials in total, including the {len(facts.trials)} existing ones)"
    if ended in ("interrupted", "paused", "failed"):
        return [
            Advice(
                "resume the search",
                "Resume the search: it did not finish.",
                command("resume", name, *db, *_reference(facts)),
            )
        ]
    gained = gains(facts)
    if gained is None or gained.evaluated < MIN_TRIALS_FOR_STOP_ADVICE:
        evaluated = gained.evaluated if gained else sum(trial.outcome.evaluated for trial in facts.trials)
        little = f"{count_noun(evaluated, 'evaluated trial')} are few for a space of {len(facts.record.genes)} genes"
        words = f"Extend the search: {little}{in_total}."
        return [Advice("extend the search", words, command("resume", name, *db, *more, *_reference(facts)))]
    brought = f"the last quarter of the sampler's trials {gained.words(gained.quarter)}"
    if gained.improving:
        came = f", and the best trial came late (number {gained.place} of {gained.evaluated})" if gained.late else ""
        words = f"Extend the search: {brought}{came}{in_total}."
        return [Advice("extend the search", words, command("resume", name, *db, *more, *_reference(facts)))]
    words = f"A longer search of the same values is unlikely to help: {brought}."
    return [Advice("do not extend this search", words)]


def _more_values(values: GeneValues) -> list[Advice]:
    """Return advice to add values to genes whose times fell up to the champion's value at the end of the range."""
    open_ = [edge for edge in values.edges() if edge.last_times and not edge.why]
    if not open_:
        return []
    ends = ", ".join(f"{edge.gene} {edge.beyond} {edge.value}" for edge in open_[:MAX_NAMED_GENES])
    ranges = "; ".join(f"{edge.gene} ({edge.last_times}; next value: {edge.next_value})" for edge in open_)
    words = (
        "Add values to the kernel's search space. "
        f"Times were still falling at the end of these genes' ranges: {ranges}."
    )
    return [Advice(f"add values to the kernel ({ends})", words)]


def _profile(facts: Facts, db: Sequence[str]) -> Advice:
    at = f"the champion reaches {percent(facts.limit.share)} of the roofline bound" if facts.limit else ""
    bound = str(facts.best.evaluation.evidence.get("bound", "")) if facts.best else ""
    detail = "; ".join(filter(None, (at, f"main bottleneck: {bound}" if bound else "")))
    words = "Profile the champion to see which lines take the time, what bounds them, and which genes affect that"
    words += " (simulated, no GPU needed)" if facts.record.predicted else ""
    line = command("profile", facts.record.name, *db, *_reference(facts))
    return Advice("profile the champion", f"{words}{f'; {detail}' * bool(detail)}.", line)


# ---- results of an ablation


def faster_without(facts: Facts) -> list[dict[str, Any]]:
    """Return the ablation rows that make the champion faster by reverting a choice, fastest first."""
    assert facts.ablation is not None
    rows = [row for row in facts.ablation.result["alone"] if row["gene"] and row["time_us"] and row["ratio"] < 1 - TIE]
    return sorted(rows, key=lambda row: float(row["ratio"]))


def changed_genes(facts: Facts) -> list[Gene]:
    """Return the genes in which the champion differs from the default candidate."""
    best = facts.best
    return [] if best is None else [gene for gene in facts.record.genes if best.config[gene.name] != gene.default]


def simpler_candidate(facts: Facts) -> SimplerCandidate | None:
    """Return a candidate with fewer changes that is as fast as the champion or faster.

    The result is None without a champion or without an ablation of it.
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
        return SimplerCandidate(f"Faster, but not verified: {words}", back)
    if not rows:
        # Prefer the candidate with the fewest changes among those that are as fast.
        if path and path[0]["time_us"] and path[0]["ratio"] <= 1 + TIE:
            return SimplerCandidate(f"As fast: the default ({microseconds(path[0]['time_us'])} {facts.unit})", changed)
        place = next((place for place, row in on_the_way if row["ratio"] <= 1 + TIE), len(changed))
        if place >= len(changed):
            return None
        words, back = at(place)
        return SimplerCandidate(f"As fast with {place} of the {len(changed)} changes, but not verified: {words}", back)
    first, more = rows[0], len(rows) - 1
    rest = f" and {more} more" if more else ""
    words = f"{first['gene']}={first['value']} ({microseconds(first['time_us'])} {facts.unit}){rest}"
    return SimplerCandidate(f"Faster, but not verified: {words}", {first["gene"]: first["value"]})
