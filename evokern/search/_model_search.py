"""Search a simulated device before the GPU runs anything, for `--warm-start sim`.

Random candidates rarely have suitable values for several dependent genes, and a candidate that the time model ranks
first may be incorrect. The sampler `evo` therefore searches the simulated device. Some blocks of promising candidates
are checked on inputs that are sensitive to rounding. All results, fast and slow, form the prior.
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
"""Number of candidates in flight: enough work for 16 cores, and fixed so that results do not depend on the machine.

A ramp from 4, as on a GPU, would leave cores idle; starting at 16 makes the search worse
(docs/lab/2026-11-26-warm-start-in-flight.md).
"""
BLOCKS = 3
"""Maximum number of blocks per launch that are simulated for the predicted time; enough for ranking."""
UNCHECKED_PENALTY = 0.005
"""Penalty on log(time) of unchecked candidates, so that they rank after checked candidates of equal speed."""
NOTE_EVERY_S = 15.0
"""Seconds between progress notes."""


class TrialCollector(NullRecorder):
    """Recorder that collects trials in memory."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        """All trials, in the order in which they ended."""

    def record(self, trial: Trial, elapsed_s: float) -> None:
        """Add a trial."""
        self.trials.append(trial)


def search_model(
    target: SearchTarget,
    chip: Profile,
    count: int,
    seed: int,
    say: Callable[[str], None],
    within_s: float | None = None,
) -> list[tuple[Config, float]]:
    """Search the simulated device, and return the correct candidates with log(time in µs).

    Outputs are checked only for candidates that may be among the best.

    Args:
        target: kernel, problems and space; its own device is not used.
        chip: chip to simulate.
        count: number of trials.
        seed: seed of the proposals.
        say: called with progress notes, and with a note if the time ran out.
        within_s: time limit in seconds; None for no limit.

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
            what = f"best {best:.2f} µs predicted" if best else "none of them is correct"
            say(f"warm start: {loop.evaluated} of {count} candidates simulated, {what}")

    try:
        device.start(Task(target.kernel, target.problems, study))
        ended = loop.run(after)
    finally:
        device.close()
    if ended == "budget":
        done = f"{loop.evaluated} of {count} candidates simulated"
        say(f"warm start: {done} in {within_s:.0f} s; a longer budget allows more")
    results = sorted(collector.trials, key=lambda trial: trial.number)
    return [(trial.config, value) for trial in results if (value := _prior_value(trial)) is not None]


def _prior_value(trial: Trial) -> float | None:
    """Return log(predicted time) with a penalty if the outputs were not checked; None if they were wrong."""
    value = objective(trial.evaluation)
    return value + UNCHECKED_PENALTY if value is not None and trial.outcome is Outcome.SLOW else value
