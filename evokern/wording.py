"""Functions that format times, durations, counts and candidates as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evokern.declaration.genes import Gene, Value
from evokern.escaping import shell_line

GATE_COUNTS: Mapping[str, str] = {
    "guard_bytes": "bytes changed outside the buffers",
    "input_words": "words changed in inputs",
    "bad_elements": "elements with a larger error than allowed",
    "differing_bytes": "bytes that differ between runs",
}
"""Label of each count in a report of the correctness gate."""


def limit_name(worst: object) -> str:
    """Return `bound` or `tolerance`: the limit of the error in the evidence about an element."""
    return "bound" if isinstance(worst, Mapping) and worst.get("limit") == "bound" else "tolerance"


def command(*words: object) -> str:
    """Return a shell-quoted evokern command line, for example `evokern show 'my study' --db runs.db`."""
    return shell_line(["evokern", *words])


def first_line(error: BaseException) -> str:
    """Return the first non-blank line of an error's message, or its type name if the message is blank."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def unreadable_text(error: BaseException) -> str:
    """Return why stored or recorded data cannot be read, without the words of Python's exceptions."""
    match error:
        case KeyError():
            return f"{error} is missing"
        case IndexError():
            return "a list is too short"
        case RecursionError():
            return "it is nested too deeply"
        case AttributeError() | TypeError():
            return "a value has the wrong type"
        case _:
            return first_line(error)


def microseconds(value: float | None) -> str:
    """Return a time in µs with three significant digits and its trailing zeros: 0.00372, 5.43, 61.3, 1,094."""
    if value is None:
        return "-"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value and math.isfinite(value) else 0
    return f"{value:,.{min(digits, 6)}f}"


def factor_text(value: float) -> str:
    """Return a factor with two significant digits, or as an integer if it is at least 100: `2.2`, `31`, `113`."""
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"


def distinguishing_digits(got: float, expected: float) -> tuple[str, str]:
    """Return two numbers with enough digits to show their difference, but at least six."""
    difference = abs(got - expected)
    digits = 6
    if 0 < difference < math.inf and expected:
        digits = min(max(6, math.ceil(math.log10(abs(expected) / difference)) + 2), 17)
    return f"{got:.{digits}g}", f"{expected:.{digits}g}"


def duration(seconds: float) -> str:
    """Return a number of seconds as `45 s`, `1 min 15 s`, `12 min` or `1 h 30 min`."""
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
    """Return the champion's speedup as text.

    Args:
        best: the object `best` of `show --json`, with a speedup.

    Returns:
        For example `2.03× (2.02 to 2.04, head-to-head: 4.52 µs vs 9.18)`. The fastest of many trials owes part of its
        time in the search to luck, so its head-to-head time is usually longer.
    """
    factor = f"{best['speedup']:.2f}×"
    if not best.get("speedup_ci95"):
        return factor
    low, high = (f"{end:.2f}" for end in best["speedup_ci95"])
    both = head_to_head_text(best["in_turn"]["champion_us"], best["in_turn"]["time_us"])
    return f"{factor} ({f'{low} to {high}' if low != high else 'within .005'}, {both})"


def head_to_head_text(champion_us: float, baseline_us: float) -> str:
    """Return both times of a head-to-head comparison, for example `head-to-head: 4.52 µs vs 9.18`."""
    return f"head-to-head: {microseconds(champion_us)} µs vs {microseconds(baseline_us)}"


def roofline_text(found: Mapping[str, Any], unit: str) -> str:
    """Return the best time as a percentage of the roofline bound.

    Args:
        found: the object `roofline_text` of `show --json`.
        unit: unit of the times.
    """
    percent = 100 * found["share"]
    shown = f"{percent:.0f}" if percent >= 0.95 else f"{percent:.1g}"
    reached = f"{shown} % of the roofline bound ({microseconds(found['time_us'])} {unit})"
    return f"{reached}, limited by {found['setter']}"


def rejected_baselines_text(rejected: Mapping[str, str]) -> str:
    """Return the baselines that failed, with their errors.

    Args:
        rejected: the object `rejected_baselines` of `show --json`.
    """
    return "; ".join(f"baseline {name} was rejected: {error}" for name, error in rejected.items())


def missing_baseline_text(rejected: Mapping[str, str]) -> str:
    """Return why there is no time of a baseline."""
    return rejected_baselines_text(rejected) or "no baseline was measured"


def verification_word(found: Mapping[str, Any]) -> str:
    """Return `verified`, `refuted` or `not verified`, for the object that `show --json` prints."""
    return {True: "verified", False: "refuted", None: "not verified"}[found["verified"]]


