"""Sampling of a candidate: it stops once the median is precise enough or the candidate has lost the race.

A device defines what a sample is (`Clock`). With several problems, a candidate races with the geometric mean of its
lower bounds. Therefore every problem gets a first round of samples before any gets a second.

Compiling a candidate often takes longer than timing it. While no other candidate waits for the device, the current one
gets more samples, which makes its time more precise at hardly any cost. The duration is limited, because with few
candidates in flight the next proposal waits for this result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evokern.measurement.statistics import (
    enough_for_interval,
    geometric_mean,
    median,
    median_interval,
    median_lower_bound,
)
from evokern.study.settings import TimingSettings

TIMING_RULE = 5
"""Version of the timing procedure, stored with each study. A change of the procedure that affects times by more than
noise gets a new number. 1: calls in a graph without steps. 2: steps around a chosen call of each graph
(`evokern.gate.timed_plan`), and samples so long that steps take at most `STEP_SHARE`. 3: samples that a power cap slows
down are repeated (`before_cap`). 4: calls of `LONG_PILOT_US` or more are samples of their own. 5: the pilot of
such calls is repeated after a rest if the GPU is power-capped, and samples are compared with the pilot too."""
FIRST_TIMING_RULE = 1
"""Timing rule of studies without a stored number."""
STEPS = 2
"""Number of steps around the chosen call of a graph (`evokern.gate.timed_plan`)."""
STEP_SHARE = 0.005
"""Maximum share of a sample's time that steps may take."""
STEP_US, LONG_STEP_US = 1.9, 2.4
"""Time of a step in µs around calls shorter than `LONG_CALL_US`, and around longer calls
(docs/lab/2026-11-27-timing.md#steps-around-calls)."""
LONG_CALL_US = 20.0
"""Call time in µs above which a step waits for memory, because the call moves much data."""
RACE_SAMPLES = 5
"""Smallest number of samples that allows a 95 % lower bound on the median."""
POWER_CAP_FACTOR = 1.04
"""Multiple of a candidate's fastest sample above which a sample counts as slowed by the power cap, if NVML reports a
cap (docs/lab/2026-11-27-timing.md#power-cap)."""
_MORE_SAMPLES = 4
FURTHER_SAMPLES_S = 0.05
"""Maximum time in seconds for further samples of a candidate while no other waits. It suffices for all samples with
four input sets and calls up to 200 µs (docs/lab/2026-11-27-timing.md#further-samples)."""
PILOT_REJECT_FACTOR = 1.3
"""Multiple of the race threshold at which a candidate loses by its pilot, the few calls that determine the sample
length. Up to a tenth of a pilot is the gap between graphs (docs/lab/2026-11-27-timing.md#pilot)."""
LONG_PILOT_REJECT_FACTOR = 1.05
"""`PILOT_REJECT_FACTOR` for calls of `LONG_PILOT_US` or more, whose overhead is 2 % of their time."""
LONG_PILOT_US = 500.0
"""Call time in µs from which single calls serve as the pilot; a graph would take several times as long
(docs/lab/2026-11-27-timing.md#pilot)."""
FIRST_LAUNCHES = 2
"""Launches after which a candidate can be rejected before its results are checked."""
LAUNCH_REJECT_FACTOR = 2.0
"""Multiple of the race threshold for that rejection, per problem. It is high because these are
single launches, the first with cold caches."""
SHORT_LAUNCH_US = 500.0
"""Launch time in µs up to which candidates are never rejected, because their gate and timing are cheap."""


class Clock(Protocol):
    """Clock for one candidate on one problem."""

    def take(self, count: int) -> Sequence[float]:
        """Return at least `count` samples in µs per call, or none after a disturbance, unless disturbances persist."""

    def counted(self, samples_us: Sequence[float]) -> Sequence[float]:
        """Return the samples that the device did not slow down or, after some retries, all samples."""


