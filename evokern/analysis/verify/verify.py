"""The proof of a champion: gate at full strength, sanitizer, playoff against the other elites, fuzzing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evokern.analysis.candidates import TrialUnderTest, evaluate, started
from evokern.analysis.stored import chip_of
from evokern.analysis.verify.stages import Stage, fuzz_stage, own_problem_stage, sanitizer_stage
from evokern.analysis.verify.under_test import CandidateUnderTest
from evokern.device import Device
from evokern.device.contract import Interleaving
from evokern.device.sim.own_problem_runs import WHOLE_INSTRUCTIONS
from evokern.hardware.profiles import limits_for
from evokern.measurement.playoff import Playoff, Rules, by_prediction, play
from evokern.store import SessionRecord
from evokern.study.trial import Evaluation, Outcome, Trial
from evokern.wording import several

RIVAL = 1.5
"""A trial that the search saw at more than this multiple of the champion's time plays no playoff: it cannot win."""
INSTRUCTIONS = 8 * WHOLE_INSTRUCTIONS
"""Warp instructions at each of the study's own problems, on a simulated device: one or two minutes."""


@dataclass(frozen=True)
class Proof:
    """What is known of a candidate after verification."""

    study: str
    """Name of the study."""
    trial: int
    """The trial that was verified."""
    device: str
    """Model of the device."""
    stages: tuple[Stage, ...]
    """Every part, in order."""
    playoff: Playoff | None = None
    """The playoff, where one was played."""
    players: tuple[str, ...] = ()
    """Names of the playoff's candidates: `trial 12`, or a baseline."""

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(stage.state != "failed" for stage in self.stages)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        table = self.playoff.as_dict() if self.playoff else None
        if table:
            for one in table["finalists"]:
                one["name"] = self.players[one["index"]]
        return {
            "study": self.study,
            "trial": self.trial,
            "device": self.device,
            "passed": self.passed,
            "stages": {stage.name: {"state": stage.state, "detail": stage.detail, **stage.facts}
                       for stage in self.stages},
            "playoff": table,
        }  # fmt: skip


def verify(
    subject: TrialUnderTest,
    device: Device,
    sessions: list[SessionRecord],
    *,
    rules: Rules | None = None,
    fuzz_s: float = 0.0,
    seed: int | None = None,
    on_stage: Callable[[str], None] = lambda text: None,
) -> Proof:
    """Verify a candidate.

    Args:
        subject: the study and the trial.
        device: where gate and playoff run; it is started and closed.
        sessions: the study's sessions, which tell the chip.
        rules: of the playoff.
        fuzz_s: seconds of fuzzing; 0 for none.
        seed: of the fuzzing; None draws one, which is told.
        on_stage: called with what is done next.

    Raises:
        UsageError: device, compiler or kernel cannot work.
    """
    chip = limits_for(chip_of(subject.record.device, sessions), subject.study.limits)
    on_stage(f"gate at full strength on {device.identity}")
    task = subject.task(strict=True)
    with started(device, task) as report:
        others = [trial for trial in subject.elites if rivals(subject.trial, trial)]
        names = [f"trial {trial.number}" for trial in (subject.trial, *others)]
        configs = [subject.trial.config, *(trial.config for trial in others)]
        evaluations = evaluate(device, configs)
        stages = [gate_stage(evaluations[0])]
        right = [n for n, one in enumerate(evaluations) if one.outcome in (Outcome.MEASURED, Outcome.DUPLICATE)]
        played, players = None, [names[n] for n in right]
        baselines = [b.name for b in report.baselines if b.timings and not b.error]
        on_stage("playoff of the elites" + (" and the baseline" if baselines else ""))
        if 0 in right and len(right) + len(baselines) >= 2:
            if isinstance(device, Interleaving):
                players += baselines
                played = play(device.rounds(task, [*(configs[n] for n in right), *baselines]), len(players), rules)
            else:
                played = by_prediction([evaluations[n].time_us or 0.0 for n in right], rules)
        stages.append(playoff_stage(played, players, subject.trial.number))
    on_stage("sanitizer on every small problem")
    candidate = CandidateUnderTest(subject.kernel, subject.trial.config, subject.study, subject.problems, chip,
                          subject.record.secret)  # fmt: skip
    stages.insert(1, sanitizer_stage(candidate))
    if device.predicted:
        on_stage(f"the study's own {several(len(subject.problems), 'problem')}, whole or by some of their blocks")
        stages.append(own_problem_stage(candidate, INSTRUCTIONS))
    if fuzz_s > 0:
        seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        on_stage(f"fuzzing for {fuzz_s:g} s, seed {seed}")
        stages.append(fuzz_stage(candidate, fuzz_s, seed))
    return Proof(subject.record.name, subject.trial.number, device.identity, tuple(stages), played, tuple(players))


def rivals(champion: Trial, other: Trial) -> bool:
    """Tell whether a trial could be the faster one for all that its search saw of it."""
    ours, theirs = champion.evaluation.time_us, other.evaluation.time_us
    return other.number != champion.number and (ours is None or theirs is None or theirs <= RIVAL * ours)


def gate_stage(evaluation: Evaluation) -> Stage:
    """Judge the gate's answer."""
    if evaluation.outcome in (Outcome.MEASURED, Outcome.DUPLICATE):
        return Stage("gate", "passed", "right on every kind of input", {"gate": dict(evaluation.gate)})
    detail = f"{evaluation.outcome.value}: {evaluation.reason}"
    return Stage("gate", "failed", detail, {"evidence": dict(evaluation.evidence)})


def playoff_stage(played: Playoff | None, players: list[str], number: int) -> Stage:
    """Say what the playoff decided; that another trial won is no failure, but news."""
    if played is None:
        missing = "there is no other right elite and no baseline to play against"
        return Stage("playoff", "skipped", missing)
    best = played.champion
    how = f"in {played.rounds} rounds"
    ties = [players[one.index] for one in played.finalists if one.standing == "tie"]
    if played.predicted:
        comparison = "less" if ties else "more"
        how = f"by predicted times, {comparison} than {100 * played.rules.margin:g} % apart (they have no noise)"
    detail = f"{players[best.index]} is fastest, {best.time_us:.3f} µs, decided {how}"
    if ties:
        detail = (
            f"{players[best.index]} has the smallest time, {best.time_us:.3f} µs, a tie with {', '.join(ties)} {how}"
        )
    if players[best.index] != f"trial {number}" and f"trial {number}" not in ties:
        detail += f"; trial {number} is not the fastest"
    return Stage("playoff", "passed", detail, {"decided": played.decided, "rounds": played.rounds})