def verification_text(found: Mapping[str, Any]) -> str:
    """Return the state of a champion's verification in one line.

    Args:
        found: an object with `verified`, `verified_reason`, `verified_share` and `verified_scaled`, as in
            `show --json`.
    """
    word = verification_word(found)
    share = found["verified_share"]
    if share is None or share >= 1:
        return f"{word}: {found['verified_reason']}"
    ran = f"{100 * share:.2g} % of its blocks ran on the full-size problem"
    if found["verified_scaled"]:
        ran += f", and all blocks ran on the problem scaled down to {' and '.join(found['verified_scaled'])}"
    if found["verified"] is None:
        return f"{word}: {found['verified_reason']} (so far, {ran})"
    return f"{word}: {ran}; {found['verified_reason']}"


def stage_label(name: str) -> str:
    """Return the displayed name of a verification stage or check; its stored name does not change."""
    return "full-size problem" if name == "own problem" else name


def in_gib(count: int) -> str:
    """Return a number of bytes in GiB: `5.52 GiB`."""
    return f"{count / 2**30:.3g} GiB"


def count_noun(number: int, what: str) -> str:
    """Return a number with its noun: `1 trial`, `12 trials`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def count_verb(number: int, what: str) -> str:
    """Return a number with its noun and verb: `1 problem is`, `2 problems are`."""
    return f"{count_noun(number, what)} {'is' if number == 1 else 'are'}"


def mean_suffix(problems: int) -> str:
    """Return a suffix for a time that is a mean over several problems; empty if there is only one problem."""
    return f", geometric mean over {count_noun(problems, 'problem')}" if problems > 1 else ""


def counts(table: Mapping[str, int]) -> str:
    """Return counts in descending order without zeros: `12 measured, 3 wrong`."""
    shown = sorted(((count, name) for name, count in table.items() if count), key=lambda pair: (-pair[0], pair[1]))
    return ", ".join(f"{count} {name}" for count, name in shown) or "none"


def outcome_counts(summary: Mapping[str, Any]) -> str:
    """Return the number of trials by outcome, such as `40 slow (25 screened, 15 raced out), 12 measured`.

    Args:
        summary: the object that `show --json` prints.
    """
    slow = {name.replace("_", " "): count for name, count in summary["slow"].items() if count}
    if not slow or summary["predicted"]:  # on simulated devices, slow always refers to the predicted time
        return counts(summary["outcomes"])
    kinds = counts(slow) if len(slow) > 1 else f"all {next(iter(slow))}"
    return counts({f"slow ({kinds})" if name == "slow" else name: n for name, n in summary["outcomes"].items()})


def uncounted_trials_text(outcomes: Mapping[str, int]) -> str:
    """Return a clause about trials that `--trials` does not count: ` (and 3 duplicate or infeasible, 1 lost)`."""
    others, lost = outcomes.get("duplicate", 0) + outcomes.get("infeasible", 0), outcomes.get("lost", 0)
    parts = [f"{others} duplicate or infeasible"] * bool(others) + [f"{lost} lost"] * bool(lost)
    return f" (and {', '.join(parts)})" if parts else ""


def changed_genes_text(config: Mapping[str, Value], genes: Sequence[Gene]) -> str:
    """Return the genes that differ from the default candidate: `BLOCK_M=64 STAGES=3`."""
    pairs = [f"{gene.name}={config[gene.name]}" for gene in genes if config.get(gene.name) != gene.default]
    return " ".join(pairs) or "the default candidate"


def warm_start_text(warm: Mapping[str, Any]) -> str:
    """Return a description of a warm start's source.

    Args:
        warm: the object `warm_start` of `show --json`.
    """
    also = f",{more}" if (more := and_those_of(warm.get("further", 0))) else ""
    return f"{count_noun(warm['candidates'], 'candidate')} of {warm['source']}{also}"


def and_those_of(studies: int) -> str:
    """Return a clause about further studies that a warm start uses, or an empty string if there are none."""
    return f" and those of {studies} further stud{'y' if studies == 1 else 'ies'}" if studies else ""


def low_priority_values_text(gene: Gene) -> str:
    """Return the low-priority values of a gene with their reasons; empty if the gene has none."""
    named = ((gene.for_study, "for study"), (gene.less_precise, "less precise"))
    parts = [f"{'|'.join(map(str, values))} {why}" for values, why in named if values]
    by_chips: dict[tuple[str, ...], list[str]] = {}
    for value, chips in gene.for_chips.items():
        by_chips.setdefault(tuple(chips), []).append(str(value))
    parts += [f"{'|'.join(values)} for {' and '.join(chips)}" for chips, values in by_chips.items()]
    return f"{gene.name}={', '.join(parts)}" if parts else ""
