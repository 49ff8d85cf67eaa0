"""What the buffers of a workload hold: dtypes, the kinds of input the gate draws, poison."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from evokern.declaration.kernel import SIGNIFICAND_BITS, Tensor
from evokern.errors import RAISED, KernelError
from evokern.study.settings import InputSet

_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8",
    "u32": "uint32", "u64": "uint64",
}  # fmt: skip
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
    return name in SIGNIFICAND_BITS


@functools.cache
def largest_finite(name: str) -> float:
    """Return the largest finite value of a dtype."""
    dtype = torch_dtype(name)
    return float(torch.finfo(dtype).max) if is_float(name) else float(torch.iinfo(dtype).max)


EDGE_SHARE = 8
"""One row in so many is zero, as many are one-hot, and as many begin with a zero, on `edges` inputs; at least one."""
_ZERO_ELEMENTS = 1 / 16
_NONFINITE_ROWS = 4
"""Rows with an infinity or NaN, at most: each may reach a whole column of a product."""


def poison_byte(tensor: Tensor, turn: int, nan: bool = True) -> int:
    """Return the byte that a buffer is filled with before a run.

    Args:
        tensor: the buffer.
        turn: number of the run plus that of the input set: integers have another poison in the next one.
        nan: whether NaN is wrong wherever it is left; elsewhere an element that nobody wrote is a finite number.
    """
    if not is_float(tensor.dtype):
        return POISON[turn % 2]
    return POISON[0 if nan else 1]


def draw(
    tensor: Tensor, kind: InputSet, out: torch.Tensor, generator: torch.Generator, *, nonfinite: bool = False
) -> None:
    """Fill a buffer, or several alike, with inputs of a kind.

    Args:
        tensor: its declaration: dtype, scale, large, low, high, draw.
        kind: `normal` (mean 0, deviation `scale`), `large` (deviation `large`), `equal_rows` (normal, one value along
            the last axis), `denormal` (subnormal numbers of both signs), `edges` (normal with zeros and one-hot rows).
            Integers are uniform from `low` to `high`, and one value along a row for `equal_rows`.
        out: the buffer, of the declared shape, or shape (buffers, *shape).
        generator: private source of randomness on the buffer's device.
        nonfinite: whether `edges` inputs hold infinities and NaN.

    Raises:
        KernelError: the tensor's own `draw` raised, or returned what the tensor cannot hold.
    """
    if tensor.draw is not None:
        for one in out if out.ndim > len(tensor.shape) else (out,):
            one.copy_(declared_values(tensor, "draw", one, generator))
        return
    if kind == "edges":
        _draw_edges(tensor, out, generator, nonfinite=nonfinite)
        return
    shape = (*out.shape[:-1], 1) if kind == "equal_rows" else out.shape
    if not is_float(tensor.dtype):
        whole = torch.randint(tensor.low, tensor.high + 1, shape, generator=generator, device=out.device)
        out.copy_(whole.to(out.dtype).expand(out.shape))
        return
    if kind == "denormal":
        _draw_subnormal(tensor, out, generator)
        return
    out.copy_(_normal(tensor, tensor.large if kind == "large" else tensor.scale, shape, generator).expand(out.shape))


def _normal(tensor: Tensor, scale: float, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Draw normal values of a deviation, within the dtype's range, in a wider type."""
    wide = torch.float64 if tensor.dtype == "f64" else torch.float32
    limit = largest_finite(tensor.dtype)
    values = torch.randn(shape, generator=generator, device=generator.device, dtype=wide)
    return values.mul_(scale).clamp_(-limit, limit)


def _draw_subnormal(tensor: Tensor, out: torch.Tensor, generator: torch.Generator) -> None:
    size = out.element_size()
    mantissas = 1 << (SIGNIFICAND_BITS[tensor.dtype] - 1)  # without the implicit bit
    bits = torch.randint(1 - mantissas, mantissas, out.shape, generator=generator, device=out.device)
    # A subnormal is a mantissa alone; the sign is the top bit, which a negative number of this width already has.
    sign = 128 if size == 1 else -(1 << (8 * size - 1))
    out.view(_BITS_DTYPE[size]).copy_(torch.where(bits < 0, -bits + sign, bits))


