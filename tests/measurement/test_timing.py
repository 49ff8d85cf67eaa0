"""Measuring: when samples suffice, when racing ends a candidate, and what a sample holds."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evokern.measurement.timing import (
    LAUNCH_REJECT_FACTOR,
    LONG_CALL_US,
    LONG_STEP_US,
    PILOT_REJECT_FACTOR,
    RACE_SAMPLES,
    SHORT_LAUNCH_US,
    STEP_SHARE,
    STEP_US,
    STEPS,
    Series,
    calls_per_sample,
    launch_limits,
    lost_by_pilot,
    measure,
    with_steps,
)
from evokern.study.settings import TimingSettings

SETTINGS = TimingSettings(min_samples=7, max_samples=40, ci_width=0.01, race=1.10)


class Synthetic:
    """A clock with known median and noise."""

    def __init__(self, median_us: float, noise: float = 0.0, seed: int = 1, lost: int = 0) -> None:
        self._rng = random.Random(seed)
        self._median, self._noise, self._lost = median_us, noise, lost
        self.asked: list[int] = []

    def take(self, count: int) -> Sequence[float]:
        self.asked.append(count)
        if self._lost:
            self._lost -= 1
            return ()
        return [self._median * self._rng.lognormvariate(0.0, self._noise) for _ in range(count)]

    def counted(self, samples_us: Sequence[float]) -> Sequence[float]:
        return samples_us


def test_quiet_samples_stop_at_the_least_number() -> None:
    """Without noise the least number of samples suffices."""
    result = measure([Synthetic(5.0)], SETTINGS)
    assert len(result.series[0].samples_us) == 7
    assert (result.time_us, result.lost) == (pytest.approx(5.0), False)


def test_noisy_samples_go_on_until_the_interval_is_narrow_or_the_most_are_taken() -> None:
    """More noise takes more samples; the interval is narrow enough unless the limit was reached."""
    counts = []
    for noise in (0.002, 0.01, 0.2):
        series = measure([Synthetic(5.0, noise)], SETTINGS).series[0]
        counts.append(len(series.samples_us))
        low, high = series.ci95_us
        assert len(series.samples_us) == 40 or high - low <= 0.01 * series.median_us
    assert counts == sorted(counts)
    assert counts[0] == 7
    assert counts[-1] == 40


def test_a_clearly_slower_candidate_stops_at_the_first_bound() -> None:
    """Racing ends a candidate with the samples that a bound needs, and keeps them."""
    result = measure([Synthetic(8.0, 0.01)], SETTINGS, elite_us=5.0)
    assert result.lost
    assert len(result.series[0].samples_us) == RACE_SAMPLES


@pytest.mark.parametrize(("median_us", "race"), [(5.4, 1.10), (8.0, 0.0)])
def test_within_the_margin_or_without_racing_it_runs_to_the_end(median_us: float, race: float) -> None:
    """A candidate within the margin is measured fully; race = 0 switches racing off."""
    result = measure([Synthetic(median_us)], replace(SETTINGS, race=race), elite_us=5.0)
    assert not result.lost
    assert len(result.series[0].samples_us) == 7


@pytest.mark.parametrize(
    ("pilots", "race", "lost"),
    [
        ([(7.3, 7.2, 7.4, 7.9, 7.3)], 1.10, True),
        ([(7.3, 7.1, 7.4, 7.9, 7.3)], 1.10, False),  # one sample below the bound: it may be no slower
        ([(7.3, 7.2, 7.4, 7.9)], 1.10, False),  # too few for a bound
        ([(9.9,) * 5], 0.0, False),
        ([(20.0,) * 5, (1.0,) * 5], 1.10, False),
        ([(20.0,) * 5, (2.7,) * 5], 1.10, True),
    ],
)
def test_a_pilot_ends_the_race_where_it_is_beyond_doubt(
    pilots: Sequence[Sequence[float]], race: float, lost: bool
) -> None:
    """The lower bound of the rough times, their geometric mean over problems, must be above 1.3 times the margin."""
    assert PILOT_REJECT_FACTOR * 1.10 * 5.0 == pytest.approx(7.15)
    assert lost_by_pilot(pilots, replace(SETTINGS, race=race), 5.0) == lost
    assert not lost_by_pilot(pilots, SETTINGS, None)


@pytest.mark.parametrize(("pilot_us", "lost"), [(1156.0, True), (1154.0, False)])
def test_a_long_call_s_pilot_is_nearly_its_time(pilot_us: float, lost: bool) -> None:
    """Single calls of 500 µs and more are little longer than in a graph: 5 % beyond the margin has lost."""
    assert lost_by_pilot([(pilot_us,) * 5], SETTINGS, 1000.0) == lost
    assert not lost_by_pilot([(490.0,) * 5], SETTINGS, 400.0)
    assert lost_by_pilot([(20.0,) * 5, (1e3,) * 5], SETTINGS, math.sqrt(20.0 * 1e3 / (1.3 * 1.05)) / 1.11)
    assert not lost_by_pilot([(20.0,) * 5, (1e3,) * 5], SETTINGS, math.sqrt(20.0 * 1e3 / (1.3 * 1.05)) / 1.09)


@pytest.mark.parametrize(
    ("elite_us", "default_us", "problems", "race", "longest_us", "lost_us"),
    [
        (None, 3000.0, 1, 1.10, 6600.0, None),
        (1000.0, 3000.0, 1, 1.10, 2200.0, 1155.0),
        (4000.0, 3000.0, 1, 1.10, 6600.0, 4620.0),
        (1000.0, None, 1, 1.10, 2200.0, 1155.0),
        (440.0, None, 1, 1.10, 968.0, 508.2),
        (430.0, None, 1, 1.10, 946.0, None),  # so short a launch is mostly the gate's
        (20.0, 30.0, 1, 1.10, SHORT_LAUNCH_US, None),
        (None, 3000.0, 2, 1.10, 14520.0, None),
        (1000.0, 3000.0, 2, 1.10, 14520.0, None),  # the elite's time is of both problems
        (1000.0, None, 2, 1.10, None, None),
        (None, None, 1, 1.10, None, None),
        (1000.0, 3000.0, 1, 0.0, None, None),
    ],
)
def test_a_launch_may_take_so_long(
    elite_us: float | None,
    default_us: float | None,
    problems: int,
    race: float,
    longest_us: float | None,
    lost_us: float | None,
) -> None:
    """Twice the margin of the faster of elite and default, more where other problems may make up for it.

    Long launches at the only problem that all take longer than the margin, by what one launch is off, have lost, too.
    """
    assert LAUNCH_REJECT_FACTOR * 1.10 == pytest.approx(2.2)
    found = launch_limits(replace(SETTINGS, race=race), elite_us, default_us, problems)
    wanted = [(longest_us, 2), (lost_us, RACE_SAMPLES)]
    assert [(pytest.approx(us), launches) for us, launches in wanted if us] == [(one.us, one.launches) for one in found]
    flushed = launch_limits(replace(SETTINGS, race=race, cache="flush"), elite_us, default_us, problems)
    assert flushed == found[:1], "launches one by one find in L2 what timed ones do not"


def test_several_problems_race_with_their_geometric_mean() -> None:
    """A candidate slow on one problem survives when it makes up for it on another."""
    assert not measure([Synthetic(20.0), Synthetic(1.0)], SETTINGS, elite_us=5.0).lost
    slow = measure([Synthetic(20.0), Synthetic(2.0)], SETTINGS, elite_us=5.0)
    assert slow.lost
    assert [len(one.samples_us) for one in slow.series] == [5, 5]
    assert slow.time_us == pytest.approx(40**0.5)


class Slowed(Synthetic):
    """A clock of a device that is slowed for a while: from the second batch on samples take twice as long."""

    def __init__(self, median_us: float, last: int) -> None:
        super().__init__(median_us)
        self._last = last

    def take(self, count: int) -> Sequence[float]:
        taken = super().take(count)
        return [2 * one for one in taken] if 1 < len(self.asked) <= self._last else taken

    def counted(self, samples_us: Sequence[float]) -> Sequence[float]:
        return [one for one in samples_us if one < 1.5 * min(samples_us)]


def test_a_slowed_device_is_not_sampled_on() -> None:
    """While nothing waits more samples are taken, but not those for which the device would have to rest."""
    clock = Slowed(5.0, last=9)
    found = measure([clock], SETTINGS, idle=lambda: True)
    assert (clock.asked, found.series[0].samples_us) == ([7, 4], (5.0,) * 7)


def test_samples_that_do_not_count_are_taken_again() -> None:
    """A rule that asks for more goes on until so many count, and no other is in the result."""
    clock = Slowed(5.0, last=3)
    found = measure([clock], replace(SETTINGS, min_samples=20, max_samples=20), elite_us=5.0)
    assert clock.asked == [5, 15, 15, 15]
    assert found.series[0].samples_us == (5.0,) * 20


@pytest.mark.parametrize("median_us", [5.0, 8.0])
def test_idle_devices_sample_on(median_us: float) -> None:
    """While nothing waits, a candidate that is known well enough or lost gets more samples, and stays what it was."""
    moments = iter([True] * 3 + [False] * 100)
    usual = measure([Synthetic(median_us, 0.002)], SETTINGS, elite_us=5.0)
    longer = measure([Synthetic(median_us, 0.002)], SETTINGS, elite_us=5.0, idle=lambda: next(moments))
    assert longer.series[0].samples_us[: len(usual.series[0].samples_us)] == usual.series[0].samples_us
    assert len(longer.series[0].samples_us) == len(usual.series[0].samples_us) + 12
    assert longer.lost == usual.lost == (median_us > 5.5)
    whole = measure([Synthetic(median_us), Synthetic(median_us)], SETTINGS, idle=lambda: True)
    assert [len(one.samples_us) for one in whole.series] == [SETTINGS.max_samples] * 2


def test_long_calls_are_sampled_on_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where few are in flight the next proposal waits for the answer: it comes after a twentieth of a second more."""
    now = itertools.count()
    monkeypatch.setattr("evokern.measurement.timing.time", SimpleNamespace(perf_counter=lambda: 0.02 * next(now)))
    found = measure([Synthetic(5000.0, 0.0001)], SETTINGS, idle=lambda: True)
    assert len(found.series[0].samples_us) == SETTINGS.min_samples + 2 * 4


