"""Timing by graph replay: many calls in one CUDA graph, so that the cost of launching from Python vanishes.

A sample is one replay between two events. Replays of a batch are queued back to back behind an untimed one, so that
the GPU never waits for the CPU within a batch. `rotate`: the calls of a graph walk through several input sets; where a
call takes `LONG_PILOT_US`, each is a graph and a sample of its own, so that enough of them come before a power cap.
`flush`: every call follows a write over the whole L2; a second graph holds the writes alone, and a sample is the
difference of two replays, taken one after the other. Candidates and baselines are timed by this same code.

Around a drawn call of a timed graph stand steps that change inputs, poison outputs and keep its answer
(`evokern.gate.timed_plan`), so that what is timed is what is checked. What changes here or there in how a time comes
about takes another `TIMING_RULE` (`evokern.measurement.timing`): a study is timed under one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from evokern.device.gpu.cuda import finish, new_event
from evokern.device.gpu.nvml import Monitor, State
from evokern.device.gpu.timed_calls import StepsAround
from evokern.measurement.timing import LONG_PILOT_US, RACE_SAMPLES, before_cap, calls_per_sample, with_steps
from evokern.study.settings import TimingSettings

_PATIENCE = 3
_RESTS = 10
"""Most rests of one candidate, each behind samples that a power cap slowed."""
_REST_S = 0.1
"""Seconds in which a GPU that its power cap slowed is fast again for some 30 ms: with .14 s and the gate's launches
between the timings of two products of 8192³ every one of 213 began as fast as it ever was (H100, 2026-11-26)."""
_LONG_BATCH_US = 10_000.0
"""Length of a batch behind which the GPU's state is read once more: it may have changed within."""
_SHORT_US = 20.0
"""Time of a call below which that between two graphs counts: 3 to 4 µs (H200), a tenth of four calls of 10 µs."""
_LONGER = 8
"""Times as many calls in the pilot then."""

TimedCall = Callable[[], Mapping[str, torch.Tensor] | None]
"""Enqueues one call on the current stream; returns its outputs where they are not those of the buffers it was given."""


