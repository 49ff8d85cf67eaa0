"""Runs the gate's calls on the PTX machine, and looks for what a kernel keeps from one call to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from evokern import simt
from evokern.declaration.kernel import Launch, Problem, Tensor
from evokern.device.sim.arguments import refill, upload
from evokern.device.sim.failure import failure
from evokern.device.sim.program import SimulatedProgram
from evokern.gate import Call, Gate, Verdict


class SimRunner:
    """Runs a candidate's calls on the PTX machine, all of them side by side."""

    def __init__(self, program: SimulatedProgram, problem: Problem, instruction_limit: int, lead: int = 0) -> None:
        """Make a runner.

        Args:
            program: the candidate's program.
            problem: the problem, for the evidence of a failure.
            instruction_limit: warp instructions after which a launch counts as a hang.
            lead: bytes from a multiple of the usual alignment to the start of each buffer.
        """
        self._program, self._problem = program, problem
        self._limit, self._lead = instruction_limit, lead
        self._memory = simt.Memory()
        self._buffers: list[dict[str, simt.Buffer]] = []

    def run(self, calls: Sequence[Call]) -> None:
        """Execute every call; buffers keep their addresses, and the module its variables, from one run to the next.

        Raises:
            RunFailed: the sanitizer found a defect, or a launch did not end.
        """
        if len(self._buffers) != len(calls):
            self._memory = simt.Memory()
            self._buffers = [upload(call, self._memory, self._lead) for call in calls]
        else:
            for call, named in zip(calls, self._buffers, strict=True):
                refill(call, named)
        for launch in calls[0].launches:
            results = self._program.launch_many(launch, self._buffers, self._memory, instruction_limit=self._limit)
            for result in results:
                if result.errors:
                    raise failure(result.fatal or result.errors[0], self._limit, self._problem)
            for buffer in (buffer for named in self._buffers for buffer in named.values()):
                buffer.initialised = True  # what a launch wrote is there for the next one
        for call, named in zip(calls, self._buffers, strict=True):
            for name, tensor in call.arguments.items():
                if named[name].writable:
                    raw = torch.from_numpy(named[name].read().reshape(-1))
                    tensor.view(-1).view(torch.uint8).copy_(raw)

    def state(self) -> dict[tuple[int, str], bytes]:
        """Return the module's variables that no longer hold what they began with, by call and name."""
        module = self._program.module
        began = {variable.name: variable for symbol in self._program.symbols.values()
                 for variable in module.program(symbol).data_symbols}  # fmt: skip
        found: dict[tuple[int, str], bytes] = {}
        for (_, number), variables in self._memory.module_data.items():
            for name, buffer in variables.items():
                data = buffer.read().tobytes()
                if buffer.writable and not began[name].pointers and data != (began[name].data or bytes(len(data))):
                    found[number, name] = data
        return found


def checked(gate: Gate, runner: SimRunner, launches: Sequence[Launch], tensors: Mapping[str, Tensor]) -> Verdict:
    """Check a candidate, and where its module keeps state between calls that no call depends on those before it.

    Raises:
        RunFailed: the sanitizer found a defect, or a launch did not end.
    """
    verdict = gate.check(runner, launches, tensors)
    if not verdict.passed or not (first := runner.state()):
        return verdict
    gate.rerun(runner, launches, tensors)
    counting = sorted({name for (_, name), data in runner.state().items() if first.get((_, name)) != data})
    if counting:
        message = (
            f"{', '.join(counting)} differs after the same call on the same inputs: the kernel counts launches. "
            "A call must not depend on those before it; use a workspace with initial='zero'"
        )
        return Verdict(False, {"check": "state", "message": message, "problem": str(gate.problem)}, verdict.report)
    return gate.repeat(runner, launches, tensors)
