"""Runner of the gate's calls on the PTX machine, with a check for state kept between calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from evokern import simt
from evokern.compile.module_state import heap_fault, state_evidence
from evokern.declaration.kernel import Launch, Problem, Tensor
from evokern.declaration.tensor import State
from evokern.device.sim.arguments import refill, upload
from evokern.device.sim.failure import require_no_fault
from evokern.device.sim.program import SimulatedProgram
from evokern.gate import Call, Gate, RunFailed, Verdict
from evokern.simt import NO_PATHS
from evokern.study.trial import Outcome


class SimRunner:
    """Runner that executes all calls of a candidate concurrently on the PTX machine."""

    def __init__(
        self,
        program: SimulatedProgram,
        problem: Problem,
        instruction_limit: int,
        lead: int = 0,
        *,
        record_paths: bool = False,
    ) -> None:
        """Create a runner.

        Args:
            program: the candidate's program.
            problem: the problem, for the evidence of a failure.
            instruction_limit: warp instructions after which a launch counts as hung.
            lead: offset of each buffer from its usual alignment, in bytes.
            record_paths: record the paths of all runs.
        """
        self.paths = NO_PATHS
        """Paths of all runs, if they are recorded."""
        self.warnings: dict[str, None] = {}
        """Findings of all runs that do not make a kernel incorrect: kind and place."""
        self._record_paths = record_paths
        self._program, self._problem = program, problem
        self._limit, self._lead = instruction_limit, lead
        self._memory = simt.Memory()
        self._buffers: list[dict[str, simt.Buffer]] = []

    def run(self, calls: Sequence[Call]) -> None:
        """Execute every call; buffers keep their addresses and module variables their values between runs.

        Variables with declared state are restored first, as part of a call.

        Raises:
            RunFailed: the sanitizer found a defect, or a launch hung.
        """
        if len(self._buffers) != len(calls):
            self._memory = simt.Memory()
            self._buffers = [upload(call, self._memory, self._lead) for call in calls]
        else:
            for call, named in zip(calls, self._buffers, strict=True):
                refill(call, named)
        self._program.restore(self._memory)
        for launch in calls[0].launches:
            if heap := self._program.heap_calls(launch):
                line = f" on line {min(heap.values())}"
                raise RunFailed(Outcome.WRONG, heap_fault(launch.entry, sorted(heap), self._problem, line))
            results = self._program.launch_many(
                launch,
                self._buffers,
                self._memory,
                instruction_limit=self._limit,
                until_error=True,
                record_paths=self._record_paths,
            )
            self.paths = self.paths.merged(results[0].paths or NO_PATHS)
            for result in results:
                require_no_fault(result, launch, self._limit, self._problem)
                self.warnings.update((one.summary, None) for one in result.findings)
            for buffer in (buffer for named in self._buffers for buffer in named.values()):
                buffer.initialised = True  # the next launch may read what this one wrote
        for call, named in zip(calls, self._buffers, strict=True):
            for name, tensor in call.arguments.items():
                if named[name].writable:
                    raw = torch.from_numpy(named[name].read().reshape(-1))
                    tensor.view(-1).view(torch.uint8).copy_(raw)

    def changed(self) -> list[str]:
        """Return the undeclared module variables that the last run changed."""
        return self._program.changed(self._memory)

    @property
    def keeps_state(self) -> bool:
        """Whether the last run changed variables with declared state."""
        return self._program.keeps_state(self._memory)

    def require_state(self, declared: State, *, foreign: bool = False) -> None:
        """Check that the last run changed only declared variables.

        Raises:
            RunFailed: the candidate fails the check `state`.
        """
        if names := self.changed():
            evidence = state_evidence(names, self._problem, declared, self._program.variables, foreign=foreign)
            raise RunFailed(Outcome.WRONG, evidence)


def checked(
    gate: Gate,
    runner: SimRunner,
    launches: Sequence[Launch],
    tensors: Mapping[str, Tensor],
    *,
    foreign: bool = False,
) -> Verdict:
    """Check that a candidate is correct and that no call depends on earlier calls.

    Args:
        gate: the gate.
        runner: runner of the candidate.
        launches: launches of the candidate.
        tensors: tensors of the candidate.
        foreign: whether it is an external source, for messages.

    Raises:
        RunFailed: the sanitizer found a defect, a launch hung, or a call changed undeclared state.
    """
    verdict = gate.check(runner, launches, tensors)
    if not verdict.passed:
        return verdict
    runner.require_state(gate.kernel.state, foreign=foreign)
    if not runner.keeps_state:
        return verdict
    again = gate.repeat(runner, launches, tensors)
    if again.passed:
        runner.require_state(gate.kernel.state, foreign=foreign)
    return again
