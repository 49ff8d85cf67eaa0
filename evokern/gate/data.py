"""Contents of a workload's buffers: dtypes, generated inputs of each kind, and poison."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from evokern.declaration.kernel import SIGNIFICAND_BITS, Tensor
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError
from evokern.study.settings import InputSet

_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8",
    "u32": "uint32", "u64": "uint64",
}  # fmt: skip
_BITS_DTYPE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

POISON = (0xFF, 0x5A)
"""Fill bytes of outputs and workspaces before a checked run; runs alternate between them.

0xFF reads as NaN in every floating-point type. For integers it may be a plausible value, but an element that is never
written then differs between two runs with different poison."""


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype for an evokern dtype name.

    Raises:
        KernelError: the installed torch does not have this dtype.
    """
    try:
        dtype: torch.dtype = getattr(torch, _DTYPES[name])
    except AttributeError as error:
        raise KernelError(f"torch {torch.__version__} has no dtype for {name}; install torch 2.4 or later") from error
    return dtype


def is_float(name: str) -> bool:
    """Return whether a dtype is a floating-point type."""
    return name in SIGNIFICAND_BITS


@functools.cache
def largest_finite(name: str) -> float:
    """Return the largest finite value of a dtype."""
    dtype = torch_dtype(name)
    return float(torch.finfo(dtype).max) if is_float(name) else float(torch.iinfo(dtype).max)


EXACT_MOST = 2
"""Largest absolute integer in `exact` inputs."""
EDGE_SHARE = 8
"""One in this many rows of `edges` inputs, at least one, is zero; as many are one-hot, as many start with a zero."""
_ZERO_ELEMENTS = 1 / 16
_NONFINITE_ROWS = 4
"""Maximum number of rows with an infinity or NaN; each of them may affect a whole column of a product."""


def poison_byte(tensor: Tensor, turn: int, nan: bool = True) -> int:
    """Return the byte that fills a buffer before a run.

    Args:
        tensor: the buffer.
        turn: run number plus input set number; the poison of integers alternates with it.
        nan: whether a remaining NaN is always wrong; if not, poison is a finite number.
    """
    if not is_float(tensor.dtype):
        return POISON[turn % 2]
    return POISON[0 if nan else 1]


def draw(
    tensor: Tensor, kind: InputSet, out: torch.Tensor, generator: torch.Generator, *, nonfinite: bool = False
) -> None:
    """Fill one buffer, or several of the same shape, with inputs of a kind.

    Args:
        tensor: declaration of the buffer: dtype, scale, large, low, high, draw.
        kind: `normal` has mean 0 and deviation `scale`. `large` has deviation `large`. `equal_rows` is normal with one
            value along the last axis. `denormal` has subnormal numbers of both signs. `edges` is normal with zeros and
            one-hot rows. `exact` has -2, -1, 1, 2 times a power of two, and zeros. Integers are uniform from `low`
            to `high`, with one value per row for `equal_rows`.
        out: the buffer, of the declared shape, or shape (buffers, *shape).
        generator: private source of randomness on the buffer's device.
        nonfinite: whether `edges` inputs include infinities and NaN.

    Raises:
        KernelError: the tensor's own `draw` raised or returned unsuitable values.
    """
    if tensor.draw is not None:
        for one in out if out.ndim > len(tensor.shape) else (out,):
            one.copy_(declared_values(tensor, "draw", one, generator))
        return
    if tensor.span is not None and kind != "exact":
        _draw_within(tensor, tensor.span, kind, out, generator)
        return
    if kind == "exact" and tensor.exact_share is not None:
        _draw_exact(tensor, out, generator)
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


def _draw_within(
    tensor: Tensor, span: tuple[float, float], kind: InputSet, out: torch.Tensor, generator: torch.Generator
) -> None:
    """Draw values between two limits: uniform if the span has only one sign or for `large`, else clamped ones."""
    low, high = span
    if kind == "large" or not low < 0 < high:
        shape = (*out.shape[:-1], 1) if kind == "equal_rows" else out.shape
        wide = torch.float64 if tensor.dtype == "f64" else torch.float32
        values = torch.rand(shape, generator=generator, device=generator.device, dtype=wide)
        values = values.mul_(high - low).add_(low).expand(out.shape)
        if kind == "edges" and tensor.spans_zero:
            values = values * (torch.rand(out.shape, generator=generator, device=out.device) >= _ZERO_ELEMENTS)
    else:
        draw(replace(tensor, span=None), kind, out, generator)
        values = out.to(torch.float64) if tensor.dtype == "f64" else out.to(torch.float32)
    out.copy_(values.clamp(low, high))


