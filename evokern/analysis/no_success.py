"""Likely causes of a study's wrong trials, and of a search in which no candidate was right, with remedies."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from evokern.compile.failure_cause import Cause, shared_cause
from evokern.declaration.as_data.words import call_words
from evokern.declaration.genes import Gene
from evokern.declaration.kernel import unit_roundoff
from evokern.study.trial import Outcome, Trial
from evokern.wording import command, count_noun, limit_name

if TYPE_CHECKING:
    from evokern.store import StudyRecord

Default = TypeVar("Default", float, None)


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
            value = _number(share, math.nan)
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
        needed = [_number(one["needed"], math.nan) for one in evidence]
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
        limit = f"{_number(evidence[0]['available'], math.nan):,g}"
        yield f"{who} {constraint}: needs {need}{' ' * bool(unit)}{unit}, limit {limit}; {remedy}"


def _listed(kinds: Sequence[str]) -> str:
    names = [kind.replace("_", " ") for kind in kinds]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


NARROW_MISS_FACTOR = 4.0
"""Largest error, in multiples of the tolerance, that counts as a narrow miss. Rounding exceeds a tight tolerance by
such factors, a wrong index by hundreds."""
FEW_SHARE = 0.01
"""Largest share of an output's elements that counts as few."""
FEW_ELEMENTS = 8
ROUNDING = {dtype: 1.5 * unit_roundoff(dtype) for dtype in ("bf16", "f16")}
"""Relative error that counts as rounding, by output type: one rounding of the output, plus half for sums."""
LEAST_ROUNDING = 1e-5
"""Relative error that counts as rounding for other types, about a hundred roundings of float32 (2**-24 each)."""
_FAILED = (Outcome.COMPILE_ERROR, Outcome.OVER_RESOURCES, Outcome.CRASHED, Outcome.HUNG)
_INCORRECT = (Outcome.WRONG, Outcome.CRASHED, Outcome.HUNG)
LEAST_UNSUPPORTED = 2
"""Minimum number of failed trials for a report of genes that the code may not support."""
_FINDING = "sanitizer:"
_OF_FINDINGS = {
    "sanitizer:input_write": "the order of the launch's args, or a tensor whose role should be inout",
    "sanitizer:uninitialised": 'a load of data that nothing wrote, or a workspace that needs initial="zero"',
}
"""Check of the sanitizer → likely cause, if kernel.py may be the cause."""
_LARGEST = {"f16": 6.55e4, "bf16": 3.38e38, "f32": 3.4e38, "e4m3": 448.0, "e5m2": 57344.0}
"""Magnitude from which a result counts as infinite, because evidence contains the largest finite value instead."""
LEAST_NEAR = 2
"""Minimum number of narrow misses for a report."""


def hints_of(record: StudyRecord, trials: Iterable[Trial]) -> list[str]:
    """Return advice on the likely causes of a study's failed trials, in the words of its declaration."""
    return [call_words(one, record.field_names) for one in hints(record.kernel, record.genes, trials)]


def hints(kernel: str, genes: Sequence[Gene], trials: Iterable[Trial]) -> list[str]:
    """Return advice on the likely causes of failed trials, or an empty list.

    Args:
        kernel: name of the study's kernel.
        genes: the study's genes.
        trials: the study's trials.
    """
    recorded = list(trials)
    wrong = [trial for trial in recorded if trial.outcome is Outcome.WRONG]
    near = [trial for trial in wrong if is_narrow_miss(trial.evaluation.evidence)]
    found = no_success_hints(kernel, recorded)
    if len(near) >= LEAST_NEAR and 2 * len(near) > len(wrong):
        found.append(
            f"{len(near)} of {len(wrong)} wrong trials exceed the {limit_name(near[0].evaluation.evidence)}"
            f" only slightly (for example trial {near[0].number}: {_miss(near[0])}); {_too_tight(near[0])}, which "
            f"`{command('check', kernel)}` shows"
        )
    default = {gene.name: gene.default for gene in genes}
    first = next((trial for trial in recorded if dict(trial.config) == default), None)
    if first is not None and first.outcome is Outcome.WRONG:
        found.append(
            f"the default candidate is wrong (trial {first.number}); suspect "
            + suspect(first.evaluation.evidence, normal_error=tolerance_shares(first).get("normal", 0.0))
        )
    elif first is not None and first.outcome in _FAILED:
        outcome = first.outcome.value.replace("_", " ")
        found.append(f"the default candidate fails (trial {first.number}, {outcome}): {first.evaluation.reason}")
    elif first is not None and first.evaluation.passed_gate:
        found += _unsupported(default, recorded)
    return found


def _unsupported(default: Mapping[str, Any], trials: Sequence[Trial]) -> Iterator[str]:
    """Yield the genes whose other values always fail although the default candidate is right."""
    failed = [trial for trial in trials if trial.outcome in _INCORRECT]
    passed = [trial for trial in trials if trial.evaluation.passed_gate]
    changed = {trial.number: {n for n, v in trial.config.items() if v != default[n]} for trial in (*failed, *passed)}
    good = {name for trial in passed for name in changed[trial.number]}
    wrong = {trial.number: names for trial in failed if (names := changed[trial.number] - good)}
    # A trial that changes one gene decides; otherwise the genes that most failures have in common are suspects.
    alone = {min(names): number for number, names in wrong.items() if len(changed[number]) == 1}
    counts = Counter(name for names in wrong.values() if not names & alone.keys() for name in names)
    named = [name for name in default if name in alone or counts[name] == max(counts.values(), default=0) > 0]
    count = sum(bool(names & {*named}) for names in wrong.values())
    if count < LEAST_UNSUPPORTED:
        return
    genes = " or ".join(named)
    if good:
        what = f"all {count} trials with other values of {genes} fail"
    else:
        share = "have" if count == len(failed) else f"fail, {count} of them with"
        what = f"only the default candidate is right; all {len(failed)} others {share} other values of {genes}"
        what += " and fail" if count == len(failed) else ""
    example = next((f" (trial {alone[name]} changes nothing else)" for name in named if name in alone), "")
    yield (
        f"{what}{example}: the code may not support them; check that the code and the launch use "
        f"{' and '.join(named)} everywhere, or give {'each' if len(named) > 1 else 'it'} one value"
    )


