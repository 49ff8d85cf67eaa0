"""What a kernel folder declares: source, genes, constraints, launches, and the workload that says what is right.

    kernels/saxpy/
        kernel.cu      device code; every gene and every problem macro is a macro, a missing one is `#error`
        kernel.py      a module-level `kernel = Kernel(...)`
        reference.h    the reference in plain C++ double (`Kernel.reference_call` shows its signature)

Four types stay apart: a `Problem` (shapes, dtype, options), a `Config` (one choice per gene), a `Launch` (geometry and
arguments) and a `Tensor` (one buffer of the workload). Functions that a kernel declares get the first two.
"""

from __future__ import annotations

import inspect
import math
import struct
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from evokern.declaration.kernel_files import KernelFile, files_digest, kernel_files
from evokern.declaration.problem import Problem as Problem  # declared here for everybody who declares or reads kernels
from evokern.declaration.problem import ProblemField as ProblemField
from evokern.declaration.problem import problem_of
from evokern.declaration.slices import Slice as Slice
from evokern.declaration.space import Config, Gene, Space, Value
from evokern.errors import RAISED, KernelError, SpaceError, nearest

if TYPE_CHECKING:
    import torch

DTYPE_BYTES: Mapping[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "u32": 4, "u64": 8,
}  # fmt: skip
"""Bytes of an element, by evokern's name of its type."""

SCALAR_BYTES: Mapping[str, int] = {
    "i32": 4, "u32": 4, "i64": 8, "u64": 8, "f32": 4, "f64": 8, "f16": 2, "bf16": 2, "bool": 1,
}  # fmt: skip
"""Bytes of an argument passed by value, by evokern's name of its type."""


def whole(number: int | float) -> int:
    """Return a whole number as it is (a traced one keeps its formula: see `evokern.export.trace`), others as `int`."""
    return number if isinstance(number, int) and not isinstance(number, bool) else int(number)


Role = Literal["input", "output", "inout", "workspace", "constant"]


