"""A search of the simulated device before anything runs on the GPU: what `--warm-start sim` begins with.

What several genes must agree on is rare among random candidates, and what looks fastest to a model may be wrong. So
the model's opinion is not drawn at random: `evo` searches the simulated device, some blocks of what may be among the
best are judged on inputs that are hard on rounding, and what it looked at on the way, good and bad, is the prior.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from evokern.declaration.genes import Config
from evokern.device import Task
from evokern.device.sim.simulated import SimulatedDevice
from evokern.hardware.profiles import Profile
from evokern.samplers import History, TrialSchedule, make_sampler, objective
from evokern.search.identity import SearchTarget
from evokern.search.loop import Limits, Loop, NullRecorder
from evokern.study.trial import Outcome, Trial

IN_FLIGHT = TrialSchedule(32, 8, 4)
"""Candidates in flight, the same on any machine, so that a warm start does not depend on it: work for sixteen cores,
each a second for a candidate. With 4 at first, as on a GPU, 12 of them idled: 3 candidates in 10 s and 39 in 24 beside
an H100. With 16 from the first the best prediction after 70 candidates was what it is after 30 with 8."""
BLOCKS = 3
"""Most blocks of a launch that are counted: enough for an order."""
UNCHECKED_PENALTY = 0.005
"""Added to log(time) of what was not checked: it ranks behind what is as fast and right."""
NOTE_EVERY_S = 15.0
"""Seconds between two remarks on how far it has come."""


class TrialCollector(NullRecorder):
    """A recorder that keeps the trials."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        """Every trial, in the order they ended."""

    def record(self, trial: Trial, elapsed_s: float) -> None:
        """Keep a trial."""
        self.trials.append(trial)


def search_model(
    target: SearchTarget,
    chip: Profile,
    count: int,
    seed: int,
    say: Callable[[str], None],
    within_s: float | None = None,
) -> list[tuple[Config, float]]:
    """Return what a search of the simulated device saw, apart from what was wrong: candidates and log(time in µs).

    Answers are looked at where a candidate may be among the best.

    Args:
        target: what is searched; its own device is not touched.
        chip: the chip to simulate.
        count: trials of the search.
        seed: of its proposals.
        say: told now and then how far it has come, and where time ended it before its last trial.
        within_s: seconds that it may take; None for any number.

    Raises:
        UsageError: the kernel cannot be simulated.
    """
    space, collector = target.space, TrialCollector()
    device = SimulatedDevice(chip, screening=True)
    counting = replace(target.study.simulation, blocks=min(target.study.simulation.blocks, BLOCKS))
    study = replace(target.study, simulation=counting)
    sampler = make_sampler("evo", space, {}, seed, IN_FLIGHT)
    limits = Limits(IN_FLIGHT, budget_s=within_s, trials=count)
    loop = Loop(History(space), sampler, device, collector, limits, target.violation)
    last_note = time.monotonic()

    def after(event: str) -> None:
        nonlocal last_note
        if time.monotonic() - last_note >= NOTE_EVERY_S:
            last_note = time.monotonic()
            best = loop.best and loop.best.evaluation.time_us
            what = f"best {best:.2f} µs predicted" if best else "none of them right"
            say(f"warm start: {loop.evaluated} of {count} candidates simulated, {what}")

    try:
        device.start(Task(target.kernel, target.problems, study))
        ended = loop.run(after)
    finally:
        device.close()
    if ended == "budget":
        done = f"{loop.evaluated} of {count} candidates simulated"
        say(f"warm start: {done}, for {within_s:.0f} s; a longer budget gives more")
    results = sorted(collector.trials, key=lambda trial: trial.number)
    return [(trial.config, value) for trial in results if (value := _prior_value(trial)) is not None]


def _prior_value(trial: Trial) -> float | None:
    """Return log(predicted time), with a penalty where answers were not checked; None where they were wrong."""
    value = objective(trial.evaluation)
    return value + UNCHECKED_PENALTY if value is not None and trial.outcome is Outcome.SLOW else value
