"""How a candidate's time comes about, on a stand-in for the GPU's streams: what is run, and what of it is timed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch

from evokern.device.gpu import graph_clock
from evokern.device.gpu.graph_clock import GraphClock
from evokern.device.gpu.nvml import Monitor, State
from evokern.measurement.statistics import median
from evokern.measurement.timing import LONG_PILOT_US, measure
from evokern.study.settings import TimingSettings

SETS = 7


class Stream:
    """A GPU on which each call takes so long; outside a graph some µs more.

    With a power limit it is busy for so long before its clock falls by a seventh, and `late_us` after that the driver
    reports it; a rest makes it fast again.
    """

    def __init__(
        self, call_us: float, limit_us: float = math.inf, *, late_us: float = 0.0, recovers: bool = True
    ) -> None:
        self.now_us, self.ran, self.capturing, self.rests = 0.0, 0, False, 0
        self._call_us, self._limit_us, self._rested_us = call_us, limit_us, 0.0
        self._late_us, self._recovers = late_us, recovers

    @property
    def capped(self) -> bool:
        """Whether the power limit is reached."""
        return self.now_us - self._rested_us > self._limit_us

    def rest(self, seconds: float) -> None:
        """Idle."""
        self.rests += 1
        self._rested_us = self.now_us if self._recovers else self._rested_us

    def state(self) -> State:
        """Return what NVML would say."""
        told = self.now_us - self._rested_us > self._limit_us + self._late_us
        return State(1980.0, "power cap" if told else "")

    def _run(self, count: int, more_us: float) -> None:
        self.now_us += more_us
        for _ in range(count):
            self.now_us += self._call_us * (7 / 6 if self.capped else 1.0)
        self.ran += count

    def call(self) -> None:
        """Run a call, or capture it."""
        if not self.capturing:
            self._run(1, 9.0)

    def capture(self, calls: Sequence[Callable[[], None]], indices: range, *_: object, **__: object) -> SimpleNamespace:
        """Return a graph of some calls."""

        def replay() -> None:
            self._run(len(indices), 4.0)

        return SimpleNamespace(replay=replay, pool=lambda: None)

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
    patch.setattr(graph_clock, "time", SimpleNamespace(sleep=stream.rest))
    monitor = SimpleNamespace(read=stream.state)
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


def test_a_sample_of_short_calls_holds_each_input_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as long as the settings say, in whole rounds of the input sets."""
    stream = Stream(20.0)
    found = clock(stream, monkeypatch)
    found.prepare()
    ran = stream.ran
    assert found.take(3) == pytest.approx([20.0] * 3, rel=0.02)
    assert found.calls % SETS == 0
    assert found.calls * 20.0 == pytest.approx(TimingSettings().sample_us, rel=0.2)
    assert stream.ran - ran == 4 * found.calls  # one of them untimed


def test_each_long_call_is_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven samples take eight calls, and not seven times those of all input sets."""
    stream = Stream(2000.0)
    found = clock(stream, monkeypatch)
    found.prepare()
    ran = stream.ran
    assert found.take(SETS - 2) == pytest.approx([2000.0] * SETS, rel=0.003)
    assert stream.ran - ran == SETS + 1


@pytest.mark.parametrize(("call_us", "graphs"), [(2000.0, SETS), (100.0, 1)])
def test_steps_stand_where_the_plan_has_them_in_every_division_into_graphs(
    call_us: float, graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step before each call and one behind the last, whether the calls are one graph or many."""
    stream, told, made = Stream(call_us), [], []
    monkeypatch.setattr(graph_clock, "new_event", stream.event)
    monkeypatch.setattr(graph_clock, "finish", lambda limit_s, hang_s=None: None)

    class Graph:
        def __init__(self) -> None:
            made.append(self)

        def capture_begin(self, **_: object) -> None:
            stream.capturing = True
            told.append("begin")

        def capture_end(self) -> None:
            stream.capturing = False
            told.append("end")

        def replay(self) -> None:
            stream.now_us += call_us * (SETS if graphs == 1 else 1)

        def pool(self) -> int:
            return 1

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)

    def plan(calls: int) -> None:
        told.clear()
        made.clear()
        timed.calls = calls

    timed = SimpleNamespace(plan=plan, replays=0, settled=True)
    around = SimpleNamespace(timed=timed, before=lambda n: told.append(f"step {n}"), after=lambda n, _: told.append(n))
    monitor = SimpleNamespace(read=stream.state)
    found = GraphClock([stream.call] * SETS, TimingSettings(), monitor, None, 10.0, around)  # type: ignore[list-item,arg-type]
    found.prepare()
    assert len(made) == graphs
    whole = [what for call in range(found.calls) for what in (f"step {call}", call)] + [f"step {found.calls}"]
    assert [what for what in told if what not in ("begin", "end")] == whole
    assert told.count("begin") == told.count("end") == graphs
    replays = timed.replays
    found.take(SETS)
    assert timed.replays - replays == (1 if graphs > 1 else SETS + 1)  # one of them untimed


CAP_US = 35_000.0
"""Pilot and warm-up take 26 ms, and a sample 2: the cap comes behind three of them."""


