"""One buffer of a workload, its tolerance, its tensor map, and the declared values of module variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from evokern.declaration.bounds import ErrorBound
from evokern.declaration.field_types import (
    EXTENT,
    FUNCTION,
    NUMBER,
    WHOLE,
    entries,
    is_whole,
    members,
    one_of,
    optional,
    quoted,
    require,
    whole,
)
from evokern.errors import MAX_INTEGER, KernelError, suggestion
from evokern.hardware.tensor_map import DTYPE_BYTES as MAP_DTYPE_BYTES
from evokern.hardware.tensor_map import SWIZZLES, TensorMap

if TYPE_CHECKING:
    import torch

DTYPE_BYTES: Mapping[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "u32": 4, "u64": 8,
}  # fmt: skip
"""Bytes per element, by dtype name."""

SIGNIFICAND_BITS: Mapping[str, int] = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8, "e4m3": 4, "e5m2": 3}
"""Bits of a floating-point type's significand, including the implicit bit."""


def unit_roundoff(dtype: str) -> float:
    """Return the unit roundoff of a floating-point type: the largest relative error of rounding to nearest.

    |round(y) - y| <= u |y| (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 2.2).
    """
    return float(2.0 ** -SIGNIFICAND_BITS[dtype])


SMALLEST: Mapping[str, float] = {"f64": 2.0**-1074, "f16": 2.0**-24, "e4m3": 2.0**-9, "e5m2": 2.0**-16}
"""Smallest positive number of the types with subnormal numbers that float32 arithmetic does not flush."""
FLUSHED: Mapping[str, float] = {"f32": 2.0**-126, "bf16": 2.0**-126}
"""Smallest normal number of the types whose smaller results may be flushed to 0 (PTX ISA, ".ftz")."""

Role = Literal["input", "output", "inout", "workspace", "constant"]
_INITIAL = ("poison", "zero")