@dataclass(frozen=True)
class Tensor:
    """One buffer of the workload, contiguous in row-major order."""

    dtype: str
    """Element type: a key of `DTYPE_BYTES`."""
    shape: tuple[int, ...]
    """Extent of each axis, in elements."""
    role: Role = "input"
    """`input` is verified unchanged; `output` and `workspace` are poisoned with NaN before each checked run. A
    `constant` is an input that no launch takes: before each launch it is copied into the `__constant__` array that has
    the tensor's name; the copy is timed with the kernel, and what the array holds behind it is poisoned."""
    initial: Literal["poison", "zero"] = "poison"
    """State of a workspace before *every* launch sequence; `zero` costs a memset that is timed with the kernel."""
    scale: float = 1.0
    """Standard deviation of the normal input set."""
    large: float = 64.0
    """Standard deviation of the large-magnitude input set (a kernel that must survive less says so here)."""
    low: int = 0
    """Integer types: smallest value drawn."""
    high: int = 127
    """Integer types: largest value drawn."""
    draw: Callable[[torch.Generator], torch.Tensor] | None = field(default=None, compare=False)
    """How the values are drawn where they are no independent numbers (a table that is a permutation, lengths that add
    up): a function of a `torch.Generator`, on whose device it returns whole numbers of this shape. It may depend on the
    problem and on nothing else, and serves every input set. An exported program draws from `low` to `high`."""
    change: Literal["elements", "nothing"] | Callable[[torch.Tensor, torch.Generator], torch.Tensor] = field(
        default="elements", compare=False
    )
    """What may change where a call is repeated on nearly the same inputs: some `elements`, each for one of another
    draw; `nothing`, since the values hang together; or what a function makes of the values and a `torch.Generator`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(whole(extent) for extent in self.shape))
        if self.dtype not in DTYPE_BYTES:
            raise KernelError(f"tensor dtype {self.dtype!r}: {nearest(self.dtype, DTYPE_BYTES)}")
        if any(extent < 1 for extent in self.shape):
            raise KernelError(f"tensor shape {self.shape} has an empty axis")
        if not (callable(self.change) or self.change in ("elements", "nothing")):
            raise KernelError(f"tensor change {self.change!r}: give 'elements', 'nothing', or a function")

    @property
    def given(self) -> bool:
        """Whether the reference gets it: it holds drawn values before a call."""
        return self.role in ("input", "inout", "constant")

    @property
    def kept(self) -> bool:
        """Whether a call must leave it as it was."""
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
class Scalar:
    """A kernel argument passed by value."""

    dtype: Literal["i32", "u32", "i64", "u64", "f32", "f64", "f16", "bf16", "bool"]
    """C type of the argument: a key of `SCALAR_BYTES`."""
    value: int | float
    """Its value; of `f16` and `bf16` rounded to the nearest, of `bool` True or False."""

    def __post_init__(self) -> None:
        if self.dtype not in SCALAR_BYTES:
            raise KernelError(f"scalar dtype {self.dtype!r}: {nearest(self.dtype, SCALAR_BYTES)}")
        if self.dtype == "bool" and self.value not in (0, 1):
            raise KernelError(f"a bool argument is True or False, not {self.value!r}")


def bfloat16_bits(value: float) -> int:
    """Return the bits of a number rounded to bfloat16, ties to even (IEEE 754, 4.3.1)."""
    bits = int.from_bytes(struct.pack("<f", value), "little")
    if bits & 0x7FFFFFFF > 0x7F800000:  # NaN keeps a bit of its payload
        return bits >> 16 | 0x40
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def i32(value: int) -> Scalar:
    """Return an `int` argument.

    Raises:
        KernelError: it is no whole number, or does not fit.
    """
    return Scalar("i32", _fitting(value, "i32", 31))


def i64(value: int) -> Scalar:
    """Return a `long long` argument.

    Raises:
        KernelError: it is no whole number, or does not fit.
    """
    return Scalar("i64", _fitting(value, "i64", 63))


def _fitting(value: int | float, dtype: str, bits: int) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise KernelError(f"{dtype}({value}) is no whole number; a // b is a / b rounded down, f32(x) passes a float")
    number = whole(value)
    # A traced number (`evokern.export.trace`) would take the comparison for a condition on the shape.
    if type(number) is int and not -(1 << bits) <= number < 1 << bits:
        raise KernelError(f"{dtype}({number}) does not fit{', i64 would take it' if bits == 31 else ''}")
    return number


def f32(value: float) -> Scalar:
    """Return a `float` argument."""
    return Scalar("f32", float(value))


@dataclass(frozen=True)
class L2Window:
    """A request to keep one tensor in L2 while the launch runs (CUDA's access-policy window)."""

    tensor: str
    """Name of the tensor that should persist."""
    hit_ratio: float = 1.0
    """Share of its lines that get the persisting property, 0 to 1."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch: geometry, arguments, attributes."""

    entry: str
    """Name of the `__global__` function (extern "C", or a template instantiation such as `k<512,64>`)."""
    grid: tuple[int, int, int]
    """Blocks along x, y, z."""
    block: tuple[int, int, int]
    """Threads along x, y, z."""
    args: tuple[str | Scalar, ...]
    """In the entry's order: a tensor's name (its address is passed) or a `Scalar`."""
    shared_bytes: int = 0
    """Dynamic shared memory of a block, in bytes."""
    static_shared_bytes: int = 0
    """Static shared memory of a block where the kernel knows it before the compile, in bytes."""
    min_blocks: int = 1
    """Blocks per SM promised to `__launch_bounds__`; bounds the registers of a thread."""
    cluster: tuple[int, int, int] | None = None
    """Thread-block cluster, for compute capability 9.0 and above."""
    l2_window: L2Window | None = None
    """Tensor that should persist in L2."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", _triple(self.grid))
        object.__setattr__(self, "block", _triple(self.block))
        object.__setattr__(self, "args", tuple(self.args))
        for position, argument in enumerate(self.args):
            if not isinstance(argument, (str, Scalar)):
                raise KernelError(f"argument {position + 1} of {self.entry} is {_remedied(argument)}")

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


def _remedied(argument: object) -> str:
    """Say what stands where a tensor's name or a `Scalar` belongs, and what to write there."""
    if callable(argument):
        name = getattr(argument, "__name__", "f")
        return f"the function {name} itself; call it with its value: {name}(p.N)"
    if isinstance(argument, int):
        return f"the plain number {argument}; say its type: i32({argument})"
    if isinstance(argument, float):
        return f"the plain number {argument}; say its type: f32({argument})"
    return f"{argument!r}; an argument is a tensor's name, or a number with its type such as i32(p.N)"


def _triple(extent: int | Sequence[int]) -> tuple[int, int, int]:
    parts = tuple(extent) if isinstance(extent, Iterable) else (extent,)
    if not 1 <= len(parts) <= 3:
        raise KernelError(f"a grid or block has one to three extents, not {parts}")
    for part in parts:
        if not hasattr(part, "__index__"):
            raise KernelError(f"a grid or block has whole extents, not {part!r}; -(-a // b) is a / b, rounded up")
    x, y, z = (*parts, 1, 1)[:3]
    return whole(x), whole(y), whole(z)


@dataclass(frozen=True)
class Need:
    """What a constraint compares: it holds while `needed` is at most `available`."""

    needed: float
    """What the candidate needs."""
    available: float
    """What there is."""
    unit: str = ""
    """Unit of both, for messages."""

    @property
    def holds(self) -> bool:
        """Whether there is enough."""
        return self.needed <= self.available


def divides(divisor: int, number: int, unit: str = "remainder") -> Need:
    """Return a need that holds when `divisor` divides `number`; its size is the remainder."""
    return Need(number % divisor if divisor else 1, 0, unit)


@dataclass(frozen=True)
class Constraint:
    """A named condition that a candidate must meet before it is compiled."""

    name: str
    """Name; the `static_assert` in the source that says the same thing carries it too."""
    holds: Callable[..., bool | Need]
    """Function of (config), (config, problem) or (config, problem, chip)."""
    reason: str
    """Why a candidate that violates it cannot work, in a sentence."""
    wasteful: bool = False
    """The candidate would be right but never worth a trial; on small problems of a simulated gate it may run."""

    def __post_init__(self) -> None:
        arity = len(inspect.signature(self.holds).parameters)
        if not 1 <= arity <= 3:
            raise KernelError(f"constraint {self.name} takes {arity} arguments; use (config[, problem[, chip]])")
        object.__setattr__(self, "_arity", arity)

    @property
    def arity(self) -> int:
        """How many of (config, problem, chip) the function takes."""
        return self._arity  # type: ignore[attr-defined,no-any-return]

    def evaluate(self, config: Config, problem: Problem, chip: object) -> Need:
        """Return what is needed and available; a plain boolean becomes 1 or 0 needed of 0.

        Raises:
            KernelError: the constraint's own function raised, or returned nothing.
        """
        try:
            answer = self.holds(*(config, problem, chip)[: self.arity])
        except SpaceError:
            raise
        except RAISED as error:
            frame = traceback.extract_tb(error.__traceback__)[:2][-1]  # this function's, then the constraint's own
            raise KernelError(
                f"constraint {self.name} raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno}) "
                f"for {dict(config)} at {problem}; it must answer for every candidate: False where one cannot work"
            ) from error
        if answer is None:
            raise KernelError(
                f"constraint {self.name} returned None for {dict(config)} at {problem}; it must return a bool, "
                "Need(needed, available) or divides(a, b)"
            )
        return answer if isinstance(answer, Need) else Need(0 if answer else 1, 0)


@dataclass(frozen=True)
class VectorAccess:
    """A vector load or store whose alignment depends on strides: checked before the compile."""

    tensor: str
    """Tensor in global memory, or a name such as `shared k_tile`."""
    width_bytes: int
    """Bytes that one thread moves at once: 4, 8 or 16."""
    stride_bytes: tuple[int, ...]
    """Strides, in bytes, by which such accesses are apart (row stride, slice offset, base offset)."""


@dataclass(frozen=True)
class Tolerance:
    """How far each output element may be from the float64 reference: `|error| <= atol + rtol * |reference|`."""

    atol: float
    """Absolute part."""
    rtol: float
    """Relative part."""

    def __post_init__(self) -> None:
        for name, value in (("atol", self.atol), ("rtol", self.rtol)):
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and math.isfinite(value) and value >= 0):
                raise KernelError(f"{name} = {value!r} is no tolerance; give a finite number of at least 0")


