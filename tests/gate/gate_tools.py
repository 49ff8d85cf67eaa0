"""What tests of the gate share: a small kernel, and a runner whose kernel is a Python function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from paths import DATA

from evokern.declaration.kernel import Kernel, Tensor, Tolerance, Workload
from evokern.gate import Call
from evokern.study.discovery import load_kernel
from evokern.study.settings import GateSettings

CPU = torch.device("cpu")
SETTINGS = GateSettings(guard_bytes=256)
KERNEL = load_kernel(DATA / "kernels" / "scale_rows")
PROBLEM = KERNEL.problem("5,96")
CONFIG = KERNEL.space.default()
LAUNCHES = tuple(KERNEL.launches(CONFIG, PROBLEM))
TENSORS = KERNEL.workload.buffers(PROBLEM, CONFIG)


@dataclass
class Fake:
    """A runner whose kernel is a Python function of the call's buffers and its number."""

    kernel: Callable[[dict[str, torch.Tensor], int], None]

    def run(self, calls: Sequence[Call]) -> None:
        for number, call in enumerate(calls):
            for name in call.zeroed:
                call.arguments[name].zero_()
            self.kernel(dict(call.arguments), number)


def workload_of(kind: str, reference: Callable[..., object], tolerance: Tolerance, **tensor: object) -> Kernel:
    def tensors(p: object, c: object) -> dict[str, Tensor]:
        return {"x": Tensor(kind, (4, 8), **tensor), "y": Tensor(kind, (4, 8), role="output")}  # type: ignore[arg-type]

    workload = Workload(tensors, reference, {"y": tolerance}, lambda p: 1, lambda p: 1)  # type: ignore[arg-type]
    return replace(KERNEL, workload=workload)
