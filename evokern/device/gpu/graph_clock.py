"""Timing by graph replay: many calls in one CUDA graph, so that the cost of launching from Python vanishes.

A sample is one replay between two events. Replays of a batch are queued back to back behind an untimed one, so that
the GPU never waits for the CPU within a batch. `rotate`: the calls of a graph walk through several input sets.
`flush`: every call follows a write over the whole L2; a second graph holds the writes alone, and a sample is the
difference of two replays, taken one after the other. Candidates and baselines are timed by this same code.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence

import torch

from evokern.device.gpu.cuda import finish, new_event
from evokern.device.gpu.nvml import Monitor, State
from evokern.measurement.timing import calls_per_sample
from evokern.study.settings import TimingSettings

_PILOT_REPLAYS = 3
_PATIENCE = 3


class GraphClock:
    """Times one candidate, or baseline, on one problem."""

    def __init__(
        self,
        calls: Sequence[Callable[[], None]],
        settings: TimingSettings,
        monitor: Monitor,
        flush: torch.Tensor | None,
        hang_s: float,
    ) -> None:
        """Capture the graphs and warm up.

        Args:
            calls: one per input set; each enqueues one call on the current stream.
            settings: sample length, warm-up, cache mode.
            monitor: where clocks are read while samples are taken.
            flush: buffer as large as L2 that is overwritten before each call; None for `rotate`.
            hang_s: seconds after which a replay counts as hung.

        Raises:
            RunFailed: a call cannot be captured, crashed, or did not end.
        """
        self._settings = settings
        self._monitor = monitor
        self._hang_s = hang_s
        self.states: list[State] = []
        """A reading of clock and temperature per batch."""
        pilot = _capture(calls, len(calls), None)
        pilot.replay()
        finish(hang_s * len(calls), hang_s)
        per_graph = self._replays([pilot], _PILOT_REPLAYS)
        call_us = max(min(per_graph) / len(calls), 0.05)
        self.calls = calls_per_sample(call_us, settings.sample_us, len(calls))
        """Calls in one sample."""
        self.graph = pilot if self.calls == len(calls) and flush is None else _capture(calls, self.calls, flush)
        """The graph that is timed."""
        self._graphs = [self.graph]
        if flush is not None:
            self._graphs.append(_capture([lambda: None], self.calls, flush))
        estimate_us = call_us * self.calls
        for _ in range(max(1, min(1000, round(settings.warmup_us / estimate_us)))):
            self.graph.replay()

    def replay(self) -> None:
        """Run the timed graph once more and wait.

        Raises:
            RunFailed: a call crashed, or did not end.
        """
        self.graph.replay()
        finish(self._hang_s * self.calls, self._hang_s)

    def take(self, count: int) -> list[float]:
        """Take samples, µs a call; none when the GPU was throttled (after a few tries they are kept and say so)."""
        times = self._replays(self._graphs, count)
        state = self.states[-1]
        if state.disturbed and sum(s.disturbed for s in self.states) <= _PATIENCE:
            time.sleep(0.05)
            return []
        return [time_us / self.calls for time_us in times]

    def _replays(self, graphs: Sequence[torch.cuda.CUDAGraph], count: int) -> list[float]:
        marks = [new_event(timing=True) for _ in range(count * len(graphs) + 1)]
        graphs[-1].replay()
        marks[0].record()
        for index in range(count * len(graphs)):
            graphs[index % len(graphs)].replay()
            marks[index + 1].record()
        self.states.append(self._monitor.read())
        finish(self._hang_s * (count + 1) * len(graphs), self._hang_s)
        spans = [1000.0 * a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
        if len(graphs) == 1:
            return spans
        return [max(with_call - flush_only, 0.0) for with_call, flush_only in zip(spans[::2], spans[1::2], strict=True)]


def _capture(calls: Sequence[Callable[[], None]], count: int, flush: torch.Tensor | None) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for index in range(count):
            if flush is not None:
                flush.zero_()
            calls[index % len(calls)]()
    except Exception:
        # An unfinished capture must be ended; that it failed is known already.
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        raise
    graph.capture_end()
    return graph
