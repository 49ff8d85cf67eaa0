"""What the wrong trials of a study have in common: a tolerance tighter than rounding, or a mistaken declaration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evokern.declaration.genes import Gene
from evokern.declaration.kernel import unit_roundoff
from evokern.study.trial import Outcome, Trial
from evokern.wording import command

JUST_BEYOND = 4.0
"""Error over tolerance up to which a wrong element is just beyond it: rounding passes a tolerance that is too tight by
such factors, a wrong index by hundreds."""
FEW = 0.01
"""Share of an output's elements that are few; eight always are."""
FEW_ELEMENTS = 8
ROUNDING = {dtype: 1.5 * unit_roundoff(dtype) for dtype in ("bf16", "f16")}
"""Relative error of the worst element that only a tolerance of next to nothing turns away, by the output's type: one
rounding to it, and half of one for the sums before."""
LEAST_ROUNDING = 1e-5
"""The same of every other type: a hundred roundings of float32 (2**-24 each)."""
LEAST_NEAR = 2
"""Trials that must miss narrowly before anything is said of them."""


def hints(kernel: str, genes: Sequence[Gene], trials: Iterable[Trial]) -> list[str]:
    """Return sentences on what to suspect where trials gave wrong answers; none where nothing stands out.

    Args:
        kernel: name of the study's kernel.
        genes: the study's genes.
        trials: its recorded trials.
    """
    recorded = list(trials)
    wrong = [trial for trial in recorded if trial.outcome is Outcome.WRONG]
    near = [trial for trial in wrong if narrow(trial.evaluation.evidence)]
    found = []
    if len(near) >= LEAST_NEAR and 2 * len(near) > len(wrong):
        found.append(
            f"{len(near)} of {len(wrong)} wrong trials miss the tolerance as narrowly as rounding does (for example "
            f"trial {near[0].number}: {_miss(near[0])}); it may be tighter than rounding: "
            f"`{command('check', kernel)}` says what rounding alone reaches"
        )
    default = {gene.name: gene.default for gene in genes}
    first = next((trial for trial in wrong if dict(trial.config) == default), None)
    if first is not None:
        found.append(
            f"the default candidate is wrong (trial {first.number}); suspect {suspect(first.evaluation.evidence)}"
        )
    return found


def narrow(evidence: Mapping[str, Any]) -> bool:
    """Whether an answer misses as rounding does: few elements, just beyond the tolerance, or by next to nothing.

    Args:
        evidence: that of a wrong trial, or of a gate's verdict.
    """
    if evidence["check"] == "margin":
        return True
    got, expected = _number(evidence.get("got")), _number(evidence.get("expected"))
    rounding = ROUNDING.get(str(evidence.get("dtype")), LEAST_ROUNDING)
    if got is not None and expected and abs(got - expected) <= rounding * abs(expected):
        return True
    over, bad = _number(evidence.get("over")), _number(evidence.get("bad"))
    if evidence["check"] != "tolerance" or over is None or over > JUST_BEYOND:
        return False
    elements = _number(evidence.get("elements")) or 0.0
    return bad is None or bad <= max(FEW_ELEMENTS, FEW * elements)


def _miss(trial: Trial) -> str:
    evidence = trial.evaluation.evidence
    times = _number(evidence.get("over")) or 0.0
    if evidence["check"] == "margin":
        return f"right, but at {times:.3g} × what is allowed too near to it for other inputs"
    over = f"{times:.3g} × what is allowed" if math.isfinite(times) else "more than the 0 that is allowed"
    if "bad" not in evidence:
        return over
    of = f" of {evidence['elements']:,}" if "elements" in evidence else ""
    return f"{evidence['bad']:,}{of} elements, the worst at {over}"


def suspect(evidence: Mapping[str, Any]) -> str:
    """Return where to look first when a default candidate is wrong, by what the gate found.

    Args:
        evidence: that of a wrong trial, or of a gate's verdict.
    """
    message = str(evidence.get("message", ""))
    if narrow(evidence):
        return "the tolerance: it may be tighter than the rounding of the kernel's arithmetic"
    if evidence["check"] == "guard":
        return "a missing bound check for the last block, or a grid that is too large"
    if evidence["check"] == "inputs_unchanged":
        return "the order of the launch's args, or a tensor whose role should be inout"
    if evidence["check"] == "state":
        return "what a call leaves behind: `state` in kernel.py says what a variable holds when a call begins"
    if evidence["check"] in ("repeat", "deterministic"):
        return 'state that outlives a call: a workspace that needs initial="zero", or an output that is added to'
    if evidence["check"] == "floor":
        return "the workload's flops and bytes: they may be too high"
    if "never written" in message or "wrote no element" in message:
        return "the grid in launches (it may cover a part of the output only), or an early return"
    if evidence.get("input_set") in ("large", "denormal"):
        return (
            f"the range: it fails on {evidence['input_set']} inputs, so a sum may overflow its type; Tensor's large= "
            "says what the kernel must survive"
        )
    if evidence.get("input_set") == "edges" and 4 * evidence.get("bad", 0) <= evidence.get("elements", 0):
        return "what becomes of zeros, and where kernel.py declares nonfinite= of infinities and NaN"
    return (
        "the declaration before the kernel: the reference, the order of the launch's args, and the shapes (row-major, "
        "the last axis runs fastest)"
    )


def _number(value: object) -> float | None:
    try:
        return None if value is None else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