def is_narrow_miss(evidence: Mapping[str, Any]) -> bool:
    """Return whether a result exceeds the tolerance only slightly, as rounding does.

    Args:
        evidence: evidence of a wrong trial or of the gate's verdict.
    """
    if evidence["check"] == "margin":
        return True
    got, expected = _number(evidence.get("got"), None), _number(evidence.get("expected"), None)
    rounding = ROUNDING.get(str(evidence.get("dtype")), LEAST_ROUNDING)
    if got is not None and expected and abs(got - expected) <= rounding * abs(expected):
        return True
    over, bad = _number(evidence.get("over"), None), _number(evidence.get("bad"), None)
    if evidence["check"] != "tolerance" or over is None or over > NARROW_MISS_FACTOR:
        return False
    elements = _number(evidence.get("elements"), None) or 0.0
    return bad is None or bad <= max(FEW_ELEMENTS, FEW_SHARE * elements)


def _too_tight(trial: Trial) -> str:
    if limit_name(trial.evaluation.evidence) == "bound":
        return "the bound may assume more precise arithmetic than the kernel's"
    return "the tolerance may be below the rounding errors"


def _miss(trial: Trial) -> str:
    evidence = trial.evaluation.evidence
    times = _number(evidence.get("over"), None) or 0.0
    if evidence["check"] == "margin":
        return f"correct, but at {times:.3g} × the tolerance, which other inputs may exceed"
    limit = limit_name(evidence)
    over = f"{times:.3g} × the {limit}" if math.isfinite(times) else f"more than the {limit} of 0"
    if "bad" not in evidence:
        return over
    of = f" of {evidence['elements']:,}" if "elements" in evidence else ""
    return f"{evidence['bad']:,}{of} elements, the worst at {over}"


def suspect(evidence: Mapping[str, Any], *, normal_error: float = 0.0) -> str:
    """Return the most likely cause of a wrong default candidate, from the gate's evidence.

    Args:
        evidence: evidence of a wrong trial or of the gate's verdict.
        normal_error: largest error on normal inputs as a multiple of the tolerance; 0 if it is unknown.
    """
    message = str(evidence.get("message", ""))
    if is_narrow_miss(evidence):
        if limit_name(evidence) == "bound":
            return "the bound: it may assume more precise arithmetic than the kernel's"
        return "the tolerance: it may be below the rounding errors of the kernel's arithmetic"
    if evidence["check"] == "guard":
        return "a missing bounds check for the last block, or a grid that is too large"
    if evidence["check"] == "inputs_unchanged":
        return "the order of the launch's args, or a tensor whose role should be inout"
    if evidence["check"] == "state":
        return "variables that a call changes: declare their initial values as `state` in kernel.py"
    if evidence["check"] in ("repeat", "deterministic"):
        return 'state that persists between calls: a workspace that needs initial="zero", or an accumulated output'
    if evidence["check"] == "floor":
        return "the workload's flops and bytes: they may be too high"
    if evidence["check"] in ("own_problem", "sampled_blocks"):
        return (
            "the kernel: the small problems passed, so suspect a late round of a loop, an overflow of an index, or a "
            f"part of the grid: {message}"
        )
    if str(evidence["check"]).startswith(_FINDING):
        return _OF_FINDINGS.get(evidence["check"], "the kernel at that line; the finding does not depend on kernel.py")
    if "never written" in message or "wrote no element" in message:
        return "the grid in launches (it may cover only part of the output), or an early return"
    if (
        evidence.get("input_set") in ("large", "denormal")
        and "normal" not in evidence.get("failed_sets", ())
        and normal_error <= 1
    ):
        return _range_cause(evidence)
    if evidence.get("input_set") == "edges" and 4 * evidence.get("bad", 0) <= evidence.get("elements", 0):
        return "the handling of zeros, and of infinities and NaN if kernel.py declares nonfinite="
    return (
        "the declaration before the kernel: the reference, the order of the launch's args, and the shapes (row-major, "
        "last axis contiguous)"
    )


def _range_cause(evidence: Mapping[str, Any]) -> str:
    """Return the likely cause of an error on inputs of unusual size: an overflow only if the result shows one."""
    if evidence["input_set"] == "denormal":
        return "the handling of subnormal numbers, which --use_fast_math and -ftz=true replace by zero"
    got = _number(evidence.get("got"), None)
    if got is None or not abs(got) < _LARGEST.get(str(evidence.get("dtype")), math.inf):
        return (
            "the range of values: large inputs fail with an infinity or NaN. If normal inputs pass, a sum may overflow "
            "its type; use a wider type, or set Tensor's large= to the largest input that the kernel must support"
        )
    return (
        "the precision of the accumulator: large inputs fail, but the result is finite. If normal inputs pass, a wider "
        "type is needed for sums"
    )


def _number(value: object, other: Default) -> float | Default:
    """Return a value as a number, or another value if it is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return other