@dataclass(frozen=True)
class Tensor:
    """One buffer of the workload, contiguous in row-major order."""

    dtype: str
    """Element type: a key of `DTYPE_BYTES`."""
    shape: tuple[int, ...]
    """Extent of each axis, in elements."""
    role: Role = "input"
    """Use of the buffer.

    An `input` must not change. `output` and `workspace` are poisoned with NaN before each checked run. A `constant` is
    an input that is not passed to launches: before each launch it is copied into the `__constant__` array of the same
    name, and the rest of the array is poisoned. The copy is timed with the kernel."""
    initial: Literal["poison", "zero"] = "poison"
    """State of a workspace before *every* launch sequence; `zero` adds a memset that is timed with the kernel."""
    scale: float = 1.0
    """Standard deviation of `normal` inputs."""
    large: float = 64.0
    """Standard deviation of `large` inputs; reduce it if the kernel need not support values this large."""
    low: int = 0
    """Smallest generated value of an integer type."""
    high: int = 127
    """Largest generated value of an integer type."""
    span: tuple[float, float] | None = None
    """Smallest and largest generated value of a floating-point type; None for no limit.

    Values are uniform for `large` inputs, or if the span has no negative or no positive part; else they are clamped."""
    draw: Callable[[torch.Generator], torch.Tensor] | None = field(default=None, compare=False)
    """Generator of values that depend on each other, for example a permutation or lengths with a fixed sum.

    The function gets a `torch.Generator` and returns whole numbers of this shape on its device. It may depend only on
    the problem, and it is used for every input set. An exported program draws uniformly from `low` to `high`."""
    change: Literal["elements", "nothing"] | Callable[[torch.Tensor, torch.Generator], torch.Tensor] = field(
        default="elements", compare=False
    )
    """Permitted change if a call is repeated on nearly the same inputs.

    `elements` replaces some elements independently, and `nothing` keeps values that depend on each other. A function
    gets the values and a `torch.Generator`, and returns the changed values."""

    exact_share: float | None = field(default=None, compare=False, repr=False)
    """Share of nonzero elements in `exact` inputs; None if no inputs make the arithmetic exact. `Workload.buffers` sets
    it from the bounds."""
    factors: tuple[float, ...] = field(default=(), compare=False, repr=False)
    """Factors of the bound of an output for one candidate, set by `Workload.buffers`."""
    flushed: float = field(default=0.0, compare=False, repr=False)
    """Absolute error that the bound of an output allows for subnormal numbers, set by `Workload.buffers`."""

    def __post_init__(self) -> None:
        if is_whole(self.shape):
            raise KernelError(f"a tensor's shape is the number {self.shape}; use a tuple, for example ({self.shape},)")
        members("a tensor", "shape", self.shape, EXTENT)
        object.__setattr__(self, "shape", tuple(whole(extent) for extent in self.shape))
        require("a tensor", self, {"scale": NUMBER, "large": NUMBER, "low": WHOLE, "high": WHOLE,
                                   "draw": optional(FUNCTION)})  # fmt: skip
        for what, value, known in (("role", self.role, get_args(Role)), ("initial", self.initial, _INITIAL)):
            if value not in known:
                raise KernelError(f"unknown {what} {quoted(value)} of a tensor: {suggestion(value, known)}")
        if self.dtype not in DTYPE_BYTES:
            raise KernelError(f"unknown tensor dtype {self.dtype!r}: {suggestion(self.dtype, DTYPE_BYTES)}")
        if any(extent < 1 for extent in self.shape):
            raise KernelError(f"tensor shape {self.shape} has an extent below 1")
        if self.bytes > MAX_INTEGER:
            raise KernelError(f"tensor shape {self.shape} has {self.bytes:.3g} bytes; at most 2^63 - 1 are possible")
        if not (callable(self.change) or self.change in ("elements", "nothing")):
            raise KernelError(f"unknown tensor change {self.change!r}: use 'elements', 'nothing', or a function")

    @property
    def spans_zero(self) -> bool:
        """Whether generated values may be 0."""
        if self.dtype in SIGNIFICAND_BITS:
            return self.span is None or self.span[0] <= 0 <= self.span[1]
        return self.low <= 0 <= self.high

    @property
    def power_of_two(self) -> float:
        """Power of two nearest to `scale`, the unit of `exact` inputs."""
        return 2.0 ** round(math.log2(self.scale)) if self.scale > 0 else 1.0

    @property
    def may_be_exact(self) -> bool:
        """Whether generated values may be those of `exact` inputs: small integers of both signs, times `scale`."""
        if self.draw is not None:
            return False
        if self.dtype in SIGNIFICAND_BITS:
            most = 2 * self.power_of_two
            return self.span is None or (self.span[0] <= -most and most <= self.span[1])
        return self.low <= 0 < self.high

    @property
    def given(self) -> bool:
        """Whether the buffer is an input: filled with generated values before a call, and passed to the reference."""
        return self.role in ("input", "inout", "constant")

    @property
    def kept(self) -> bool:
        """Whether a call must not change the buffer."""
        return self.role in ("input", "constant")

    @property
    def elements(self) -> int:
        """Number of elements."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Tolerance:
    """Largest allowed error of an output element: `|error| <= atol + rtol * |reference|`, with a float64 reference."""

    atol: float
    """Absolute tolerance."""
    rtol: float
    """Relative tolerance."""
    by_dtype: Mapping[str, Tolerance] = field(default_factory=dict, hash=False)
    """Dtype name → tolerance used instead if the output has this dtype: `{"bf16": Tolerance(…)}`."""
    elements: int | None = None
    """Number of output elements up to which the tolerance applies unchanged; None for any number.

    For a larger number n, it grows by sqrt(ln n / ln elements). This suits rounding errors multiplied by normal values,
    as in a weighted sum of normal inputs: the worst error grows like the largest of n normal values. That value is
    about sqrt(2 ln n) deviations (Cramér, Mathematical Methods of Statistics, 1946, 28.6).
    """
    bound: ErrorBound | None = None
    """Bound on the error before the output is rounded (`Workload.error`); None for a plain tolerance."""
    factors: tuple[float, ...] = ()
    """Factors of the bound's magnitudes for one problem and candidate; set by `for_tensor`."""

    def __post_init__(self) -> None:
        entries("a tolerance", "by_dtype", self.by_dtype, one_of(Tolerance, "a Tolerance(atol, rtol)"))
        for dtype in self.by_dtype:
            if dtype not in DTYPE_BYTES:
                raise KernelError(f"tolerance for unknown dtype {dtype!r}: {suggestion(dtype, DTYPE_BYTES)}")
        for name, value in (("atol", self.atol), ("rtol", self.rtol)):
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and math.isfinite(value) and value >= 0):
                raise KernelError(f"{name} = {value!r} is not a tolerance; use a finite number of at least 0")

        count = self.elements
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 2):
            raise KernelError(f"a tolerance cannot apply to {count!r} elements; use a whole number of at least 2")

    def of(self, dtype: str) -> Tolerance:
        """Return the tolerance for an output with this dtype and at most `elements` elements."""
        found = self.by_dtype.get(dtype, self)
        return found if found.elements else replace(found, elements=self.elements)

    def for_tensor(self, tensor: Tensor) -> Tolerance:
        """Return the tolerance for an output with its dtype and number of elements.

        With a bound, it is the part that rounds the output, and `factors` give the part of the arithmetic.
        """
        if self.bound is not None:
            roundoff = unit_roundoff(tensor.dtype)
            factors = tuple(factor * (1 + roundoff) for factor in tensor.factors)
            return Tolerance(tensor.flushed, roundoff, bound=self.bound, factors=factors)
        found = self.of(tensor.dtype)
        if found.elements is None or tensor.elements <= found.elements:
            return Tolerance(found.atol, found.rtol)
        growth = math.sqrt(math.log(tensor.elements) / math.log(found.elements))
        return Tolerance(found.atol * growth, found.rtol * growth)

    def overridden(self, atol: float | None, rtol: float | None) -> Tolerance:
        """Return this tolerance with `atol` and `rtol` replaced for every dtype; None keeps the current value.

        The replaced values apply to any number of elements. They also replace a bound.
        """
        if atol is None and rtol is None:
            return self
        if self.bound is not None:
            # Without a relative tolerance, results may be rounded to their type, with as much again for the rest.
            parts = {dtype: 2 * unit_roundoff(dtype) if rtol is None else rtol for dtype in SIGNIFICAND_BITS}
            given = {dtype: Tolerance(atol or 0.0, part) for dtype, part in parts.items()}
            return Tolerance(atol or 0.0, rtol or 0.0, given)
        return Tolerance(
            self.atol if atol is None else atol,
            self.rtol if rtol is None else rtol,
            {dtype: one.overridden(atol, rtol) for dtype, one in self.by_dtype.items()},
        )


