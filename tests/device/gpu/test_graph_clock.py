"""How a candidate's time comes about, on a stand-in for the GPU's streams: what is run, and what of it is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch

from evokern.device.gpu import graph_clock
from evokern.device.gpu.graph_clock import GraphClock
from evokern.device.gpu.nvml import State
from evokern.measurement.statistics import median
from evokern.measurement.timing import LONG_PILOT_US
from evokern.study.settings import TimingSettings

SETS = 7


class Stream:
    """A GPU on which each call takes so long; outside a graph some µs more."""

    def __init__(self, call_us: float) -> None:
        self.now_us, self.ran, self.capturing = 0.0, 0, False
        self._call_us = call_us

    def call(self) -> None:
        """Run a call, or capture it."""
        if not self.capturing:
            self.now_us += self._call_us + 9.0
            self.ran += 1

    def capture(self, calls: Sequence[Callable[[], None]], count: int, *_: object) -> SimpleNamespace:
        """Return a graph of so many calls."""

        def replay() -> None:
            self.now_us += 4.0 + count * self._call_us
            self.ran += count

        return SimpleNamespace(replay=replay)

    def event(self, timing: bool = False) -> SimpleNamespace:
        """Return an event of this stream."""
        mark = SimpleNamespace(at=0.0)
        mark.record = lambda: setattr(mark, "at", self.now_us)
        mark.elapsed_time = lambda other: (other.at - mark.at) / 1000.0
        return mark


def clock(stream: Stream, patch: pytest.MonkeyPatch) -> GraphClock:
    patch.setattr(graph_clock, "_capture", stream.capture)
    patch.setattr(graph_clock, "new_event", stream.event)
    patch.setattr(graph_clock, "finish", lambda limit_s, hang_s=None: None)
    monitor = SimpleNamespace(read=State)
    return GraphClock([stream.call] * SETS, TimingSettings(), monitor, None, 10.0)  # type: ignore[list-item,arg-type]


@pytest.mark.parametrize(("call_us", "calls"), [(2000.0, 6), (300.0, 6 + 6 * SETS), (5.0, 6 + (1 + 8) * 6 * SETS)])
def test_a_pilot_runs_no_more_than_it_takes(call_us: float, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long calls are timed one by one, others in a graph, the shortest in a longer one; each time is a call's own."""
    stream = Stream(call_us)
    found = clock(stream, monkeypatch)
    assert stream.ran == calls
    assert len(found.pilot_us) == 5
    assert found.pilot_us == pytest.approx((call_us,) * 5, rel=0.02)
    assert found.states, "the state of the GPU is read beside every time"


def test_samples_follow_from_the_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of long calls holds each input set once."""
    stream = Stream(2000.0)
    found = clock(stream, monkeypatch)
    found.prepare()
    assert found.calls == SETS
    assert found.take(3) == pytest.approx([2000.0] * 3, rel=0.01)


@pytest.mark.gpu
def test_the_pilot_of_a_long_call_is_its_time() -> None:
    """By it a candidate is called slow: what single calls have beside the time in a graph is far below 5 %."""
    a = torch.randn(8192, 8192, dtype=torch.float16, device="cuda")
    out = torch.empty_like(a)

    def product() -> None:
        torch.mm(a, a, out=out)

    monitor = SimpleNamespace(read=State)
    with torch.cuda.stream(torch.cuda.Stream()):
        timed = GraphClock([product] * SETS, TimingSettings(), monitor, None, 10.0)  # type: ignore[arg-type]
        assert min(timed.pilot_us) > LONG_PILOT_US
        timed.prepare()
        # A product that goes on for long is limited by power: it may take longer than its first calls, never less.
        assert 0.8 < min(timed.pilot_us) / median(timed.take(7)) < 1.03