@dataclass(frozen=True)
class Series:
    """Samples of one problem."""

    samples_us: tuple[float, ...]
    """All samples in µs, in the order of measurement."""

    @property
    def median_us(self) -> float:
        """Median of the samples in µs."""
        return median(self.samples_us)

    @property
    def ci95_us(self) -> tuple[float, float]:
        """95 % interval of the median in µs."""
        return median_interval(self.samples_us)

    def settled(self, settings: TimingSettings) -> bool:
        """Return whether sampling may stop: the interval is narrow enough, or the most samples allowed were taken."""
        count = len(self.samples_us)
        if count >= settings.max_samples:
            return True
        if count < settings.min_samples or not enough_for_interval(count):
            return False
        low, high = self.ci95_us
        return high - low <= settings.ci_width * self.median_us


@dataclass(frozen=True)
class Measurement:
    """Result of timing a candidate."""

    series: tuple[Series, ...]
    """Series of each problem."""
    lost: bool
    """Whether racing stopped the candidate."""

    @property
    def time_us(self) -> float:
        """Objective in µs: the geometric mean of the medians."""
        return geometric_mean([one.median_us for one in self.series])


def measure(
    clocks: Sequence[Clock],
    settings: TimingSettings,
    elite_us: float | None = None,
    idle: Callable[[], bool] = lambda: False,
) -> Measurement:
    """Time a candidate on every problem.

    Args:
        clocks: one per problem.
        settings: stopping rule and racing margin.
        elite_us: objective to race against in µs; None measures until the stopping rule is met.
        idle: whether no other work waits for the device. While it returns True, a decided candidate gets further
            samples, for at most `FURTHER_SAMPLES_S` and up to the maximum number. They do not change whether it lost.
    """
    samples, lost = _decided(clocks, settings, elite_us)
    counts = [len(clock.counted(taken)) for clock, taken in zip(clocks, samples, strict=True)]
    end = time.perf_counter() + FURTHER_SAMPLES_S
    while min(counts) < settings.max_samples and time.perf_counter() < end and idle():
        fewest = counts.index(min(counts))
        wanted = min(_MORE_SAMPLES, settings.max_samples - counts[fewest])
        samples[fewest] += clocks[fewest].take(wanted)
        before, counts[fewest] = counts[fewest], len(clocks[fewest].counted(samples[fewest]))
        if counts[fewest] < before + wanted:
            break  # the GPU was slowed down, and further samples would wait for it
    return Measurement(_series(clocks, samples), lost)


def _decided(
    clocks: Sequence[Clock], settings: TimingSettings, elite_us: float | None
) -> tuple[list[list[float]], bool]:
    """Return all samples, and whether the race was lost; samples until the stopping rule is met or the race is lost."""
    racing = elite_us is not None and settings.race > 0
    first = RACE_SAMPLES if racing else settings.min_samples
    samples: list[list[float]] = [[] for _ in clocks]
    for clock, taken in zip(clocks, samples, strict=True):
        _sample(clock, taken, min(first, settings.max_samples))
    while True:
        series = _series(clocks, samples)
        if racing and elite_us is not None and _lost(series, settings.race * elite_us):
            return samples, True
        open_ones = [index for index, one in enumerate(series) if not one.settled(settings)]
        if not open_ones:
            return samples, False
        for index in open_ones:
            count = len(series[index].samples_us)
            wanted = settings.min_samples if count < settings.min_samples else count + _MORE_SAMPLES
            _sample(clocks[index], samples[index], min(wanted, settings.max_samples))


def _sample(clock: Clock, taken: list[float], count: int) -> None:
    """Take samples until `count` of them count."""
    while (missing := count - len(clock.counted(taken))) > 0:
        taken += clock.take(missing)


def _series(clocks: Sequence[Clock], samples: Sequence[Sequence[float]]) -> tuple[Series, ...]:
    """Return the samples that count, by problem."""
    return tuple(Series(tuple(clock.counted(taken))) for clock, taken in zip(clocks, samples, strict=True))


def lost_by_pilot(pilots: Sequence[Sequence[float]], settings: TimingSettings, elite_us: float | None) -> bool:
    """Return whether a candidate has clearly lost the race after its pilot, before sampling.

    Args:
        pilots: times of each problem's pilot in µs per call, `RACE_SAMPLES` of them.
        settings: racing margin.
        elite_us: objective to race against in µs; None without a race.
    """
    if elite_us is None or settings.race == 0:
        return False
    allowed = (LONG_PILOT_REJECT_FACTOR if min(pilot) >= LONG_PILOT_US else PILOT_REJECT_FACTOR for pilot in pilots)
    scaled = [Series(tuple(one / most for one in pilot)) for pilot, most in zip(pilots, allowed, strict=True)]
    return _lost(scaled, settings.race * elite_us)


