"""How times, durations, counts and candidates are written for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evokern.declaration.genes import Gene, Value
from evokern.escaping import shell_line


def command(*words: object) -> str:
    """Return a command line of evokern's that a shell takes as it stands: `evokern show 'my study' --db runs.db`."""
    return shell_line(["evokern", *words])


def first_line(error: BaseException) -> str:
    """Return the first line of an error that says something; the error's kind where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def microseconds(value: float | None) -> str:
    """Return a time with three digits, zeros at the end kept, so that columns line up: 0.00372, 5.43, 61.3, 1,094."""
    if value is None:
        return "-"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value and math.isfinite(value) else 0
    return f"{value:,.{min(digits, 6)}f}"


def factor_text(value: float) -> str:
    """Return a factor in two digits, from 100 on in whole ones: `2.2`, `31`, `113`."""
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"


def told_apart(got: float, expected: float) -> tuple[str, str]:
    """Return two numbers with as many digits as show that they differ, and by how much: at least six."""
    difference = abs(got - expected)
    digits = 6
    if 0 < difference < math.inf and expected:
        digits = min(max(6, math.ceil(math.log10(abs(expected) / difference)) + 2), 17)
    return f"{got:.{digits}g}", f"{expected:.{digits}g}"


def duration(seconds: float) -> str:
    """Return `45 s`, `1 min 15 s`, `12 min`, `1 h 30 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    if minutes < 10:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def speedup(best: Mapping[str, Any]) -> str:
    """Return what `show --json` says of a champion's speedup.

    Args:
        best: its `best`, with a speedup.

    Returns:
        For example `2.03× (2.02 to 2.04, measured in turn: 4.52 µs against 9.18)`. The fastest of many trials is also
        the luckiest, so its time in turn is longer than its own.
    """
    factor = f"{best['speedup']:.2f}×"
    if not best.get("speedup_ci95"):
        return factor
    low, high = (f"{end:.2f}" for end in best["speedup_ci95"])
    both = in_turn(best["in_turn"]["champion_us"], best["in_turn"]["time_us"])
    return f"{factor} ({f'{low} to {high}' if low != high else 'within .005'}, {both})"


def in_turn(champion_us: float, baseline_us: float) -> str:
    """Return what both took in turn, for example `measured in turn: 4.52 µs against 9.18`."""
    return f"measured in turn: {microseconds(champion_us)} µs against {microseconds(baseline_us)}"


def limit(found: Mapping[str, Any], unit: str) -> str:
    """Return how near a best is to its chip's limit, in a line.

    Args:
        found: the object `limit` of `show --json`.
        unit: of times, as text.
    """
    percent = 100 * found["share"]
    shown = f"{percent:.0f}" if percent >= 0.95 else f"{percent:.1g}"
    reached = f"{shown} % of the limit, {microseconds(found['time_us'])} {unit}"
    return f"{reached}, bound by {found['setter']}"


def proved(found: Mapping[str, Any]) -> str:
    """Return whether a champion is verified, in a line.

    Args:
        found: an object with `verified`, `verified_reason`, `verified_share` and `verified_scaled`, as `show --json`
            prints them.
    """
    word = {True: "verified", False: "refuted", None: "not verified"}[found["verified"]]
    share = found["verified_share"]
    if share is None or share >= 1:
        return f"{word}: {found['verified_reason']}"
    ran = f"{100 * share:.2g} % of its blocks ran at the study's own problem"
    if found["verified_scaled"]:
        ran += f", and all of them at that problem scaled down to {' and '.join(found['verified_scaled'])}"
    return f"{word}: {ran}; {found['verified_reason']}"


def in_gib(count: int) -> str:
    """Return bytes as people read them: `5.52 GiB`."""
    return f"{count / 2**30:.3g} GiB"


def several(number: int, what: str) -> str:
    """Return `1 trial`, `12 trials`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def mean_of(problems: int) -> str:
    """Return what follows the time of a study of so many problems: nothing for one, else that it is their mean."""
    return f", geometric mean over {several(problems, 'problem')}" if problems > 1 else ""


def counts(table: Mapping[str, int]) -> str:
    """Return `12 measured, 3 wrong`, most first, zeros left out."""
    shown = sorted(((count, name) for name, count in table.items() if count), key=lambda pair: (-pair[0], pair[1]))
    return ", ".join(f"{count} {name}" for count, name in shown) or "none"


def outcome_counts(summary: Mapping[str, Any]) -> str:
    """Return how many trials ended how, a GPU's slow ones apart: `40 slow (25 screened, 15 raced out), 12 measured`.

    Args:
        summary: what `show --json` prints.
    """
    slow = {name.replace("_", " "): count for name, count in summary["slow"].items() if count}
    if not slow or summary["predicted"]:  # a predicted time is what slow means there
        return counts(summary["outcomes"])
    apart = counts(slow) if len(slow) > 1 else f"all {next(iter(slow))}"
    return counts({f"slow ({apart})" if name == "slow" else name: n for name, n in summary["outcomes"].items()})


def uncounted(outcomes: Mapping[str, int]) -> str:
    """Return the trials that `--trials` does not count in a clause, ` (and 3 duplicate or infeasible, 1 lost)`."""
    others, lost = outcomes.get("duplicate", 0) + outcomes.get("infeasible", 0), outcomes.get("lost", 0)
    parts = [f"{others} duplicate or infeasible"] * bool(others) + [f"{lost} lost"] * bool(lost)
    return f" (and {', '.join(parts)})" if parts else ""


def changed(config: Mapping[str, Value], genes: Sequence[Gene]) -> str:
    """Return the genes that differ from the default candidate, `BLOCK_M=64 STAGES=3`."""
    pairs = [f"{gene.name}={config[gene.name]}" for gene in genes if config.get(gene.name) != gene.default]
    return " ".join(pairs) or "the default candidate"


def warm_start_text(warm: Mapping[str, Any]) -> str:
    """Return what a study began with, from what `show --json` says of it."""
    also = f",{more}" if (more := and_those_of(warm.get("further", 0))) else ""
    return f"{several(warm['candidates'], 'candidate')} of {warm['source']}{also}"


def and_those_of(studies: int) -> str:
    """Return what further studies add to a warm start, to go on with; empty for none."""
    return f" and those of {studies} further stud{'y' if studies == 1 else 'ies'}" if studies else ""


def marks(gene: Gene) -> str:
    """Return which values of a gene are tried late, and why; empty where none is marked."""
    named = ((gene.for_study, "for study"), (gene.less_precise, "less precise"))
    parts = [f"{'|'.join(map(str, values))} {why}" for values, why in named if values]
    by_chips: dict[tuple[str, ...], list[str]] = {}
    for value, chips in gene.for_chips.items():
        by_chips.setdefault(tuple(chips), []).append(str(value))
    parts += [f"{'|'.join(values)} for {' and '.join(chips)}" for chips, values in by_chips.items()]
    return f"{gene.name}={', '.join(parts)}" if parts else ""