Inputs = Mapping[str, "torch.Tensor"]

Arithmetic = Literal["f8", "f16", "tf32", "f32", "f64"]
"""Number format of a workload's operations."""


@dataclass(frozen=True)
class Baseline:
    """What the user would run instead, as a function of torch tensors (GPU only)."""

    name: str
    """Name shown beside the result."""
    run: Callable[[Problem, Inputs], Mapping[str, torch.Tensor]]
    """Gets the problem and the inputs in their own dtypes (or what `prepare` made of them), returns the outputs by
    name; captured in a CUDA graph."""
    prepare: Callable[[Problem, Inputs], Inputs] | None = None
    """Makes of the inputs what this one would be given in practice (another dtype, say): once for each input set,
    before the graph is captured, so that it is not timed."""

    def given(self, problem: Problem, inputs: Inputs) -> Inputs:
        """Return what `run` gets for these inputs."""
        return inputs if self.prepare is None else self.prepare(problem, inputs)


@dataclass(frozen=True)
class Workload:
    """What is right, and what it costs."""

    tensors: Callable[[Problem, Config], Mapping[str, Tensor]]
    """Every buffer by name, in the order of `reference.h`: inputs, outputs, workspaces."""
    reference: Callable[[Problem, Inputs], Mapping[str, torch.Tensor]]
    """Float64 outputs from float64 inputs (torch tensors of the declared shapes, on any device)."""
    tolerance: Mapping[str, Tolerance]
    """Tolerance of each output."""
    flops: Callable[[Problem], float]
    """Floating-point operations of one call, an FMA as two."""
    bytes: Callable[[Problem], float]
    """Fewest bytes of one call through device memory."""
    baselines: tuple[Baseline, ...] = ()
    """What the user would run instead; the fastest one that is right counts."""
    small_problems: tuple[str, ...] = ()
    """Problems on which a simulated device runs the gate: small, tails included. Where each part names its field
    (`B=1,S=72`), the other fields are as in the study's problem. A candidate runs the first two that it can."""
    arithmetic: Arithmetic | None = None
    """Number format of those operations, which decides how fast they can be: `f16` (bf16 too) and `f8` (8-bit integers
    too) as on the tensor cores, `tf32` half of that, `f32` and `f64` as on the plain pipes. None takes it from the
    tensors: the narrowest type of inputs and outputs."""

    slices: tuple[Slice, ...] = ()
    """Which part of the outputs a part of the inputs reaches. With it each candidate of a large problem gets inputs of
    its own, in slices; without it the inputs of a large problem are renewed whole, every `gate.renew_every`."""
    nonfinite: tuple[str, ...] = ()
    """Inputs that may hold infinities and NaN: the reference says what becomes of them, and every variant does it. The
    gate's `edges` inputs hold some there, and NaN or an infinity is right where the reference has the same."""

    cpp_reference: bool = True
    """Whether `reference.h` says the same in plain C++. Without it `check` compares nothing, and a program that checks
    itself cannot be exported: a torch module, say, is not rewritten by hand before a kernel is worth exporting."""

    def __post_init__(self) -> None:
        if self.arithmetic is not None and self.arithmetic not in get_args(Arithmetic):
            raise KernelError(f"arithmetic = {self.arithmetic!r}: {nearest(self.arithmetic, get_args(Arithmetic))}")
        object.__setattr__(self, "slices", tuple(self.slices))
        given = (self.nonfinite,) if isinstance(self.nonfinite, str) else tuple(self.nonfinite)
        object.__setattr__(self, "nonfinite", given)