def may_be_zero(tensor: Tensor) -> bool:
    """Whether all elements of an input may be 0 at once."""
    return tensor.draw is None and (is_float(tensor.dtype) or tensor.low <= 0 <= tensor.high)


def declared_values(tensor: Tensor, what: str, like: torch.Tensor, *given: object) -> torch.Tensor:
    """Return what a function of the declaration, `draw` or `change`, makes, in the buffer's dtype.

    Args:
        tensor: whose.
        what: name of the function.
        like: the buffer.
        given: what it is called with.

    Raises:
        KernelError: it raised, or made no tensor of the declared shape on the right device, or does not fit the dtype.
    """
    where = f"{what} of a {tensor.dtype} tensor of shape {tensor.shape}"
    try:
        values = getattr(tensor, what)(*given)
    except RAISED as error:
        raise KernelError(f"the {where} raised {type(error).__name__}: {error}") from error
    if not isinstance(values, torch.Tensor) or tuple(values.shape) != tuple(like.shape):
        found = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise KernelError(f"the {where} returned {found}; it must return a torch tensor of that shape")
    if values.device.type != like.device.type:
        raise KernelError(f"the {where} returned a tensor on {values.device}; make it on its generator's device")
    cast = values.to(like.dtype)
    if not is_float(tensor.dtype) and bool((cast.to(torch.float64) != values.to(torch.float64)).any()):
        raise KernelError(f"the {where} returned numbers that {tensor.dtype} does not hold")
    return cast


def _draw_edges(tensor: Tensor, out: torch.Tensor, generator: torch.Generator, *, nonfinite: bool) -> None:
    """Draw normal inputs with zeros: some elements, the first of some rows, whole rows, all but one of a row."""
    device = out.device
    if is_float(tensor.dtype):
        values = _normal(tensor, tensor.scale, out.shape, generator)
    else:
        values = torch.randint(tensor.low, tensor.high + 1, out.shape, generator=generator, device=device)
        if not tensor.low <= 0 <= tensor.high:
            out.copy_(values.to(out.dtype))
            return
    length = tensor.shape[-1]
    rows = values.view(-1, tensor.elements // length, length)
    buffers, count, _ = rows.shape
    each = max(1, count // EDGE_SHARE)
    # A random order of each buffer's rows: the first `each` begin with a zero, the next are one-hot, the next are zero.
    order = torch.rand((buffers, count), generator=generator, device=device).argsort(1)
    part = (order // each).unsqueeze(-1)
    column = torch.arange(length, device=device)
    hot = torch.randint(min(1, length - 1), length, (buffers, count, 1), generator=generator, device=device)
    one_hot, here = part == 1, column == hot
    zero = torch.rand(rows.shape, generator=generator, device=device) < _ZERO_ELEMENTS
    zero |= (part == 2) | (one_hot & ~here) | ((part == 0) & (column == 0))
    rows.masked_fill_(zero, 0)
    rows.masked_fill_(one_hot & here & (rows == 0), tensor.scale if rows.is_floating_point() else 1)
    if nonfinite and is_float(tensor.dtype):
        ranked = order.argsort(1)
        odd = ranked[:, 3 * each : 4 * each] if count > 3 * each else ranked[:, :each]
        for one, chosen in zip(rows, odd[:, :_NONFINITE_ROWS], strict=True):
            _put_nonfinite(one, chosen, generator)
    out.copy_(values)


def _put_nonfinite(rows: torch.Tensor, chosen: torch.Tensor, generator: torch.Generator) -> None:
    """Put NaN or an infinity into each of some rows, not at its beginning; a dtype without infinities gets NaN."""
    device, (count, length) = rows.device, (len(chosen), rows.shape[1])
    place = torch.randint(min(1, length - 1), length, (count,), generator=generator, device=device)
    words = torch.tensor((float("nan"), float("inf"), float("-inf")), dtype=rows.dtype, device=device)
    begin = torch.randint(0, 3, (1,), generator=generator, device=device)
    rows[chosen, place] = words[(begin + torch.arange(count, device=device)) % 3]
