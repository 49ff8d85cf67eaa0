"""From torch buffers to the PTX machine's memory and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from evokern import simt
from evokern.gate import Call
from evokern.kernel import Launch, Scalar

_NUMPY: Mapping[str, Any] = {
    "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "f32": np.float32, "f64": np.float64,
}  # fmt: skip


def scalar(value: Scalar) -> np.generic[Any]:
    """Return a by-value argument as a NumPy scalar of its C type."""
    made: np.generic[Any] = _NUMPY[value.dtype](value.value)
    return made


def launch_arguments(launch: Launch, buffers: Mapping[str, simt.Buffer]) -> list[simt.Buffer | np.generic[Any]]:
    """Return a launch's arguments in the entry's order."""
    return [buffers[item] if isinstance(item, str) else scalar(item) for item in launch.args]


def upload(call: Call, memory: simt.Memory, lead: int = 0) -> dict[str, simt.Buffer]:
    """Copy a call's buffers into the machine's memory; inputs are read-only, poison counts as never written.

    Args:
        call: the buffers.
        memory: the machine's memory.
        lead: bytes from a multiple of the usual alignment to the start of each.
    """
    buffers: dict[str, simt.Buffer] = {}
    for name, tensor in call.arguments.items():
        data: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        zeroed, role = name in call.zeroed, call.roles[name]
        buffers[name] = memory.allocate(
            name,
            np.zeros_like(data) if zeroed else data,
            writable=role != "input",
            initialised=zeroed or role in ("input", "inout"),
            lead=lead,
        )
    return buffers


def refill(call: Call, buffers: Mapping[str, simt.Buffer]) -> None:
    """Copy a call's buffers into the machine's memory where they already are: the next run at the same addresses."""
    for name, tensor in call.arguments.items():
        data: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        buffers[name].write(np.zeros_like(data) if name in call.zeroed else data)
        buffers[name].initialised = name in call.zeroed or call.roles[name] in ("input", "inout")
