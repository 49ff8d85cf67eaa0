"""Verification of a champion: full correctness gate, sanitizer, playoff against the other elites, and fuzzing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evokern.analysis.candidates import TrialUnderTest, chip_of, evaluate, running_device
from evokern.analysis.verify.stages import Stage, algebra_stage, fuzz_stage, own_problem_stage, sanitizer_stage
from evokern.analysis.verify.under_test import CandidateUnderTest
from evokern.device import Device
from evokern.device.contract import MeasuresRounds
from evokern.device.recorded.table import TableDevice
from evokern.device.sim.full_size_runs import WHOLE_INSTRUCTIONS
from evokern.errors import DeviceError
from evokern.hardware.profiles import limits_for
from evokern.measurement.playoff import Playoff, Rules, by_prediction, play
from evokern.store import SessionRecord
from evokern.study.trial import Evaluation, Outcome, Trial
from evokern.wording import count_noun

MAX_RIVAL_RATIO = 1.5
"""Largest search time of a playoff opponent, as a multiple of the champion's time; slower trials cannot win."""
INSTRUCTIONS = 8 * WHOLE_INSTRUCTIONS
"""Maximum number of warp instructions on each full-size problem on a simulated device; they take one or two minutes."""


@dataclass(frozen=True)
class Proof:
    """Result of a verification."""

    study: str
    """Name of the study."""
    trial: int
    """Number of the verified trial."""
    device: str
    """Device model."""
    stages: tuple[Stage, ...]
    """Results of the stages, in order."""
    playoff: Playoff | None = None
    """Playoff, or None if there was none."""
    players: tuple[str, ...] = ()
    """Names of the playoff's candidates, such as `trial 12` or a baseline's name."""

    @property
    def passed(self) -> bool:
        """Whether no stage failed."""
        return all(stage.state != "failed" for stage in self.stages)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-serialisable dictionary."""
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
        device: device for gate and playoff; started and closed here.
        sessions: the study's sessions; they name the chip.
        rules: rules of the playoff.
        fuzz_s: seconds of fuzzing; 0 for none.
        seed: seed of the fuzzing; None chooses a random seed and reports it.
        on_stage: called with a description of the next stage.

    Raises:
        UsageError: the device is a recording, or the device, compiler or kernel does not work.
    """
    if isinstance(device, TableDevice):
        raise DeviceError(
            f"{device.identity} looks up recorded times and runs no candidate, so it verifies nothing; use --device "
            "sim:CHIP or a GPU"
        )
    chip = limits_for(chip_of(subject.record.device, sessions), subject.study.limits)

    def stage(text: str) -> None:
        on_stage(text)

    candidate = CandidateUnderTest(subject.kernel, subject.trial.config, subject.study, subject.problems, chip,
                          subject.record.secret)  # fmt: skip
    stage(f"full correctness gate on {device.identity}")
    task = subject.task(strict=True)
    with running_device(device, task) as report:
        others = [trial for trial in subject.elites if can_win(subject.trial, trial)]
        names = [f"trial {trial.number}" for trial in (subject.trial, *others)]
        configs = [subject.trial.config, *(trial.config for trial in others)]
        evaluations = evaluate(device, configs)
        stages = [gate_stage(evaluations[0], candidate.against)]
        right = [n for n, one in enumerate(evaluations) if one.outcome in (Outcome.MEASURED, Outcome.DUPLICATE)]
        played, players = None, [names[n] for n in right]
        baselines = [b.name for b in report.baselines if b.timings and not b.error]
        stage("playoff of the elites" + (" and the baseline" if baselines else ""))
        if 0 in right and len(right) + len(baselines) >= 2:
            if isinstance(device, MeasuresRounds):
                players += baselines
                played = play(device.rounds(task, [*(configs[n] for n in right), *baselines]), len(players), rules)
            else:
                played = by_prediction([evaluations[n].time_us or 0.0 for n in right], rules)
        stages.append(playoff_stage(played, players, subject.trial.number))
    stage("sanitizer on every small problem")
    stages.insert(1, sanitizer_stage(candidate))
    if device.predicted:
        stage(f"{count_noun(len(subject.problems), 'problem')} at full size, running all or some blocks")
        stages.append(own_problem_stage(candidate, INSTRUCTIONS))
    stage("exact arithmetic: the candidate against the default candidate")
    stages.append(algebra_stage(candidate, stages[1]))
    if fuzz_s > 0:
        seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        stage(f"fuzzing for {fuzz_s:g} s, seed {seed}")
        stages.append(fuzz_stage(candidate, fuzz_s, seed))
    return Proof(subject.record.name, subject.trial.number, device.identity, tuple(stages), played, tuple(players))


def can_win(champion: Trial, other: Trial) -> bool:
    """Return whether a trial could be faster than the champion, according to the times of the search."""
    ours, theirs = champion.evaluation.time_us, other.evaluation.time_us
    return other.number != champion.number and (ours is None or theirs is None or theirs <= MAX_RIVAL_RATIO * ours)


def gate_stage(evaluation: Evaluation, against: str) -> Stage:
    """Return the result of the gate stage; `against` names what the outputs were compared with, if not correct ones."""
    if evaluation.outcome in (Outcome.MEASURED, Outcome.DUPLICATE):
        detail = (
            f"equal results on every input set; compared with {against}" if against else "correct on every input set"
        )
        return Stage("gate", "passed", detail, {"gate": dict(evaluation.gate)})
    detail = f"{evaluation.outcome.value}: {evaluation.reason}"
    return Stage("gate", "failed", detail, {"evidence": dict(evaluation.evidence)})


def playoff_stage(played: Playoff | None, players: list[str], number: int) -> Stage:
    """Return the result of the playoff stage; it passes even if another trial wins."""
    if played is None:
        missing = "there are fewer than two programs to compare: elites that pass the gate, and baselines"
        return Stage("playoff", "skipped", missing)
    best = played.champion
    how = f"in {played.rounds} rounds"
    ties = [players[one.index] for one in played.finalists if one.result == "tie"]
    if played.predicted:
        comparison = "less" if ties else "more"
        how = f"by predicted times that differ by {comparison} than {100 * played.rules.margin:g} % (without noise)"
    detail = f"{players[best.index]} is fastest, {best.time_us:.3f} µs, decided {how}"
    if ties:
        detail = (
            f"{players[best.index]} has the shortest time, {best.time_us:.3f} µs, but ties with {', '.join(ties)} {how}"
        )
    if players[best.index] != f"trial {number}" and f"trial {number}" not in ties:
        detail += f"; trial {number} is not the fastest"
    return Stage("playoff", "passed", detail, {"decided": played.decided, "rounds": played.rounds})
