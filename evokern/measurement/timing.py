"""How many samples a candidate gets: until its median is known well enough, or until it has lost the race.

What a sample is, is the device's affair (`Clock`). On several problems a candidate races with the geometric mean of its
lower bounds, so that every problem gets a first round of samples before any gets a second.

Compiling a candidate often takes longer than timing one. While none waits for the device, the one at hand is sampled
on for a while: its time becomes better known at hardly any cost. Not longer, for where few are in flight the next
proposal waits for its answer.
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

TIMING_RULE = 4
"""How times come about, kept with each study: what changes a candidate's time on the same device by more than noise
takes another number. 1: calls in a graph, nothing between them. 2: steps around drawn calls of each graph
(`evokern.gate.timed_plan`), and samples long enough that these are at most `STEP_SHARE` of one. 3: samples that a power
cap slows are taken again (`before_cap`). 4: of calls that take `LONG_PILOT_US` each is a sample."""
FIRST_TIMING_RULE = 1
"""The rule of studies that keep no number."""
STEPS = 2
"""Steps around the drawn call of a graph (`evokern.gate.timed_plan`)."""
STEP_SHARE = 0.005
"""Largest share of a sample that they take."""
STEP_US, LONG_STEP_US = 1.9, 2.4
"""Time of one such step around calls of less than `LONG_CALL_US`, and around longer ones, µs: an empty kernel takes
0.65 in a graph, a step two loads and a store more (1.4 to 1.7, and 1.9 to 2.4, on an H200, 2026-11-23; up to
1.87 around short calls on an H100, 2026-11-27). `tests/scripts/timed_calls_cost.py` measures it."""
LONG_CALL_US = 20.0
"""Where calls move so much that a step waits for memory."""
RACE_SAMPLES = 5
"""Fewest samples that give a lower bound of the median at 95 %."""
CAPPED = 1.04
"""Times a candidate's fastest sample from which one is the power cap's and not the candidate's, where NVML reports one.
Products of 8192³ on an H100 (2026-11-26, 213 candidates): the first samples of each lay within .5 % of one another, the
cap came behind 2 to 6 of 6 ms (median 5), and further ones took 7 to 20 % more, in steps. The medians of seven to sixty
samples told apart by 11 % what differed by 1 %."""
_MORE_SAMPLES = 4
SAMPLED_ON_S = 0.05
"""Seconds after which no further samples of a candidate begin while none waits: with four input sets and calls up to
200 µs all samples are taken before. Without this limit calls of 1.6 ms were sampled .5 s while four to eight candidates
were in flight, all of them compiling (attention at 4,096 keys, H100, 2026-11-26)."""
HOPELESS = 1.3
"""Times the race's margin beyond which a candidate has lost by its pilot, the few calls from which the length of a
sample follows: of a graph of four calls up to a tenth is the wait for the next one (3 to 4 µs on an H200)."""
LONG_HOPELESS = 1.05
"""The same where a call takes `LONG_PILOT_US`: what a single one has beside the candidate's own time is 2 % of it."""
LONG_PILOT_US = 500.0
"""Time of a call from which single calls are pilot enough: launching each from Python adds some 10 µs (H200), and a
graph of all input sets would take as many times as long, its samples twelve times and more."""
FIRST_LAUNCHES = 2
"""Launches by which a candidate may be found hopeless, before anything of its answer is judged."""
ROUGH = 2.0
"""Times the race's margin beyond which it is, at one problem: launches one by one, the first with cold caches."""
SHORT_LAUNCH_US = 500.0
"""Time of a launch that no candidate is given up for: gate and timing of so short a one cost little."""


class Clock(Protocol):
    """Times one candidate on one problem."""

    def take(self, count: int) -> Sequence[float]:
        """Take so many samples or some more, µs a call; none where the device was disturbed, never none forever."""

    def counted(self, samples_us: Sequence[float]) -> Sequence[float]:
        """Return those that tell the candidate's time and not what slowed the device; after some tries all."""


@dataclass(frozen=True)
class Series:
    """The samples of one problem."""

    samples_us: tuple[float, ...]
    """Every sample, in the order taken."""

    @property
    def median_us(self) -> float:
        """Their median."""
        return median(self.samples_us)

    @property
    def ci95_us(self) -> tuple[float, float]:
        """The 95 % interval of the median."""
        return median_interval(self.samples_us)

    def settled(self, settings: TimingSettings) -> bool:
        """Whether the stopping rule is met: enough samples and an interval narrow enough, or the most samples."""
        count = len(self.samples_us)
        if count >= settings.max_samples:
            return True
        if count < settings.min_samples or not enough_for_interval(count):
            return False
        low, high = self.ci95_us
        return high - low <= settings.ci_width * self.median_us


