"""What the buffers of a workload hold: dtypes, the kinds of input the gate draws, poison."""

from __future__ import annotations

import functools

import torch

from evokern.declaration.kernel import Tensor
from evokern.errors import KernelError
from evokern.study.settings import InputSet

_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8",
    "u32": "uint32", "u64": "uint64",
}  # fmt: skip
_MANTISSA_BITS = {"f64": 52, "f32": 23, "f16": 10, "bf16": 7, "e4m3": 3, "e5m2": 2}
_BITS_DTYPE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

POISON = (0xFF, 0x5A)
"""Bytes that outputs and workspaces are filled with before a checked run, by the run's number.

0xFF reads as NaN in every floating-point type. Where it would be a plausible value (integers), an element that nobody
writes differs between two runs with different poison."""


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype for evokern's name of it.

    Raises:
        KernelError: the installed torch does not have it.
    """
    try:
        dtype: torch.dtype = getattr(torch, _DTYPES[name])
    except AttributeError as error:
        raise KernelError(f"torch {torch.__version__} has no dtype for {name}; install torch 2.4 or later") from error
    return dtype


def is_float(name: str) -> bool:
    """Whether evokern's dtype is a floating-point type."""
    return name in _MANTISSA_BITS


@functools.cache
def largest_finite(name: str) -> float:
    """Return the largest finite value of a dtype."""
    dtype = torch_dtype(name)
    return float(torch.finfo(dtype).max) if is_float(name) else float(torch.iinfo(dtype).max)


def poison_byte(tensor: Tensor, run: int) -> int:
    """Return the byte that a buffer is filled with before a run."""
    return POISON[0] if is_float(tensor.dtype) else POISON[run % 2]


def draw(tensor: Tensor, kind: InputSet, out: torch.Tensor, generator: torch.Generator) -> None:
    """Fill a buffer with inputs of a kind.

    Args:
        tensor: its declaration: dtype, scale, large, low, high.
        kind: `normal` (mean 0, deviation `scale`), `large` (deviation `large`), `equal_rows` (normal, one value along
            the last axis), `denormal` (subnormal numbers of both signs). Integers are uniform from `low` to `high`,
            and one value along a row for `equal_rows`.
        out: the buffer, of the declared shape.
        generator: private source of randomness on the buffer's device.
    """
    shape = (*tensor.shape[:-1], 1) if kind == "equal_rows" else tensor.shape
    if not is_float(tensor.dtype):
        whole = torch.randint(tensor.low, tensor.high + 1, shape, generator=generator, device=out.device)
        out.copy_(whole.to(out.dtype).expand(tensor.shape))
        return
    if kind == "denormal":
        _draw_subnormal(tensor, out, generator)
        return
    wide = torch.float64 if tensor.dtype == "f64" else torch.float32
    values = torch.randn(shape, generator=generator, device=out.device, dtype=wide)
    values.mul_(tensor.large if kind == "large" else tensor.scale)
    limit = largest_finite(tensor.dtype)
    out.copy_(values.clamp_(-limit, limit).expand(tensor.shape))


def _draw_subnormal(tensor: Tensor, out: torch.Tensor, generator: torch.Generator) -> None:
    size = out.element_size()
    mantissas = 1 << _MANTISSA_BITS[tensor.dtype]
    bits = torch.randint(1 - mantissas, mantissas, tensor.shape, generator=generator, device=out.device)
    # A subnormal is a mantissa alone; the sign is the top bit, which a negative number of this width already has.
    sign = 128 if size == 1 else -(1 << (8 * size - 1))
    out.view(_BITS_DTYPE[size]).copy_(torch.where(bits < 0, -bits + sign, bits))