class GraphClock:
    """Times one candidate, or baseline, on one problem."""

    def __init__(
        self,
        calls: Sequence[TimedCall],
        settings: TimingSettings,
        monitor: Monitor,
        flush: torch.Tensor | None,
        hang_s: float,
        around: StepsAround | None = None,
    ) -> None:
        """Capture a pilot and time it; `prepare` captures what is sampled.

        Args:
            calls: one per input set; each enqueues one call on the current stream.
            settings: sample length, warm-up, cache mode.
            monitor: where clocks are read while samples are taken.
            flush: buffer as large as L2 that is overwritten before each call; None for `rotate`.
            hang_s: seconds after which a replay counts as hung.
            around: what changes around a drawn call, and what is kept of it; None for nothing.

        Raises:
            RunFailed: a call cannot be captured, crashed, or did not end.
        """
        self._settings = settings
        self._monitor = monitor
        self._waits = self._rests = 0
        self._fastest_us = math.inf
        self._hang_s = hang_s
        self.states: list[State] = []
        """Readings of clock and temperature, one or two a batch."""
        self.timed = around.timed if around else None
        """The drawn call of the timed graph."""
        self._parts: list[torch.cuda.CUDAGraph] = []  # what is timed, one after the other
        self._writes: torch.cuda.CUDAGraph | None = None
        self._sequence, self._around, self._flush = calls, around, flush
        self.pilot_us = self._single_times()
        """Rough times, µs a call: without steps, and without a write over L2 before each call."""
        if min(self.pilot_us) < LONG_PILOT_US:
            self.pilot_us = self._pilot_times(len(calls))
        if min(self.pilot_us) < _SHORT_US:
            # From one graph to the next the GPU waits for as long as such calls take.
            self.pilot_us = self._pilot_times(_LONGER * len(calls))
        self._call_us = max(min(self.pilot_us), 0.05)
        self.calls = calls_per_sample(self._call_us, settings.sample_us, len(calls))
        """Calls of the timed graph."""
        if around is not None:
            self.calls = with_steps(self.calls, self._call_us, len(calls))

    def prepare(self) -> None:
        """Draw what changes around calls, capture the graphs and warm up.

        Raises:
            RunFailed: a call cannot be captured, crashed, or did not end.
            KernelError: the reference raised.
        """
        calls, flush = self._sequence, self._flush
        if self._around is not None:
            self._around.timed.plan(self.calls)
        size = 1 if flush is None and self._call_us >= LONG_PILOT_US else self.calls
        for first in range(0, self.calls, size):
            # One after the other they need no more memory than the largest of them does.
            pool = self._parts[0].pool() if self._parts else None
            self._parts.append(_capture(calls, range(first, first + size), flush, self._around, pool))
        if flush is not None:
            self._writes = _capture([lambda: None], range(self.calls), flush)
        for _ in range(max(1, min(1000, round(self._settings.warmup_us / (self._call_us * self.calls))))):
            self._run()

    def replay(self) -> None:
        """Run the timed graph until inputs and answers are as the bench drew them (once more, or twice); wait.

        Raises:
            RunFailed: a call crashed, or did not end.
        """
        self._run()
        self.settle()

    def settle(self) -> None:
        """Run the timed graph once more if its last run left changed inputs behind; wait.

        Raises:
            RunFailed: a call crashed, or did not end.
        """
        if self.timed is not None and not self.timed.settled:
            self._run()
        finish(self._hang_s * self.calls, self._hang_s)

    def fault(self) -> dict[str, Any] | None:
        """Settle; return evidence of a kept answer that is wrong, None where there is none.

        Raises:
            RunFailed: a call crashed, or did not end.
        """
        self.settle()
        return self.timed.fault() if self.timed is not None else None

    def _run(self) -> None:
        for index in range(len(self._parts)):
            self._run_part(index)

    def _run_part(self, index: int) -> None:
        if self.timed is not None and index == 0:
            self.timed.replays += 1
        self._parts[index].replay()

    def take(self, count: int, *, sustained: bool = False) -> list[float]:
        """Take samples, µs a call; none where heat or the hardware slowed the GPU (after some tries they are kept).

        Behind samples that a power cap slowed the GPU rests: `counted` tells which they are.

        Args:
            count: how many; of long calls the next multiple of the calls of the timed graph is taken.
            sustained: do not rest: a power cap slows all alike that run in turn.

        Raises:
            RunFailed: a call crashed, or did not end.
        """
        seen = len(self.states)
        times = self._samples(count)
        if any(state.disturbed for state in self.states[seen:]) and self._waits < _PATIENCE:
            self._waits += 1
            time.sleep(0.05)
            return []
        self._fastest_us = min(self._fastest_us, *times)
        if not sustained and len(self.counted(times)) < len(times):
            self._rests += 1
            time.sleep(_REST_S)
        return times

    def counted(self, samples_us: Sequence[float]) -> list[float]:
        """Return the samples that tell this candidate's time: where a power cap was reported, those before it.

        The driver reports it some ms late, so that samples of earlier batches are left out too. After some rests all
        count: the GPU is not fast again.

        Args:
            samples_us: what `take` returned so far.
        """
        if self._rests == _RESTS or not any(state.capped for state in self.states):
            return list(samples_us)
        return before_cap(samples_us, self._fastest_us)

    def _single_times(self) -> tuple[float, ...]:
        """Return times of single calls behind an untimed one, µs: as many as show whether a race is lost."""
        marks = [new_event(timing=True) for _ in range(RACE_SAMPLES + 1)]
        for index, mark in enumerate(marks):
            self._sequence[index % len(self._sequence)]()
            mark.record()
        self.states.append(self._monitor.read())
        finish(self._hang_s * len(marks), self._hang_s)
        return tuple(1000.0 * a.elapsed_time(b) for a, b in itertools.pairwise(marks))

    def _pilot_times(self, calls: int) -> tuple[float, ...]:
        """Return times of a call of a graph of so many, µs: as many as show whether a race is lost."""
        graph = _capture(self._sequence, range(calls), None)
        return tuple(span / calls for span in self._spans([graph.replay], RACE_SAMPLES, graph.replay))

    def _samples(self, count: int) -> list[float]:
        """Return so many samples or some more, µs a call."""
        parts = [functools.partial(self._run_part, index) for index in range(len(self._parts))]
        if self._writes is not None:
            writes = self._writes.replay
            spans = self._spans([*parts, writes], count, writes)
            return [max(whole - own, 0.0) / self.calls for whole, own in zip(spans[::2], spans[1::2], strict=True)]
        # A call is enough to keep the GPU from waiting for the first of several graphs.
        ahead = self._run if len(parts) == 1 else self._sequence[0]
        calls = self.calls // len(parts)
        return [span / calls for span in self._spans(parts, math.ceil(count / len(parts)), ahead)]

    def _spans(self, timed: Sequence[Callable[[], object]], count: int, ahead: Callable[[], object]) -> list[float]:
        """Return what each takes that is run in turn so many times, µs, behind an untimed one."""
        marks = [new_event(timing=True) for _ in range(count * len(timed) + 1)]
        ahead()
        marks[0].record()
        for index in range(count * len(timed)):
            timed[index % len(timed)]()
            marks[index + 1].record()
        self.states.append(self._monitor.read())
        finish(self._hang_s * (count + 1) * len(timed), self._hang_s)
        spans = [1000.0 * a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
        if sum(spans) >= _LONG_BATCH_US:
            self.states.append(self._monitor.read())
        return spans


def _capture(
    calls: Sequence[TimedCall],
    indices: range,
    flush: torch.Tensor | None,
    around: StepsAround | None = None,
    pool: Any = None,
) -> torch.cuda.CUDAGraph:
    """Capture some of the calls of a graph, with what stands before each, and behind the last of all.

    Args:
        calls: one per input set.
        indices: which calls of the graph.
        flush: buffer that is overwritten before each call, if any.
        around: what changes around a drawn call, if anything.
        pool: memory of a graph that always runs before this one, which takes what that one's calls let go of; None for
            memory of its own.
    """
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        for index in indices:
            if around is not None:
                around.before(index)
            if flush is not None:
                flush.zero_()
            outputs = calls[index % len(calls)]()
            if around is not None:
                around.behind(index, outputs)
            del outputs  # the next call may take its memory, unless it is one whose answer is kept
            if around is not None and index + 1 == around.timed.calls:
                around.before(index + 1)
    except Exception:
        # An unfinished capture must be ended; that it failed is known already.
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        raise
    graph.capture_end()
    return graph