@dataclass(frozen=True)
class LaunchLimit:
    """Launch time above which a candidate is rejected without a check of its results."""

    us: float
    """Limit in µs."""
    launches: int
    """Number of launches that must all exceed the limit."""
    uncertainty: float
    """Uncertainty factor; the shortest launch divided by it is a lower bound on the candidate's time."""
    raced_us: float
    """Time to race against in µs."""


def launch_limits(
    settings: TimingSettings, elite_us: float | None, default_us: float | None, problems: int
) -> tuple[LaunchLimit, ...]:
    """Return the launch times on one problem above which a candidate is rejected, in order of the number of launches.

    With several problems the limit is higher, because the candidate may be faster on the others. With a single problem,
    five long launches replace the pilot; the gate runs them anyway.

    Args:
        settings: racing margin.
        elite_us: objective to race against in µs, if any.
        default_us: launch time of the default candidate on this problem in µs, if known.
        problems: number of problems of the study.
    """
    raced_us = _raced_us(elite_us, default_us, problems)
    if raced_us is None or settings.race == 0:
        return ()
    longest_us = max(SHORT_LAUNCH_US, (LAUNCH_REJECT_FACTOR * settings.race) ** problems * raced_us)
    limits = [LaunchLimit(longest_us, FIRST_LAUNCHES, LAUNCH_REJECT_FACTOR, raced_us)]
    if elite_us is not None and problems == 1 and settings.cache == "rotate":
        lost_us = LONG_PILOT_REJECT_FACTOR * settings.race * elite_us
        if LONG_PILOT_US <= lost_us < longest_us:
            limits.append(LaunchLimit(lost_us, RACE_SAMPLES, LONG_PILOT_REJECT_FACTOR, elite_us))
    return tuple(limits)


def _raced_us(elite_us: float | None, default_us: float | None, problems: int) -> float | None:
    """Return the time in µs with which to compare a launch on one problem, or None.

    Args:
        elite_us: objective to race against in µs, if any; with several problems it is not the time of a single one.
        default_us: launch time of the default candidate on this problem in µs, if known.
        problems: number of problems of the study.
    """
    return min((time for time in (elite_us if problems == 1 else None, default_us) if time is not None), default=None)


def _lost(series: Sequence[Series], limit_us: float) -> bool:
    bounds = [median_lower_bound(one.samples_us) for one in series]
    known = [bound for bound in bounds if bound is not None]
    return len(known) == len(bounds) and geometric_mean(known) > limit_us


def before_cap(samples_us: Sequence[float], fastest_us: float) -> list[float]:
    """Return the samples that a power cap has not slowed down, relative to the fastest sample of the same calls."""
    return [sample for sample in samples_us if sample <= POWER_CAP_FACTOR * fastest_us]


def calls_per_sample(call_us: float, sample_us: float, sets: int) -> int:
    """Return the number of calls per sample: about `sample_us` long, and a multiple of the input sets.

    Args:
        call_us: rough time of a call in µs.
        sample_us: target length of a sample in µs.
        sets: number of input sets that the calls cycle through.
    """
    return sets * max(1, round(sample_us / (max(call_us, 0.1) * sets)))


def with_steps(calls: int, call_us: float, sets: int) -> int:
    """Return the number of calls in a sample that is long enough for its steps: at least `calls`, a multiple of `sets`.

    The number of calls per set is not divisible by 2, nor by 3 if it is above 3. Over several replays the chosen call
    of a set then covers all phases of anything that happens in every second or third call.

    Args:
        calls: result of `calls_per_sample`.
        call_us: rough time of a call in µs.
        sets: number of input sets that the calls cycle through.
    """
    step_us = STEP_US if call_us < LONG_CALL_US else LONG_STEP_US
    rounds = max(calls // sets, math.ceil(STEPS * step_us / (STEP_SHARE * sets * max(call_us, 0.1))))
    while rounds % 2 == 0 or (rounds % 3 == 0 and rounds > 3):
        rounds += 1
    return sets * rounds
