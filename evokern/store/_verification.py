"""Verification of a trial: the result of the last `verify`, and the blocks that the search itself ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.store._proofs import ProofRecord
from evokern.store.records import StudyRecord
from evokern.study.trial import Trial
from evokern.wording import command, stage_label

OWN_PROBLEM = "own problem"
"""Name of the verification stage that runs blocks of the study's full-size problems."""
NO_ALGEBRA = "not compared"
"""State of a trial that was not compared in exact arithmetic."""
NOT_COVERED = "not covered: roundings, overflow, races and other problems (docs/proof.md)"
"""Limits of exact arithmetic."""


@dataclass(frozen=True)
class Verification:
    """Verification state of a trial."""

    verified: bool | None
    """True: every stage passed, all outputs were covered, and every loop repeated under the sanitizer. False: refuted.
    None: not verified, or undecided."""
    reason: str
    """The stages that passed, the stage that failed, or the reason why the trial is not verified."""
    share: float | None
    """Fraction of the blocks of the study's full-size problems that ran; None if unknown."""
    scaled: tuple[str, ...] = ()
    """Scaled-down problems, in words, on which the search ran all blocks; `reason` names those of a verification."""
    algebra: str = NO_ALGEBRA
    """Result of the latest comparison in exact arithmetic, in words, with its problems."""

    def as_dict(self) -> dict[str, object]:
        """Return the verification as keys of `show --json`."""
        return {
            "verified": self.verified, "verified_reason": self.reason, "verified_share": self.share,
            "verified_scaled": list(self.scaled), "algebra": self.algebra,
        }  # fmt: skip


def algebra_text(found: Mapping[str, Any], in_words: Callable[[str], str]) -> str:
    """Return what exact arithmetic shows about a candidate.

    Args:
        found: facts of the stage `algebra`, or of a trial's evidence.
        in_words: returns a problem key as a readable problem.
    """
    groups: dict[str, list[str]] = {}
    for name, one in found["outputs"].items():
        groups.setdefault(_algebra_verdict(one, in_words), []).append(name)
    parts = "; ".join(f"{', '.join(names)} {text}" for text, names in groups.items())
    text = f"{parts}; at {' and '.join(map(in_words, found['problems']))}"
    late = [f"at {in_words(key)}, {why}" for key, why in found.get("unfinished", {}).items()]
    if any(one["verdict"] in ("same", "equal") for one in found["outputs"].values()):
        late.append(NOT_COVERED)
    return "; ".join([text, *late])


def algebra_of(study: StudyRecord, trial: Trial, proofs: Sequence[ProofRecord]) -> str:
    """Return what exact arithmetic shows about a trial, from the latest comparison.

    Args:
        study: the study of the trial.
        trial: the trial.
        proofs: results of `verify` and `prove` for the study.
    """
    mine = sorted((one for one in proofs if one.trial == trial.number), key=lambda one: one.created)
    for proof in reversed(mine):
        found = proof.result.get("stages", {}).get("algebra") if "stages" in proof.result else proof.result
        if isinstance(found, Mapping) and "detail" in found:
            return str(found["detail"])
    found = trial.evaluation.evidence.get("algebra")
    try:
        return algebra_text(found, study.in_words) if isinstance(found, Mapping) else NO_ALGEBRA
    except (KeyError, TypeError, AttributeError):  # a damaged file
        return NO_ALGEBRA


def _algebra_verdict(one: Mapping[str, Any], in_words: Callable[[str], str]) -> str:
    where = f" at {in_words(one['problem'])}" if "problem" in one else ""
    detail = one.get("detail") or ""
    detail = f" {detail}" if detail.startswith("(") else f": {detail}" if detail else ""
    match one["verdict"], one["reference"]:
        case "same", "equal":
            return "is the same expression as the default candidate's, which equals the reference"
        case "equal", _:
            return "equals the reference"
        case "same", why:
            return f"is the same expression as the default candidate's, which is not compared with the reference: {why}"
        case verdict, _:
            return f"is {verdict}{where}{detail}"
    raise AssertionError(one)


def undecided(stages: Mapping[str, Any]) -> str:
    """Return why stages without a failure do not verify a trial; empty if they do.

    Args:
        stages: the stages by name, as JSON values.
    """
    sanitizer, own = stages.get("sanitizer", {}), stages.get(OWN_PROBLEM)
    if sanitizer.get("open_loops"):
        return f"{stage_label('sanitizer')}: {sanitizer['detail']}"
    if own is not None and not own.get("covered"):
        return f"{stage_label(OWN_PROBLEM)}: {own['detail']}"
    if own is not None and not own.get("judged", True) and not own.get("compared", [0])[0]:
        return f"{stage_label(OWN_PROBLEM)}: {own['detail']}; choose a smaller problem for the study"
    return ""


def verification(
    study: StudyRecord,
    trial: Trial,
    proofs: Sequence[ProofRecord],
    undone: Sequence[ProofRecord],
    *,
    interrupted: bool,
    options: Callable[[], Sequence[str]],
) -> Verification:
    """Return the verification state of a trial.

    Args:
        study: the study of the trial.
        trial: the trial.
        proofs: results of `verify` for the study, oldest first.
        undone: verifications that ended without a result, oldest first.
        interrupted: whether the user stopped the study's latest session.
        options: returns those of the command in a message, which name the database and the reference.
    """
    # On a GPU the gate runs every block of the full-size problems; a simulated device reports how many it ran.
    share = 1.0 if not study.predicted else trial.evaluation.own_problem_share
    scaled = tuple(study.in_words(problem) for problem in trial.evaluation.scaled_problems)
    mine = [proof.result for proof in proofs if proof.trial == trial.number]
    if not mine and study.device.startswith("replay:"):
        return Verification(None, "a replay looks up recorded times and runs no candidate", share, scaled)
    if not mine:
        whys = [str(attempt.result["why"]) for attempt in undone if attempt.trial == trial.number]
        never = "the search was stopped before verification" if interrupted else "the search ended without verification"
        why = whys[-1] if whys else never
        line = command("verify", study.name, "--trial", trial.number, *options())
        return Verification(None, f"{why}; run `{line}`", share, scaled)
    stages = mine[-1].get("stages", {})
    for name, stage in stages.items():
        if stage.get("state") == "failed":
            return Verification(False, f"{stage_label(name)}: {stage['detail']}", share)
    own = stages.get(OWN_PROBLEM)
    shapes = study.problems_in_words()
    if study.predicted and own is None:
        reason = f"the last verification did not run {shapes}; run `{command('verify', study.name, *options())}`"
        return Verification(None, reason, share, scaled)
    if own is not None:
        share = own.get("share", share)
    if unclear := undecided(stages):
        return Verification(None, unclear, share)
    passed = [(stage_label(name), stage["detail"]) for name, stage in stages.items()
              if stage["state"] == "passed" and name != "algebra"]  # fmt: skip
    parts = "; ".join(f"{label}: {detail}" for label, detail in passed)
    return Verification(True, f"at {shapes}: {parts}", share)
