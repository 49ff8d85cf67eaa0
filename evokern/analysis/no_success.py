"""Explanation of a search in which no candidate was right, with a remedy for each cause."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evokern.compile.failure_cause import Cause, shared_cause
from evokern.study.trial import Outcome, Trial
from evokern.wording import command, count_noun, limit_name


def stop_text(trials: Sequence[Trial]) -> str:
    """Return why a search stopped early: one cause for all failures, or too many trials without a right one.

    Args:
        trials: the study's trials.
    """
    count = count_noun(sum(trial.outcome.evaluated for trial in trials), "evaluated trial")
    cause = shared_cause(trials)
    if cause is None or not (cause.line or cause.shared):
        return f"stopped early: none of {count} was right"
    return f"stopped early: all of {count} failed in the same way ({_place(cause)}), whatever the values of the genes"


def no_success_hints(kernel: str, trials: Sequence[Trial]) -> list[str]:
    """Return the failures with their gene values, and remedies; empty if any candidate was correct.

    Args:
        kernel: name of the study's kernel.
        trials: the study's trials.
    """
    tried = [trial for trial in trials if trial.outcome.evaluated]
    if not tried or any(trial.evaluation.passed_gate for trial in trials):
        return []
    outcomes = Counter(trial.outcome for trial in tried)
    found = [*_inputs(tried), *_resources(tried)]
    if outcomes[Outcome.COMPILE_ERROR] == len(tried):
        check = f"`{command('check', kernel)}` compiles a kernel folder faster"
        found.append(f"no candidate compiles: correct the source; {check}")
    if outcomes[Outcome.CRASHED] + outcomes[Outcome.HUNG] == len(tried):
        sanitize = f"`{command('sanitize', kernel)}` names the line in a kernel folder"
        found.append(f"no candidate ends its run: correct the source; {sanitize}")
    return found


def _place(cause: Cause) -> str:
    if cause.shared:
        return "too much shared memory"
    file = f" of {cause.file}" if cause.file else ""
    return f"{cause.check.replace('_', ' ')} at line {cause.line}{file}"


def _inputs(tried: Sequence[Trial]) -> Iterator[str]:
    """Yield which kinds of inputs pass in all checked trials, and which fail, with an example and the remedy."""
    failures: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    largest: dict[str, float] = defaultdict(float)
    for trial in tried:
        for kind, share in tolerance_shares(trial).items():
            checked[kind] += 1
            failures[kind] += not share <= 1
            largest[kind] = max(largest[kind], math.inf if math.isnan(share) else share)
    passing = [kind for kind in checked if not failures[kind]]
    failing = [kind for kind in checked if failures[kind]]
    if not failing:
        return
    reports = [report for trial in tried for report in trial.evaluation.gate.values() if isinstance(report, Mapping)]
    limit = limit_name(next((report.get("worst") for report in reports), None))
    passed = f"{_listed(passing)} inputs pass in every trial; " if passing else "no kind of inputs passes: "
    alike: dict[tuple[int, int], list[str]] = defaultdict(list)
    for kind in failing:
        alike[failures[kind], checked[kind]].append(kind)
    parts = [
        f"{_listed(kinds)} inputs fail in {failed} of {of} trials (largest error "
        f"{max(largest[kind] for kind in kinds):.3g} × the {limit})"
        for (failed, of), kinds in alike.items()
    ]
    yield passed + ", ".join(parts)
    if "normal" in passing:
        large = "set large= of the input tensors in kernel.py to the largest input that the kernel must support, or "
        yield (
            f"if the kernel need not support {_listed(failing)} inputs, {large * ('large' in failing)}start over with "
            "`--fresh --inputs normal`; every result then says so"
        )
    elif not passing:
        yield "suspect the index calculation of the kernel, its reference, or the order of the launch's args"


def tolerance_shares(trial: Trial) -> dict[str, float]:
    """Return the largest error of each kind of inputs over all problems, as a multiple of the tolerance."""
    found: dict[str, float] = {}
    for report in trial.evaluation.gate.values():
        shares = report.get("checks", {}).get("of_tolerance", {}) if isinstance(report, Mapping) else {}
        for kind, share in shares.items():
            value = _number(share)
            # A comparison with NaN is false, so NaN stays.
            found[kind] = value if not value <= found.get(kind, -1.0) else found[kind]
    return found


def _resources(tried: Sequence[Trial]) -> Iterator[str]:
    """Yield the limits that candidates exceed after the compile, with the needed amounts and the remedy."""
    over: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for trial in tried:
        if trial.outcome is Outcome.OVER_RESOURCES:
            over[str(trial.evaluation.evidence["constraint"])].append(trial.evaluation.evidence)
    for constraint, evidence in sorted(over.items(), key=lambda pair: -len(pair[1])):
        needed = [_number(one["needed"]) for one in evidence]
        least, most = min(needed), max(needed)
        need = f"{least:,g}" if least == most else f"{least:,g} to {most:,g}"
        unit = evidence[0].get("unit") or ""
        whole = len(evidence) == len(tried)
        who = "every candidate exceeds" if whole else f"{len(evidence)} of {len(tried)} candidates exceed"
        remedy = (
            "lower the need, or add smaller values to the genes"
            if whole
            else "a Constraint in kernel.py rejects them before the compile"
        )
        limit = f"{_number(evidence[0]['available']):,g}"
        yield f"{who} {constraint}: needs {need}{' ' * bool(unit)}{unit}, limit {limit}; {remedy}"


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _name(kind: str) -> str:
    return kind.replace("_", " ")


def _listed(kinds: Sequence[str]) -> str:
    names = [_name(kind) for kind in kinds]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
