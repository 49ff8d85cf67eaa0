"""The proof of a champion: gate at full strength, sanitizer, playoff against the other elites, fuzzing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from evokern.analysis.candidates import Interleaving, TrialUnderTest, evaluate, started
from evokern.analysis.stored import chip_of
from evokern.analysis.verify.fuzz import Checker, FuzzCase, FuzzResult, fuzz, shapes
from evokern.declaration.feasibility import check
from evokern.declaration.small_problems import MOST, small_problem
from evokern.device import Device
from evokern.hardware.profiles import Profile, limits_for
from evokern.measurement.playoff import Playoff, Rules, by_prediction, play
from evokern.store import SessionRecord
from evokern.study.trial import Evaluation, Outcome, Trial

RIVAL = 1.5
"""A trial that the search saw at more than this multiple of the champion's time plays no playoff: it cannot win."""
State = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Stage:
    """One part of the proof."""

    name: str
    """gate, sanitizer, playoff or fuzz."""
    state: State
    """How it ended."""
    detail: str
    """What was found, in a sentence."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The numbers, as JSON values."""


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
    stages.insert(1, sanitizer_stage(subject, chip))
    if fuzz_s > 0:
        seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        on_stage(f"fuzzing for {fuzz_s:g} s, seed {seed}")
        stages.append(fuzz_stage(subject, chip, fuzz_s, seed))
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


def sanitizer_stage(subject: TrialUnderTest, chip: Profile) -> Stage:
    """Run the candidate on every small problem that it can, each access checked."""
    kernel, config = subject.kernel, subject.trial.config
    wanted = [small_problem(kernel, text, p) for p in subject.problems for text in kernel.workload.small_problems]
    problems = [p for p in dict.fromkeys(wanted) if check(kernel, config, [p], chip, essential=True) is None]
    if not problems:
        return Stage("sanitizer", "skipped", "the candidate can run none of the kernel's small problems")
    checker = Checker(kernel, config, subject.study, chip)
    for number, problem in enumerate(problems):
        # What the sanitizer looks for seldom depends on values: the larger problems, declared last, take one kind.
        inputs = checker.inputs if number < MOST else checker.inputs[:1]
        failure = checker.check(FuzzCase(problem, random.SystemRandom().getrandbits(48), inputs, 0))
        if failure:
            return Stage("sanitizer", "failed", f"{failure.check} at {failure.case}: {failure.message}")
    listed = ", ".join(map(str, problems))
    return Stage("sanitizer", "passed", f"no finding at {listed}", {"problems": [str(p) for p in problems]})


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


def fuzz_stage(subject: TrialUnderTest, chip: Profile, seconds: float, seed: int) -> Stage:
    """Fuzz the candidate."""
    kernel, config = subject.kernel, subject.trial.config
    checker = Checker(kernel, config, subject.study, chip)
    found: FuzzResult = fuzz(checker, shapes(kernel, config, subject.problems, chip, seed), seconds, seed=seed)
    facts = {**found.as_dict(), "seed": seed}
    if found.passed:
        return Stage("fuzz", "passed", f"{found.cases} cases at {found.problems} shapes, seed {seed}", facts)
    first = found.failures[0]
    return Stage("fuzz", "failed", f"{first.check} at {first.case}: {first.message}", facts)