@pytest.mark.parametrize("late_us", [0.0, 15_000.0])
def test_samples_that_a_power_cap_slows_are_taken_again(late_us: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before it count, however late it is reported, and after a rest others come as fast."""
    stream = Stream(2000.0, CAP_US, late_us=late_us)
    found = clock(stream, monkeypatch)
    found.prepare()
    series = measure([found], TimingSettings()).series[0]
    assert stream.ran >= 6 + SETS + 2 * (SETS + 1)  # pilot, warm-up, two batches or more
    assert series.median_us == pytest.approx(2000.0, rel=0.005)
    assert max(series.samples_us) < 1.04 * 2005
    assert 7 <= len(series.samples_us) <= 2 * SETS
    assert stream.rests == 1
    assert any(state.capped for state in found.states)


def test_a_gpu_that_is_still_capped_rests_before_the_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ran before does not change the time of long calls: neither their pilot nor their samples are slow."""
    stream = Stream(2000.0, CAP_US)
    stream.now_us = 2 * CAP_US
    found = clock(stream, monkeypatch)
    assert found.pilot_us == pytest.approx((2000.0,) * 5, rel=0.01)
    found.prepare()
    assert measure([found], TimingSettings()).series[0].median_us == pytest.approx(2000.0, rel=0.005)
    assert stream.rests >= 1


def test_a_cap_before_the_first_sample_is_seen_by_the_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cap that sets in during the warm-up slows all samples alike: the pilot shows it, and they are taken again."""
    stream = Stream(2000.0, 20_000.0)
    found = clock(stream, monkeypatch)
    found.prepare()
    series = measure([found], TimingSettings()).series[0]
    assert series.median_us == pytest.approx(2000.0, rel=0.005)
    assert 1 <= stream.rests < 10


def test_few_long_calls_come_before_a_power_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of 8192³ is fast for 40 ms: its samples are taken by then, and nobody rests."""
    stream = Stream(1450.0, 40_000.0)
    found = clock(stream, monkeypatch)
    found.prepare()
    series = measure([found], TimingSettings()).series[0]
    assert len(series.samples_us) == SETS
    assert max(series.samples_us) < 1.01 * 1450.0
    assert stream.rests == 0


def test_a_power_cap_that_nobody_reports_is_the_candidates_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes longer at times for a reason of its own is measured as it is: no sample is left out."""
    stream = Stream(2000.0, CAP_US, late_us=math.inf)
    found = clock(stream, monkeypatch)
    found.prepare()
    samples = found.take(7)
    assert (found.counted(samples), stream.rests) == (samples, 0)
    assert max(samples) > 1.1 * min(samples)


def test_a_gpu_that_does_not_recover_is_measured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some rests all samples count: nobody waits forever."""
    stream = Stream(2000.0, CAP_US, recovers=False)
    found = clock(stream, monkeypatch)
    found.prepare()
    series = measure([found], TimingSettings()).series[0]
    assert len(series.samples_us) >= 7
    assert series.median_us > 1.1 * 2000
    assert stream.rests == 10


def test_what_runs_in_turn_keeps_what_a_power_cap_slows(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the cap slows both alike."""
    stream = Stream(2000.0, CAP_US)
    found = clock(stream, monkeypatch)
    found.prepare()
    samples = [sample for _ in range(9) for sample in found.take(1, sustained=True)]
    assert (stream.rests, max(samples) > 1.1 * min(samples)) == (0, True)


def long_product() -> Callable[[], None]:
    """Return a call of a product of 8192³."""
    a = torch.randn(8192, 8192, dtype=torch.float16, device="cuda")
    out = torch.empty_like(a)

    def product() -> None:
        torch.mm(a, a, out=out)

    return product


@pytest.mark.gpu
def test_the_pilot_of_a_long_call_is_its_time() -> None:
    """By it a candidate is called slow: what single calls have beside the time in a graph is far below 5 %."""
    product = long_product()
    monitor = SimpleNamespace(read=State)
    with torch.cuda.stream(torch.cuda.Stream()):
        timed = GraphClock([product] * SETS, TimingSettings(), monitor, None, 10.0)  # type: ignore[arg-type]
        assert min(timed.pilot_us) > LONG_PILOT_US
        timed.prepare()
        # A product that goes on for long is limited by power: it may take longer than its first calls, never less.
        assert 0.8 < min(timed.pilot_us) / median(timed.take(7)) < 1.03


@pytest.mark.gpu
def test_long_products_take_the_same_whatever_ran_before_them() -> None:
    """A power cap that comes within the samples of one is not told as its time: four are within 2 %."""
    from evokern.device.gpu.profile import live_gpu

    product, monitor = long_product(), Monitor(live_gpu(0).pci_bus_id)
    if monitor.problem or monitor.foreign([os.getpid()]):
        pytest.skip(monitor.problem or "another process uses the GPU, which slows the products at times")
    medians, states = [], []
    with torch.cuda.stream(torch.cuda.Stream()):
        for before in (0, 40, 0, 20):  # products, of 1.5 ms on an H100
            for _ in range(before):
                product()
            torch.cuda.synchronize()
            time.sleep(0.15)  # as a candidate's gate leaves the GPU
            timed = GraphClock([product] * SETS, TimingSettings(), monitor, None, 10.0)
            timed.prepare()
            medians.append(measure([timed], TimingSettings()).time_us)
            states.append([(state.clock_mhz, state.throttle) for state in timed.states])
    assert max(medians) < 1.02 * min(medians), f"8192^3: {medians} us; clock in MHz and throttling: {states}"


@pytest.mark.gpu
def test_graphs_of_long_calls_share_their_memory() -> None:
    """What a call lets go of, the next one takes: seven of them need no more than two."""
    a = torch.randn(8192, 8192, dtype=torch.float16, device="cuda")

    def product() -> dict[str, torch.Tensor]:
        return {"c": torch.mm(a, a)}

    with torch.cuda.stream(torch.cuda.Stream()):
        product()
        torch.cuda.synchronize()
        monitor = SimpleNamespace(read=State)
        timed = GraphClock([product] * SETS, TimingSettings(), monitor, None, 10.0)  # type: ignore[arg-type]
        before = torch.cuda.memory_reserved()
        timed.prepare()
        assert torch.cuda.memory_reserved() - before <= 2 * a.numel() * a.element_size()
        assert len(timed.take(SETS)) == SETS
