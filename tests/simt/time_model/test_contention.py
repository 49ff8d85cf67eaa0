"""Pipes that warps share: no clock is lost or given out twice, gaps are filled, and whoever is alone is not held up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evokern.simt.time_model import contention
from evokern.simt.time_model.contention import INTERVAL_CLOCKS, Pipes

EXACT = 1e-6
"""Clocks by which sums of many stretches may differ."""
needs = st.floats(0, 400).map(lambda clocks: round(clocks, 2))
starts = st.floats(0, 2000).map(lambda clock: round(clock, 1))
requests = st.lists(st.tuples(starts, needs, st.sampled_from(["queue", "share"])), min_size=1, max_size=12)


def ask(pipes: Pipes, start: float, need: float, way: str) -> float:
    """Ask for clocks of the first of two pipes, and when sharing for half as many of the second; return the end."""
    if way == "queue":
        return pipes.queue(0, start, need)
    return pipes.share(start, start + 40.0, np.array([need, need / 2]))


@given(requests)
def test_what_was_asked_for_is_taken(asked: Sequence[tuple[float, float, str]]) -> None:
    """Every pipe is taken for just the clocks that all requests needed of it, whatever was taken before."""
    pipes = Pipes(2)
    for start, need, way in asked:
        before = pipes.taken
        ask(pipes, start, need, way)
        expected = [need, need / 2 if way == "share" else 0.0]
        assert pipes.taken - before == pytest.approx(expected, abs=EXACT)


@given(requests)
def test_nobody_is_done_early_or_waits_for_more_than_others_took(asked: Sequence[tuple[float, float, str]]) -> None:
    """A request ends after its own clocks at the earliest, at the latest when all that was taken has gone by too."""
    pipes = Pipes(2)
    for start, need, way in asked:
        taken = float(pipes.taken.max())
        done = ask(pipes, start, need, way)
        earliest = start + max(need, 40.0 if way == "share" else 0.0)
        assert earliest - EXACT <= done <= max(earliest, start + need + taken) + EXACT


@given(requests)
def test_a_pipe_does_no_more_than_it_has_clocks(asked: Sequence[tuple[float, float, str]]) -> None:
    """From clock 0 to the last end, and a stretch over which work is spread, no pipe is taken for longer than that."""
    pipes = Pipes(2)
    last = max(ask(pipes, 0.0, need, way) for _, need, way in asked)
    assert pipes.taken.max() <= last + INTERVAL_CLOCKS


@given(st.integers(0, 40), needs.filter(bool))
def test_equal_requests_at_the_same_time_end_one_after_the_other(stretch: int, need: float) -> None:
    """The second of two ends at twice the time, the third at three times."""
    pipes, start = Pipes(1), stretch * INTERVAL_CLOCKS
    assert [pipes.queue(0, start, need) - start for _ in range(3)] == pytest.approx([need, 2 * need, 3 * need])


@given(starts, needs)
def test_equal_requests_within_a_stretch_are_told_apart_to_a_stretch(start: float, need: float) -> None:
    """Begun in the middle of a stretch, what the second is early by is less than a stretch, and never more work."""
    pipes = Pipes(1)
    first, second = (pipes.queue(0, start, need) for _ in range(2))
    assert first == pytest.approx(start + need)
    assert start + 2 * need - INTERVAL_CLOCKS <= second <= start + 2 * need + EXACT


@given(starts, st.lists(needs, min_size=1, max_size=30))
def test_work_that_follows_its_own_is_not_held_up(start: float, work: Sequence[float]) -> None:
    """A request on a free pipe ends when the work alone does, also one that begins where the one before ended."""
    pipes, clock = Pipes(1), start
    for need in work:
        clock = pipes.queue(0, clock, need)
    assert clock == pytest.approx(start + sum(work), abs=EXACT)


def test_gaps_are_filled_afterwards() -> None:
    """Whoever comes later in the walk but earlier by the clock is served at once; what does not fit goes on behind."""
    pipes = Pipes(1)
    assert pipes.queue(0, 320.0, 100.0) == 420.0
    assert pipes.queue(0, 0.0, 100.0) == 100.0
    assert pipes.queue(0, 0.0, 250.0) == 420.0 + 30.0


@given(st.lists(st.tuples(st.integers(0, 20), needs), min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_service_does_not_change_when_the_last_is_done(
    asked: list[tuple[int, float]], rng: object
) -> None:
    """Whichever of several requests is walked first, the pipe is busy for as long."""

    def last(order: Sequence[tuple[int, float]]) -> float:
        pipes = Pipes(1)
        return max(pipes.queue(0, stretch * INTERVAL_CLOCKS, need) for stretch, need in order)

    shuffled = asked.copy()
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert last(shuffled) == pytest.approx(last(asked))


def test_shared_work_ends_with_the_pipe_that_has_the_least_room() -> None:
    """What fits beside other work costs nothing, what does not waits for the fullest pipe; no need costs no time."""
    pipes = Pipes(2)
    assert pipes.share(0.0, 320.0, np.array([160.0, 300.0])) == 320.0
    assert pipes.share(0.0, 320.0, np.array([160.0, 10.0])) == 320.0
    assert pipes.share(0.0, 320.0, np.array([0.0, 20.0])) == pytest.approx(330.0)
    assert pipes.share(7.0, 50.0, np.zeros(2)) == 50.0
    assert pipes.queue(0, 7.0, 0.0) == 7.0
    assert pipes.taken == pytest.approx([320.0, 330.0])


def test_very_long_work_is_kept_in_longer_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded in a long walk, no clock is lost, and room in the old stretches is still found."""
    monkeypatch.setattr(contention, "MAX_INTERVALS", 512)
    pipes = Pipes(1)
    assert pipes.queue(0, 3200.0, 1e6) == pytest.approx(1e6 + 3200)
    assert pipes.queue(0, 3200.0, 1e6) == pytest.approx(2e6 + 3200, rel=0.01)
    assert pipes.taken == pytest.approx([2e6])
    assert pipes.queue(0, 0.0, 1000.0) < 3200 + 8192
    clock = pipes.queue(0, 0.0, 5e6)
    assert clock == pytest.approx(7e6 + 1000, rel=0.01)
    assert pipes.taken == pytest.approx([7e6 + 1000])