def test_disturbed_samples_are_taken_again() -> None:
    """A batch that the device discarded is asked for anew."""
    clock = Synthetic(5.0, lost=2)
    assert len(measure([clock], SETTINGS).series[0].samples_us) == 7
    assert clock.asked == [7, 7, 7]


def test_fewer_samples_than_an_interval_needs_never_settle() -> None:
    """Five equal samples are no 95 % interval, though their range is narrow; six are, and the most allowed suffice."""
    assert not Series((5.0,) * 5).settled(replace(SETTINGS, min_samples=3))
    assert Series((5.0,) * 6).settled(replace(SETTINGS, min_samples=3))
    assert Series((5.0,) * 4).settled(replace(SETTINGS, min_samples=3, max_samples=4))


@pytest.mark.parametrize(
    ("call_us", "sets", "expected"), [(5.0, 4, 100), (0.0, 4, 5000), (499.0, 1, 1), (1e5, 4, 4), (130.0, 4, 4)]
)
def test_a_sample_holds_whole_rounds_of_the_input_sets(call_us: float, sets: int, expected: int) -> None:
    """Every input set is used equally often in a sample, at least once."""
    assert calls_per_sample(call_us, 500.0, sets) == expected


@given(st.floats(0.2, 5000), st.integers(1, 8), st.floats(1, 1e5))
def test_a_sample_is_long_enough_for_its_steps(call_us: float, sets: int, sample_us: float) -> None:
    """Steps take their share at most, no more calls than it takes, and each set as many, no multiple of 2 or 3."""
    wanted = calls_per_sample(call_us, sample_us, sets)
    calls = with_steps(wanted, call_us, sets)
    assert calls >= wanted
    assert calls % sets == 0
    step_us = STEP_US if call_us < LONG_CALL_US else LONG_STEP_US
    assert STEPS * step_us <= STEP_SHARE * calls * call_us * (1 + 1e-9)
    rounds = calls // sets
    assert rounds % 2 == 1
    assert rounds % 3 != 0 or rounds == 3
    shorter = [fewer for fewer in range(1, rounds) if fewer % 2 and (fewer % 3 or fewer == 3)]
    assert all(n * sets < wanted or STEPS * step_us > STEP_SHARE * n * sets * call_us * (1 - 1e-9) for n in shorter)
