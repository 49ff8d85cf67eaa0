"""Timing by graph replay: one CUDA graph holds many calls, so Python's launch costs do not count.

A sample is one replay between two events. The replays of a batch are queued back to back after an untimed one, so the
GPU never waits for the CPU within a batch. In the mode `rotate` the calls of a graph cycle through several input sets.
If a call takes `LONG_PILOT_US` or more, each call is a graph and a sample of its own, so enough samples precede a power
cap. In the mode `flush` every call follows a write over the whole L2. A second graph holds only these writes, and a
sample is the difference of two consecutive replays. Candidates and baselines are timed by the same code.

Each timed graph has steps around one randomly chosen call (`evokern.gate.timed_plan`). They change inputs, poison
outputs and record outputs, so the timed calls themselves are checked. A change to the timing procedure in this file
needs a new `TIMING_RULE` (`evokern.measurement.timing`), because each study uses one rule.
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

_MAX_DISTURBED = 3
_MAX_RESTS = 10
"""Maximum number of rests per candidate, each after samples that a power cap slowed down."""
_REST_S = 0.1
"""Seconds of rest after which a power-capped GPU is fast again for about 30 ms
(docs/lab/2026-11-27-timing.md#power-cap)."""
_LONG_BATCH_US = 10_000.0
"""Length of a batch in µs after which the GPU's state is read again, because it may have changed."""
_SHORT_US = 20.0
"""Call time in µs below which the gap between two graphs matters (docs/lab/2026-11-27-timing.md#pilot)."""
_SHORT_PILOT_FACTOR = 8
"""Factor for the number of pilot calls below `_SHORT_US`."""

TimedCall = Callable[[], Mapping[str, torch.Tensor] | None]
"""Function that enqueues one call on the current stream; it returns the outputs if the call allocates them itself."""


class GraphClock:
    """Clock of one candidate or baseline on one problem."""

    def __init__(
        self,
        calls: Sequence[TimedCall],
        settings: TimingSettings,
        monitor: Monitor,
        flush: torch.Tensor | None,
        hang_s: float,
        around: StepsAround | None = None,
    ) -> None:
        """Capture and time a pilot; `prepare` captures the graphs for sampling.

        Args:
            calls: one per input set; each enqueues one call on the current stream.
            settings: sample length, warm-up, cache mode.
            monitor: source of clock readings during sampling.
            flush: buffer as large as L2 that is overwritten before each call; None for `rotate`.
            hang_s: seconds after which a replay counts as hung.
            around: steps around a randomly chosen call; None for no steps.

        Raises:
            RunFailed: a call cannot be captured, crashed, or hung.
        """
        self._settings = settings
        self._monitor = monitor
        self._waits = self._rests = 0
        self._fastest_us = math.inf
        self._hang_s = hang_s
        self.states: list[State] = []
        """Readings of clock and temperature, one or two per batch."""
        self.timed = around.timed if around else None
        """Randomly chosen call of the timed graph with its steps."""
        self._parts: list[torch.cuda.CUDAGraph] = []  # graphs to time, one after another
        self._writes: torch.cuda.CUDAGraph | None = None
        self._sequence, self._around, self._flush = calls, around, flush
        self.pilot_us = self._single_times()
        """Rough times in µs per call, without steps and without overwriting L2."""
        if min(self.pilot_us) >= LONG_PILOT_US and self.states[-1].capped:
            # What ran before may have slowed the GPU; then the pilot and all samples would be slow alike.
            time.sleep(_REST_S)
            self.pilot_us = self._single_times()
        if min(self.pilot_us) < LONG_PILOT_US:
            self.pilot_us = self._pilot_times(len(calls))
        if min(self.pilot_us) < _SHORT_US:
            # Short calls take about as long as the gap between two graphs.
            self.pilot_us = self._pilot_times(_SHORT_PILOT_FACTOR * len(calls))
        self._call_us = max(min(self.pilot_us), 0.05)
        if flush is None and self._call_us >= LONG_PILOT_US:
            self._fastest_us = self._call_us  # the power cap may set in between the pilot and the first sample
        self.calls = calls_per_sample(self._call_us, settings.sample_us, len(calls))
        """Number of calls in the timed graph."""
        if around is not None:
            self.calls = with_steps(self.calls, self._call_us, len(calls))

    def prepare(self) -> None:
        """Choose the changes around calls, capture the graphs and warm up.

        Raises:
            RunFailed: a call cannot be captured, crashed, or hung.
            KernelError: the reference raised an exception.
        """
        calls, flush = self._sequence, self._flush
        if self._around is not None:
            self._around.timed.plan(self.calls)
        size = 1 if flush is None and self._call_us >= LONG_PILOT_US else self.calls
        for first in range(0, self.calls, size):
            # The graphs run one after another, so they can share the memory of the largest.
            pool = self._parts[0].pool() if self._parts else None
            self._parts.append(_capture(calls, range(first, first + size), flush, self._around, pool))
        if flush is not None:
            self._writes = _capture([lambda: None], range(self.calls), flush)
        for _ in range(max(1, min(1000, round(self._settings.warmup_us / (self._call_us * self.calls))))):
            self._run()

    def replay(self) -> None:
        """Run the timed graph once, or twice to restore the original inputs and outputs, and wait.

        Raises:
            RunFailed: a call crashed or hung.
        """
        self._run()
        self.settle()

    def settle(self) -> None:
        """Rerun the timed graph if its last run left the inputs changed, and wait for it.

        Raises:
            RunFailed: a call crashed or hung.
        """
        if self.timed is not None and not self.timed.settled:
            self._run()
        finish(self._hang_s * self.calls, self._hang_s)

    def fault(self) -> dict[str, Any] | None:
        """Settle the graph, then return the evidence for a wrong recorded output, or None.

        Raises:
            RunFailed: a call crashed or hung.
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
        """Return new samples in µs per call; none if the GPU was throttled, unless throttling persists after retries.

        After samples that a power cap slowed down, the GPU rests; `counted` omits these samples.

        Args:
            count: number of samples; for long calls it is rounded up to a multiple of the calls in the timed graph.
            sustained: do not rest, because in interleaved rounds a power cap slows all candidates alike.

        Raises:
            RunFailed: a call crashed or hung.
        """
        seen = len(self.states)
        times = self._samples(count)
        if any(state.disturbed for state in self.states[seen:]) and self._waits < _MAX_DISTURBED:
            self._waits += 1
            time.sleep(0.05)
            return []
        self._fastest_us = min(self._fastest_us, *times)
        if not sustained and len(self.counted(times)) < len(times):
            self._rests += 1
            time.sleep(_REST_S)
        return times

    def counted(self, samples_us: Sequence[float]) -> list[float]:
        """Return the samples that count: if a power cap was reported, only the samples before the cap.

        The driver reports the cap a few milliseconds late, so samples of earlier batches are omitted too. After the
        maximum number of rests all samples count, because the GPU does not recover.

        Args:
            samples_us: all samples from `take` so far.
        """
        if self._rests == _MAX_RESTS or not any(state.capped for state in self.states):
            return list(samples_us)
        return before_cap(samples_us, self._fastest_us)

    def _single_times(self) -> tuple[float, ...]:
        """Return times of single calls in µs after an untimed one, enough to show whether a race is lost."""
        marks = [new_event(timing=True) for _ in range(RACE_SAMPLES + 1)]
        for index, mark in enumerate(marks):
            self._sequence[index % len(self._sequence)]()
            mark.record()
        self.states.append(self._monitor.read())
        finish(self._hang_s * len(marks), self._hang_s)
        return tuple(1000.0 * a.elapsed_time(b) for a, b in itertools.pairwise(marks))

    def _pilot_times(self, calls: int) -> tuple[float, ...]:
        """Return times per call in µs of a graph with `calls` calls, enough to show whether a race is lost."""
        graph = _capture(self._sequence, range(calls), None)
        return tuple(span / calls for span in self._spans([graph.replay], RACE_SAMPLES, graph.replay))

    def _samples(self, count: int) -> list[float]:
        """Return at least `count` samples in µs per call."""
        parts = [functools.partial(self._run_part, index) for index in range(len(self._parts))]
        if self._writes is not None:
            writes = self._writes.replay
            spans = self._spans([*parts, writes], count, writes)
            return [max(whole - own, 0.0) / self.calls for whole, own in zip(spans[::2], spans[1::2], strict=True)]
        # A single call is enough to keep the GPU busy until the first of several graphs.
        ahead = self._run if len(parts) == 1 else self._sequence[0]
        calls = self.calls // len(parts)
        return [span / calls for span in self._spans(parts, math.ceil(count / len(parts)), ahead)]

    def _spans(self, timed: Sequence[Callable[[], object]], count: int, ahead: Callable[[], object]) -> list[float]:
        """Run the functions one after another `count` times, after an untimed one; return each time in µs."""
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
    """Capture some calls of a graph with their steps and L2 writes.

    Args:
        calls: one per input set.
        indices: indices of the calls to capture.
        flush: buffer to overwrite before each call, if any.
        around: steps around a randomly chosen call, if any.
        pool: memory of a graph that always runs before this one, for reuse; None for separate memory.
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
                around.after(index, outputs)
            del outputs  # lets the next call reuse the memory, unless these outputs are kept
            if around is not None and index + 1 == around.timed.calls:
                around.before(index + 1)
    except Exception:
        # An unfinished capture must be ended; its own error is already being raised.
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        raise
    graph.capture_end()
    return graph