@dataclass(frozen=True)
class Kernel:
    """A parameterised kernel: everything a search needs to know about it."""

    name: str
    """The folder's name."""
    genes: tuple[Gene, ...]
    """Parameters and mutations."""
    fields: tuple[ProblemField, ...]
    """The problem's fields, positional ones first."""
    launches: Callable[[Config, Problem], Sequence[Launch]]
    """The launches of one call, in order."""
    workload: Workload
    """Inputs, reference, tolerance, cost, baselines."""
    constraints: tuple[Constraint, ...] = ()
    """The kernel's own constraints, beyond the chip's limits."""
    macros: Callable[[Config, Problem], Mapping[str, Value]] = field(default=lambda config, problem: {})
    """Further macros, those that depend on the problem (for example `HEAD_DIM`)."""
    vector_accesses: Callable[[Config, Problem], Sequence[VectorAccess]] = field(default=lambda config, problem: ())
    """Vector accesses whose alignment depends on the problem or on genes."""
    options: tuple[str, ...] = ()
    """Further NVRTC options, for example `--use_fast_math`."""
    architecture_suffix: Callable[[Config], str] = field(default=lambda config: "")
    """`a` for candidates that need architecture-specific instructions (wgmma), else nothing."""
    deterministic: bool = True
    """Two runs on the same inputs give the same bits."""
    source: str = "kernel.cu"
    """File with the device code, relative to the folder."""
    folder: Path = Path()
    """Filled in when the folder is loaded."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "genes", tuple(self.genes))
        object.__setattr__(self, "fields", tuple(self.fields))
        object.__setattr__(self, "constraints", tuple(self.constraints))
        object.__setattr__(self, "_space", Space(self.genes))
        names = [constraint.name for constraint in self.constraints]
        for name in names:
            if names.count(name) > 1:
                raise KernelError(f"kernel {self.name}: constraint {name} is declared twice")

    @property
    def space(self) -> Space:
        """The genes without any constraint bound (see `evokern.declaration.feasibility.feasible_space`)."""
        return self._space  # type: ignore[attr-defined,no-any-return]

    @property
    def source_path(self) -> Path:
        """Where the device code is."""
        return self.folder / self.source

    def problem(self, text: str | Mapping[str, Value | bool]) -> Problem:
        """Return a problem from `"2,8,512,64,causal=1"` or from a mapping.

        Raises:
            KernelError: a field is unknown, missing or outside what the kernel takes; the message says what it takes.
        """
        return problem_of(self.name, self.fields, text)

    @property
    def field_names(self) -> list[str]:
        """Names of the problem's fields."""
        return [entry.name for entry in self.fields]

    def files(self) -> tuple[KernelFile, ...]:
        """Return every file that makes the kernel what it is: sources, headers, declaration."""
        return kernel_files(self.folder, self.source)

    def digest(self) -> str:
        """Return a SHA-256 over the kernel's files: a study remembers it."""
        return files_digest(self.files())