@dataclass(frozen=True)
class Measurement:
    """What timing a candidate gave."""

    series: tuple[Series, ...]
    """One per problem."""
    lost: bool
    """Whether racing stopped it."""

    @property
    def time_us(self) -> float:
        """The objective: the geometric mean of the medians."""
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
        elite_us: objective to race against; None to run to the stopping rule.
        idle: whether nothing else waits for the device. Once the candidate is known well enough, or lost, it is sampled
            on for as long, `SAMPLED_ON_S` and the most samples at most; that it lost stays so.
    """
    samples, lost = _decided(clocks, settings, elite_us)
    counts = [len(clock.counted(taken)) for clock, taken in zip(clocks, samples, strict=True)]
    end = time.perf_counter() + SAMPLED_ON_S
    while min(counts) < settings.max_samples and time.perf_counter() < end and idle():
        fewest = counts.index(min(counts))
        wanted = min(_MORE_SAMPLES, settings.max_samples - counts[fewest])
        samples[fewest] += clocks[fewest].take(wanted)
        before, counts[fewest] = counts[fewest], len(clocks[fewest].counted(samples[fewest]))
        if counts[fewest] < before + wanted:
            break  # the GPU was slowed, and the next ones would wait for it
    return Measurement(_series(clocks, samples), lost)


def _decided(
    clocks: Sequence[Clock], settings: TimingSettings, elite_us: float | None
) -> tuple[list[list[float]], bool]:
    """Sample until the stopping rule is met or the race is lost; return all samples, and whether it was."""
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
    """Take samples until so many count."""
    while (missing := count - len(clock.counted(taken))) > 0:
        taken += clock.take(missing)


def _series(clocks: Sequence[Clock], samples: Sequence[Sequence[float]]) -> tuple[Series, ...]:
    """Return the samples that count, of each problem."""
    return tuple(Series(tuple(clock.counted(taken))) for clock, taken in zip(clocks, samples, strict=True))


def hopeless(pilots: Sequence[Sequence[float]], settings: TimingSettings, elite_us: float | None) -> bool:
    """Tell whether a candidate has lost the race before it was sampled, so clearly that a rough time shows it.

    Args:
        pilots: times of each problem's pilot, µs a call, `RACE_SAMPLES` of them.
        settings: racing margin.
        elite_us: objective to race against; None where there is no race.
    """
    if elite_us is None or settings.race == 0:
        return False
    allowed = (LONG_HOPELESS if min(pilot) >= LONG_PILOT_US else HOPELESS for pilot in pilots)
    scaled = [Series(tuple(one / most for one in pilot)) for pilot, most in zip(pilots, allowed, strict=True)]
    return _lost(scaled, settings.race * elite_us)


@dataclass(frozen=True)
class LaunchLimit:
    """A time beyond which a candidate is hopeless by its launches, before anything of its answer is judged."""

    us: float
    """The time, µs."""
    launches: int
    """How many launches must all take longer."""
    rough: float
    """How many times the candidate's time the shortest may be; divided by it, it is a lower bound."""
    raced_us: float
    """The time that is raced against, µs."""


def launch_limits(
    settings: TimingSettings, elite_us: float | None, default_us: float | None, problems: int
) -> tuple[LaunchLimit, ...]:
    """Return the times of launches at one problem beyond which a candidate is hopeless, the fewest launches first.

    At one problem of several it may be slower by as much more for each other one, where it may be faster. At the only
    problem five long launches say what a pilot would say, and the gate runs them anyway.

    Args:
        settings: racing margin.
        elite_us: objective to race against, where there is one.
        default_us: time of the default candidate's launch at this problem, where it is known.
        problems: how many the study has.
    """
    raced_us = _raced_us(elite_us, default_us, problems)
    if raced_us is None or settings.race == 0:
        return ()
    longest_us = max(SHORT_LAUNCH_US, (ROUGH * settings.race) ** problems * raced_us)
    limits = [LaunchLimit(longest_us, FIRST_LAUNCHES, ROUGH, raced_us)]
    if elite_us is not None and problems == 1 and settings.cache == "rotate":
        lost_us = LONG_HOPELESS * settings.race * elite_us
        if LONG_PILOT_US <= lost_us < longest_us:
            limits.append(LaunchLimit(lost_us, RACE_SAMPLES, LONG_HOPELESS, elite_us))
    return tuple(limits)


def _raced_us(elite_us: float | None, default_us: float | None, problems: int) -> float | None:
    """Return what a launch at one problem races against, in µs; None for nothing.

    Args:
        elite_us: objective to race against, where there is one: at several problems it is no time of one of them.
        default_us: time of the default candidate's launch at this problem, where it is known.
        problems: how many the study has.
    """
    return min((time for time in (elite_us if problems == 1 else None, default_us) if time is not None), default=None)


def _lost(series: Sequence[Series], limit_us: float) -> bool:
    bounds = [median_lower_bound(one.samples_us) for one in series]
    known = [bound for bound in bounds if bound is not None]
    return len(known) == len(bounds) and geometric_mean(known) > limit_us


def before_cap(samples_us: Sequence[float], fastest_us: float) -> list[float]:
    """Return the samples that a power cap has not slowed, by the fastest one of the same calls."""
    return [sample for sample in samples_us if sample <= CAPPED * fastest_us]


def calls_per_sample(call_us: float, sample_us: float, sets: int) -> int:
    """Return how many calls one sample holds: about `sample_us` long, and a multiple of the input sets.

    Args:
        call_us: rough time of a call, µs.
        sample_us: aimed length of a sample, µs.
        sets: input sets that the calls walk through.
    """
    return sets * max(1, round(sample_us / (max(call_us, 0.1) * sets)))


def with_steps(calls: int, call_us: float, sets: int) -> int:
    """Return the calls of a sample that is long enough for its steps, at least so many, a multiple of the input sets.

    Each set has a number of calls that 2 does not divide, nor 3 where it is above 3: from one replay to the next the
    drawn call of a set then goes through all phases of what happens in every second or third call.

    Args:
        calls: as `calls_per_sample` has them.
        call_us: rough time of a call, µs.
        sets: input sets that the calls walk through.
    """
    step_us = STEP_US if call_us < LONG_CALL_US else LONG_STEP_US
    rounds = max(calls // sets, math.ceil(STEPS * step_us / (STEP_SHARE * sets * max(call_us, 0.1))))
    while rounds % 2 == 0 or (rounds % 3 == 0 and rounds > 3):
        rounds += 1
    return sets * rounds