def _normal(tensor: Tensor, scale: float, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Return normal values with deviation `scale`, clamped to the dtype's range, in a wider type."""
    wide = torch.float64 if tensor.dtype == "f64" else torch.float32
    limit = largest_finite(tensor.dtype)
    values = torch.randn(shape, generator=generator, device=generator.device, dtype=wide)
    return values.mul_(scale).clamp_(-limit, limit)


def _draw_subnormal(tensor: Tensor, out: torch.Tensor, generator: torch.Generator) -> None:
    size = out.element_size()
    mantissas = 1 << (SIGNIFICAND_BITS[tensor.dtype] - 1)  # without the implicit bit
    bits = torch.randint(1 - mantissas, mantissas, out.shape, generator=generator, device=out.device)
    # A subnormal number is a mantissa without an exponent. The sign is the top bit, already set in negative numbers.
    sign = 128 if size == 1 else -(1 << (8 * size - 1))
    out.view(_BITS_DTYPE[size]).copy_(torch.where(bits < 0, -bits + sign, bits))


def _draw_exact(tensor: Tensor, out: torch.Tensor, generator: torch.Generator) -> None:
    """Draw -2, -1, 1 and 2 times a power of two, and zeros, so that sums are exact."""
    low, high = (-EXACT_MOST, EXACT_MOST) if is_float(tensor.dtype) else (tensor.low, tensor.high)
    scale = tensor.power_of_two if is_float(tensor.dtype) else 1.0
    device = generator.device
    values = torch.randint(1, EXACT_MOST + 1, out.shape, generator=generator, device=device, dtype=torch.float32)
    values *= torch.randint(0, 2, out.shape, generator=generator, device=device).mul_(2).sub_(1)
    kept = torch.rand(out.shape, generator=generator, device=device) < (tensor.exact_share or 0.0)
    out.copy_((values.clamp_(low, high) * kept * scale).to(out.dtype))


def exact_kinds(kinds: Sequence[InputSet], tensors: Mapping[str, Tensor]) -> tuple[InputSet, ...]:
    """Return the kinds of inputs of a check: the given ones, and `exact` if the tensors support it."""
    shares = [tensor.exact_share for tensor in tensors.values() if tensor.given]
    return tuple(kinds) if "exact" in kinds or not shares or None in shares else (*kinds, "exact")


def can_be_zero(tensor: Tensor) -> bool:
    """Return whether all elements of an input may be 0 at once."""
    return tensor.draw is None and tensor.spans_zero


def declared_values(tensor: Tensor, what: str, like: torch.Tensor, *given: object) -> torch.Tensor:
    """Call a tensor's `draw` or `change` function and return its values in the buffer's dtype.

    Args:
        tensor: declaration of the tensor.
        what: name of the function, `draw` or `change`.
        like: buffer with the required shape, dtype and device.
        given: arguments of the function.

    Raises:
        KernelError: the function raised, or its values have the wrong type, shape, device or range.
    """
    where = f"function `{what}` of a {tensor.dtype} tensor of shape {tensor.shape}"
    try:
        values = getattr(tensor, what)(*given)
    except KERNEL_CODE_EXCEPTIONS as error:
        raise KernelError(f"the {where} raised {type(error).__name__}: {error}") from error
    if not isinstance(values, torch.Tensor) or tuple(values.shape) != tuple(like.shape):
        found = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise KernelError(f"the {where} returned {found}; it must return a torch tensor of that shape")
    if values.device.type != like.device.type:
        raise KernelError(f"the {where} returned a tensor on {values.device}; create it on the generator's device")
    cast = values.to(like.dtype)
    if not is_float(tensor.dtype) and bool((cast.to(torch.float64) != values.to(torch.float64)).any()):
        raise KernelError(f"the {where} returned values that {tensor.dtype} cannot represent")
    return cast


def _draw_edges(tensor: Tensor, out: torch.Tensor, generator: torch.Generator, *, nonfinite: bool) -> None:
    """Draw normal inputs; then zero some elements, first elements of rows, whole rows, and all but one of a row."""
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
    # In a random order of the rows, the first `each` start with a zero, the next are one-hot, the next are all zero.
    order = torch.rand((buffers, count), generator=generator, device=device).argsort(1)
    part = (order // each).unsqueeze(-1)
    column = torch.arange(length, device=device)
    hot = torch.randint(min(1, length - 1), length, (buffers, count, 1), generator=generator, device=device)
    # The first one-hot row has its element in the last column: without it, the statistics of the row are wrong.
    hot = hot.masked_fill_((order == each).unsqueeze(-1), length - 1)
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
    """Put NaN or an infinity into each chosen row, after its first element."""
    device, (count, length) = rows.device, (len(chosen), rows.shape[1])
    place = torch.randint(min(1, length - 1), length, (count,), generator=generator, device=device)
    words = torch.tensor((float("nan"), float("inf"), float("-inf")), dtype=rows.dtype, device=device)
    begin = torch.randint(0, 3, (1,), generator=generator, device=device)
    rows[chosen, place] = words[(begin + torch.arange(count, device=device)) % 3]
