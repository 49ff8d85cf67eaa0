"""How often playoff and compare are wrong: on synthetic samples everywhere, and with `-m gpu` on a GPU's own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from live_bench import Bench
from real_statistics import Round, compared, playoffs
from synthetic_samples import SyntheticBench

from evokern.declaration.genes import Config
from evokern.device import Task
from evokern.device.contract import MeasuresRounds
from evokern.measurement.playoff import Rules
from evokern.measurement.statistics import median

SAMPLES = Rules().samples
PAIRS = 100
"""Playoffs, and comparisons, of each kind."""
ROUNDS_S = 100.0
"""Seconds of rounds at most: about a dozen for each playoff of equals, eight for each that is decided."""
FEWEST = 60
"""Playoffs that must come of them."""


def test_pairs_are_counted() -> None:
    """Rounds are shared out over playoffs, until they run out; equals are found alike, 5 % apart is found."""
    bench = SyntheticBench([5.0, 5.0, 5.25], seed=3)
    rounds: list[Round] = [bench([0, 1, 2], SAMPLES) for _ in range(300)]
    equal, apart = playoffs(rounds, (0, 1)), playoffs(rounds, (0, 2))
    assert equal.of > 5
    assert equal.found == 0
    assert (apart.found, apart.of) == (37, 37)
    assert playoffs(rounds, (0, 2), most=5).of == 5


def test_alarms_are_counted() -> None:
    """Samples 5 % apart raise an alarm, equal ones and faster ones do not."""
    times = [5.0 + 0.001 * n for n in range(20)]
    slower = [1.05 * time for time in times]
    assert compared([(times, times), (times, slower), (slower, times)]).found == 1


@dataclass(frozen=True)
class Measured:
    """What a GPU was asked once for all tests."""

    rounds: list[Round]
    """Rounds of the same program twice, and of one that takes 3 % longer."""
    equal: list[tuple[tuple[float, ...], tuple[float, ...]]]
    """Samples of the same program in two evaluations."""
    slower: list[tuple[tuple[float, ...], tuple[float, ...]]]
    """Samples of the program and of one that takes 5 % longer."""
    facts: dict[str, Any]
    """What was dialled and what came of it."""


def _dialled(bench: Bench) -> tuple[Config, Config, Config, dict[str, Any]]:
    """Return three candidates whose times are as 1, 1.03 and 1.05, by what this GPU takes for a step."""
    steps = bench.kernel.space.genes[0].values
    first, last = int(steps[0]), int(steps[-1])
    times = {n: median([median(_samples(bench, bench.config(STEPS=n))) for _ in range(7)]) for n in (first, last)}
    of_step = (times[last] - times[first]) / (last - first)
    wanted = {ratio: first + 10 * round((ratio - 1) * times[first] / of_step / 10) for ratio in (1.03, 1.05)}
    facts = {
        "us": times,
        "steps": wanted,
        "ratios": {r: 1 + (n - first) * of_step / times[first] for r, n in wanted.items()},
    }
    return bench.config(STEPS=first), bench.config(STEPS=wanted[1.03]), bench.config(STEPS=wanted[1.05]), facts


def _samples(bench: Bench, config: Config) -> tuple[float, ...]:
    """Measure a candidate as a search does, though it was measured before."""
    bench.forget()
    return bench.run([config])[0].timings[0].samples_us


@pytest.fixture(scope="module")
def measured() -> Iterator[Measured]:
    """Evaluations and rounds on the GPU: about two minutes."""
    with Bench("dial", "131072") as bench:
        base, by3, by5, facts = _dialled(bench)
        began = time.monotonic()
        equal = [(_samples(bench, base), _samples(bench, base)) for _ in range(PAIRS)]
        slower = [(old, _samples(bench, by5)) for old, _ in equal]
        facts["evaluations_s"], began = time.monotonic() - began, time.monotonic()
        assert isinstance(bench.device, MeasuresRounds)
        play_round = bench.device.rounds(Task(bench.kernel, bench.problems, bench.study), [base, base, by3])
        rounds: list[Round] = []
        while time.monotonic() - began < ROUNDS_S and playoffs(rounds, (0, 1), PAIRS).of < PAIRS:
            rounds += [play_round([0, 1, 2], SAMPLES) for _ in range(100)]
        facts |= {"rounds_s": time.monotonic() - began, "rounds": len(rounds)}
        yield Measured(rounds, equal, slower, facts)


def told(measured: Measured, **counts: Any) -> None:
    print(json.dumps({**measured.facts, **{name: vars(count) for name, count in counts.items()}}))


gpu = pytest.mark.gpu
long = pytest.mark.timeout(240)


@gpu
@long
def test_equals_are_seldom_told_apart_on_a_gpu(measured: Measured) -> None:
    """At the declared level of 0.01 at most 5 % of playoffs between two loads of one program call them different."""
    count = playoffs(measured.rounds, (0, 1), PAIRS)
    told(measured, equal=count)
    assert count.of >= FEWEST, measured.facts
    assert count.share <= 0.05


@gpu
@long
def test_three_percent_are_found_on_a_gpu(measured: Measured) -> None:
    """Of playoffs against a program that really takes 3 % longer at least 95 % are decided."""
    count = playoffs(measured.rounds, (0, 2), PAIRS)
    told(measured, apart=count)
    assert measured.facts["ratios"][1.03] == pytest.approx(1.03, abs=0.004), measured.facts
    assert count.of >= FEWEST, measured.facts
    assert count.share >= 0.95


@gpu
@long
def test_compare_raises_few_false_alarms_on_a_gpu(measured: Measured) -> None:
    """Of 100 pairs of evaluations of one program at most 5 alarm, of 100 with one that takes 5 % longer at least 95."""
    equal, slower = compared(measured.equal), compared(measured.slower)
    told(measured, equal=equal, slower=slower)
    assert measured.facts["ratios"][1.05] == pytest.approx(1.05, abs=0.004), measured.facts
    assert equal.found <= 5
    assert slower.found >= 95
