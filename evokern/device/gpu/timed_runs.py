"""Timed runs on the GPU: calls of a candidate or baseline on separate buffers, and a clock for these calls."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch

from evokern.compile.build import tensors_of
from evokern.compile.records import Built
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Baseline, Kernel, Launch, Problem, Tensor
from evokern.device.gpu.baselines import baseline_call
from evokern.device.gpu.cuda import Candidate
from evokern.device.gpu.graph_clock import GraphClock, TimedCall
from evokern.device.gpu.nvml import Monitor
from evokern.device.gpu.timed_calls import StepKernel, StepsAround
from evokern.gate import Gate
from evokern.gate.buffer_set import BufferSet
from evokern.gate.check import calls
from evokern.gate.timed_plan import TimedCalls
from evokern.hardware.profiles import Profile
from evokern.study.settings import InputSet, TimingSettings


class TimedRuns:
    """Factory for timed runs of one kernel on the problems of a study."""

    def __init__(
        self,
        kernel: Kernel,
        gates: Mapping[Problem, Gate],
        timing: TimingSettings,
        monitor: Monitor,
        device: torch.device,
        profile: Profile,
    ) -> None:
        """Keep the objects that all timed runs share.

        Args:
            kernel: kernel of the study.
            gates: gate of each problem; it creates the buffers.
            timing: timing settings.
            monitor: source of clock readings and throttle reasons.
            device: the GPU.
            profile: chip profile of the GPU.
        """
        self._steps = StepKernel(profile)
        self._kernel = kernel
        self._gates = gates
        self._timing = timing
        self._monitor = monitor
        # Cached, because each evaluation of the declaration takes 0.1 to 0.3 ms, during which the GPU would wait.
        self.workload = functools.lru_cache(maxsize=len(gates))(self._declared)
        """Function from configuration and problem to a candidate's tensors and launches.

        The name of a baseline gives the tensors its bounds."""
        self._flush: torch.Tensor | None = None
        if timing.cache == "flush":
            size = torch.cuda.get_device_properties(device).L2_cache_size
            self._flush = torch.empty(2 * size, dtype=torch.uint8, device=device)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems of the study."""
        return tuple(self._gates)

    def _declared(
        self, config: Config, problem: Problem, baseline: str = ""
    ) -> tuple[dict[str, Tensor], tuple[Launch, ...]]:
        own = self._baseline(baseline) if baseline else None
        return tensors_of(self._kernel, config, problem, own), launches_of(self._kernel, config, problem)

    def bench(self, tensors: dict[str, Tensor], problem: Problem, *, fresh: bool = False) -> BufferSet:
        """Return buffers with inputs for timed runs on a problem.

        Args:
            tensors: tensors that the buffers hold.
            problem: the problem.
            fresh: create new buffers and inputs; otherwise buffers of an earlier call may be reused.
        """
        sets = self._timing.rotate_sets if self._timing.cache == "rotate" else 1
        kinds: list[InputSet] = ["normal"] * sets
        bench = self._gates[problem].bench(tensors, kinds, runs=1, fresh=fresh)
        if not bench.refreshes:
            bench.refresh()
        return bench

    def clock(self, sequence: Sequence[TimedCall], bench: BufferSet | None = None, baseline: str = "") -> GraphClock:
        """Return a clock over a sequence of calls.

        Args:
            sequence: one call per input set.
            bench: buffers of the calls, changed around chosen calls; None for no changes.
            baseline: name of the baseline, empty for a candidate. A baseline with prepared inputs would not see
                changes, so its inputs are rewritten with the same values.
        """
        around = None
        if bench is not None:
            still = bool(baseline) and self._baseline(baseline).prepare is not None
            around = StepsAround(TimedCalls(bench, still=still), self._steps)
        return GraphClock(sequence, self._timing, self._monitor, self._flush, self._timing.hang_s, around)

    def _baseline(self, name: str) -> Baseline:
        return next(one for one in self._kernel.workload.baselines if one.name == name)

    def sequence(
        self, bench: BufferSet, config: Config, problem: Problem, built: Built | None, candidate: Candidate | None,
        baseline: str,
    ) -> list[TimedCall]:  # fmt: skip
        """Return the calls of a candidate or baseline on a buffer set, one per input set."""
        prepared = calls(bench, self.workload(config, problem)[1])
        if built is None or candidate is None:
            return [baseline_call(self._baseline(baseline), problem, call.arguments) for call in prepared]
        program = built.build(problem).program
        return [candidate.prepare(program, call).enqueue for call in prepared]
