"""The playoff on a GPU: equals stay equals, a known difference is found, wrong results end it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_bench import Bench

from evokern.device import Task
from evokern.device.contract import MeasuresRounds
from evokern.measurement.playoff import Measure, play
from evokern.study.trial import Outcome

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]
PLAYOFFS = 25
"""Playoffs of equals; at the declared 0.01 more than two false calls among them are very unlikely."""


@pytest.fixture(scope="module")
def measure() -> Iterator[tuple[Measure, float]]:
    """Rounds between a candidate, the same once more, a slower one, and the baseline; with the slower one's ratio."""
    with Bench("scale_rows", "4096,1024") as bench:
        configs = bench.feasible()[:12]
        found = bench.run(configs)
        timed = [
            (one.time_us or 0.0, c) for one, c in zip(found, configs, strict=True) if one.outcome is Outcome.MEASURED
        ]
        timed.sort(key=lambda pair: pair[0])
        fastest, slowest = timed[0], timed[-1]
        assert isinstance(bench.device, MeasuresRounds)
        task = Task(bench.kernel, bench.problems, bench.study)
        names = [baseline.name for baseline in bench.report.baselines if baseline.timings]
        yield bench.device.rounds(task, [fastest[1], fastest[1], slowest[1], *names]), slowest[0] / fastest[0]


def test_equal_candidates_are_seldom_called_different(measure: tuple[Measure, float]) -> None:
    """Two loads of one program are called different in at most two of 25 playoffs."""
    found = [play(lambda alive, samples: measure[0](list(alive), samples), 2) for _ in range(PLAYOFFS)]
    assert sum(one.decided for one in found) <= 2


def test_a_known_difference_is_found(measure: tuple[Measure, float]) -> None:
    """The slower candidate loses, by about the ratio that the search measured."""
    play_round, ratio = measure
    if ratio < 1.03:
        pytest.skip(f"the candidates of this kernel differ by {100 * (ratio - 1):.1f} % only")
    found = play(lambda alive, samples: play_round([2 * index for index in alive], samples), 2)
    assert (found.decided, found.champion.index) == (True, 0)
    # In a search each candidate was timed alone, here they take turns.
    assert found.finalists[1].ratio == pytest.approx(ratio, rel=0.1)


def test_a_baseline_takes_part(measure: tuple[Measure, float]) -> None:
    """The baseline is measured in the same rounds, and loses to the fastest candidate."""
    found = play(lambda alive, samples: measure[0]([3 * index for index in alive], samples), 2)
    assert found.champion.index == 0
