"""Buffers on the PTX machine, generated for a problem or copied from the gate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from evokern import simt
from evokern.declaration.kernel import DTYPE_BYTES, SIGNIFICAND_BITS, Tensor
from evokern.gate import Call
from evokern.gate.data import draw, torch_dtype
from evokern.study.settings import InputSet

POISON = 0xFF
"""Byte of unwritten memory; NaN in every floating-point type."""

_GIVEN = ("input", "inout", "constant")


def _space(role: str) -> str:
    """Return the memory space of a buffer: a constant goes into the module's array of the same name."""
    return "const" if role == "constant" else "global"


def drawn(
    tensors: Mapping[str, Tensor], kind: InputSet = "normal", seed: int = 0
) -> Iterator[tuple[str, Tensor, torch.Tensor]]:
    """Yield each buffer of a problem as its name, declaration and contents; buffers other than inputs contain zeros.

    Args:
        tensors: the buffers.
        kind: kind of inputs.
        seed: seed of the inputs.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in tensors.items():
        data = torch.zeros(tensor.shape, dtype=torch_dtype(tensor.dtype))
        if tensor.given:
            draw(tensor, kind, data, generator)
        yield name, tensor, data


def other_inputs(tensors: Mapping[str, Tensor], seed: int) -> Iterator[tuple[str, Tensor, torch.Tensor]]:
    """Yield each buffer as `drawn` does; integers of several bytes, such as indices, are those of the seed 0."""
    for (name, tensor, data), (_, _, first) in zip(drawn(tensors, seed=seed), drawn(tensors), strict=True):
        yield name, tensor, first if tensor.dtype not in SIGNIFICAND_BITS and DTYPE_BYTES[tensor.dtype] > 1 else data


def draw_buffers(memory: simt.Memory, tensors: Mapping[str, Tensor], seed: int = 0) -> dict[str, simt.Buffer]:
    """Create a problem's buffers: inputs as in the gate's `normal` set, unwritten memory for all other buffers."""
    buffers: dict[str, simt.Buffer] = {}
    for name, tensor, data in other_inputs(tensors, seed) if seed else drawn(tensors):
        raw: Any = data.view(-1).view(torch.uint8).numpy()
        known = tensor.given or (tensor.role == "workspace" and tensor.initial == "zero")
        if not known:
            raw.fill(POISON)
        buffers[name] = memory.allocate(
            name, raw, writable=not tensor.kept, initialised=known, space=_space(tensor.role)
        )
    return buffers


def upload(call: Call, memory: simt.Memory, lead: int = 0) -> dict[str, simt.Buffer]:
    """Copy a call's buffers into the machine's memory; inputs are read-only, and poison counts as unwritten.

    Args:
        call: the buffers.
        memory: the machine's memory.
        lead: offset of each buffer from its usual alignment, in bytes.
    """
    buffers: dict[str, simt.Buffer] = {}
    for name, tensor in call.arguments.items():
        data: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        zeroed, role = name in call.zeroed, call.roles[name]
        buffers[name] = memory.allocate(
            name,
            np.zeros_like(data) if zeroed else data,
            writable=role not in ("input", "constant"),
            initialised=zeroed or role in _GIVEN,
            lead=0 if role == "constant" else lead,
            space=_space(role),
        )
    return buffers


def refill(call: Call, buffers: Mapping[str, simt.Buffer]) -> None:
    """Copy a call's buffers into existing buffers of the machine, for another run at the same addresses."""
    for name, tensor in call.arguments.items():
        data: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        buffers[name].write(np.zeros_like(data) if name in call.zeroed else data)
        buffers[name].initialised = name in call.zeroed or call.roles[name] in _GIVEN