_MAP_DTYPES: Mapping[str, str] = {
    "f64": "f64", "f32": "f32", "f16": "f16", "bf16": "bf16", "e4m3": "u8", "e5m2": "u8",
    "i64": "s64", "i32": "s32", "i16": "u16", "i8": "u8", "u8": "u8", "u32": "u32", "u64": "u64",
}  # fmt: skip
"""Element type of a tensor → that of its tensor map; a copy moves bytes, so the sign has no effect."""


@dataclass(frozen=True)
class TileMap:
    """A tensor map as a kernel argument, passed by value: ``const __grid_constant__ CUtensorMap``.

    The host makes the map for the tensor's address before a launch. All lists are in the order of the tensor's shape,
    so the last axis is contiguous; coordinates in PTX have the reverse order.
    """

    tensor: str
    """Name of the tensor."""
    box: tuple[int, ...]
    """Elements along each axis that one copy moves."""
    swizzle: Literal["none", "32B", "64B", "128B"] = "none"
    """Span in bytes within which chunks of 16 bytes change places in shared memory."""
    shape: tuple[int, ...] = ()
    """Extents, if the map sees the tensor with other axes than the tensor's own; empty for the tensor's shape."""
    strides: tuple[int, ...] = ()
    """Elements between neighbours along each axis but the last; empty if `shape` is contiguous."""
    dtype: str = ""
    """Element type; evokern fills it in from the tensor."""

    def __post_init__(self) -> None:
        for name in ("box", "shape", "strides"):
            object.__setattr__(self, name, tuple(map(whole, getattr(self, name))))
        if self.swizzle not in SWIZZLES:
            raise KernelError(f"unknown swizzle {self.swizzle!r} of a tensor map: {suggestion(self.swizzle, SWIZZLES)}")

    def of(self, tensor: Tensor) -> TileMap:
        """Return the argument with the axes and the element type of its tensor.

        Raises:
            KernelError: the map has more or fewer elements than the tensor, or contradictory numbers of axes.
        """
        shape = self.shape or tensor.shape
        strides = self.strides or tuple(math.prod(shape[axis:]) for axis in range(1, len(shape)))
        if len(self.box) != len(shape) or len(strides) != len(shape) - 1:
            raise KernelError(
                f"the tensor map of {self.tensor!r} has {len(shape)} axes, {len(self.box)} box sizes and "
                f"{len(strides)} strides; use one box size for each axis, and one stride for each axis but the last"
            )
        last = sum((extent - 1) * stride for extent, stride in zip(shape, (*strides, 1), strict=True))
        # A traced number (`evokern.export.trace`) would record the comparison as a condition on the shape.
        if type(last) is int and last >= tensor.elements:
            raise KernelError(f"the tensor map of {self.tensor!r} ends after its last element, {tensor.elements - 1}")
        return replace(self, shape=shape, strides=strides, dtype=tensor.dtype)

    @property
    def described(self) -> TensorMap:
        """The map in the order of the driver API, of a map that `of` returned."""
        dtype = _MAP_DTYPES[self.dtype]
        size = MAP_DTYPE_BYTES[dtype]
        return TensorMap(
            dtype=dtype, shape=self.shape[::-1], strides=tuple(size * stride for stride in self.strides[::-1]),
            box=self.box[::-1], swizzle=self.swizzle,
        )  # fmt: skip


State: TypeAlias = Mapping[str, "int | bytes"]
"""Name of a variable in the source → initial bytes, or one byte that fills the variable."""


def checked_state(kernel: str, state: object) -> State:
    """Return a kernel's declared state after checking its types.

    Raises:
        KernelError: the state is not a mapping of names to bytes.
    """
    remedy = "write state={'name': 0} for zeros, or the variable's initial bytes: {'name': bytes(...)}"
    if not isinstance(state, Mapping):
        raise KernelError(f"kernel {kernel}: state = {state!r} is not a mapping; {remedy}")
    found: dict[str, int | bytes] = {}
    for name, value in state.items():
        if not isinstance(name, str) or not name:
            raise KernelError(f"kernel {kernel}: state names {name!r}, which is not a variable name; {remedy}")
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 0xFF:
            found[name] = value
        elif isinstance(value, (bytes, bytearray)) and value:
            found[name] = bytes(value)
        else:
            raise KernelError(
                f"kernel {kernel}: state of {name!r} is {value!r}; it must be bytes or a number from 0 to 255; {remedy}"
            )
    return found
