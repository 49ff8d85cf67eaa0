"""What a kernel folder declares: source, genes, constraints, launches, and the workload that says what is right.

    kernels/saxpy/
        kernel.cu      device code; every gene and every problem macro is a macro, a missing one is `#error`
        kernel.py      a module-level `kernel = Kernel(...)`
        reference.h    the reference in plain C++ double (`Kernel.reference_call` shows its signature)

Four types stay apart: a `Problem` (shapes, dtype, options), a `Config` (one choice per gene), a `Launch` (geometry and
arguments) and a `Tensor` (one buffer of the workload). Functions that a kernel declares get the first two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

# What is imported under its own name is declared here for everybody who declares or reads kernels.
from evokern.declaration.constraint import Constraint as Constraint
from evokern.declaration.constraint import Need as Need
from evokern.declaration.constraint import VectorAccess as VectorAccess
from evokern.declaration.constraint import divides as divides
from evokern.declaration.genes import Config, Gene, Value
from evokern.declaration.kernel_files import KernelFile, files_digest, kernel_files
from evokern.declaration.launch import SCALAR_BYTES as SCALAR_BYTES
from evokern.declaration.launch import L2Window as L2Window
from evokern.declaration.launch import Launch as Launch
from evokern.declaration.launch import Scalar as Scalar
from evokern.declaration.launch import bfloat16_bits as bfloat16_bits
from evokern.declaration.launch import f32 as f32
from evokern.declaration.launch import i32 as i32
from evokern.declaration.launch import i64 as i64
from evokern.declaration.launch import whole as whole
from evokern.declaration.problem import Problem as Problem
from evokern.declaration.problem import ProblemField as ProblemField
from evokern.declaration.problem import problem_of
from evokern.declaration.slices import Slice as Slice
from evokern.declaration.space import Space
from evokern.declaration.state import State, checked_state
from evokern.errors import RAISED, KernelError, SpaceError, nearest

if TYPE_CHECKING:
    import torch

DTYPE_BYTES: Mapping[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "u32": 4, "u64": 8,
}  # fmt: skip
"""Bytes of an element, by evokern's name of its type."""

SIGNIFICAND_BITS: Mapping[str, int] = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8, "e4m3": 4, "e5m2": 3}
"""Bits of a floating-point type's significand, the implicit one included."""


def unit_roundoff(dtype: str) -> float:
    """Return the largest relative error of rounding to a floating-point type: u, half a unit in its last place.

    |round(y) - y| <= u |y| (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 2.2).
    """
    return float(2.0 ** -SIGNIFICAND_BITS[dtype])


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
class Tolerance:
    """How far each output element may be from the float64 reference: `|error| <= atol + rtol * |reference|`."""

    atol: float
    """Absolute part."""
    rtol: float
    """Relative part."""
    by_dtype: Mapping[str, Tolerance] = field(default_factory=dict, hash=False)
    """What holds instead where the problem gives the output another dtype, by its name: `{"bf16": Tolerance(…)}`."""
    elements: int | None = None
    """Elements of an output up to which it holds; None for any number.

    Of more it is larger by sqrt(ln n / ln elements). That is for errors that are rounding times normal values, as of a
    weighted sum of normal inputs: the largest of n normal values is about sqrt(2 ln n) deviations (Cramér, Mathematical
    Methods of Statistics, 1946, 28.6), so what a right kernel's worst element reaches grows with their number.
    """

    def __post_init__(self) -> None:
        for dtype in self.by_dtype:
            if dtype not in DTYPE_BYTES:
                raise KernelError(f"tolerance of dtype {dtype!r}: {nearest(dtype, DTYPE_BYTES)}")
        for name, value in (("atol", self.atol), ("rtol", self.rtol)):
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and math.isfinite(value) and value >= 0):
                raise KernelError(f"{name} = {value!r} is no tolerance; give a finite number of at least 0")

        count = self.elements
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 2):
            raise KernelError(f"a tolerance for {count!r} elements is none; give a whole number of at least 2")

    def of(self, dtype: str) -> Tolerance:
        """Return what holds for an output of a dtype, of no more elements than it says."""
        found = self.by_dtype.get(dtype, self)
        return found if found.elements else replace(found, elements=self.elements)

    def holding(self, tensor: Tensor) -> Tolerance:
        """Return what holds for an output: of its dtype and its number of elements."""
        found = self.of(tensor.dtype)
        if found.elements is None or tensor.elements <= found.elements:
            return Tolerance(found.atol, found.rtol)
        growth = math.sqrt(math.log(tensor.elements) / math.log(found.elements))
        return Tolerance(found.atol * growth, found.rtol * growth)

    def overridden(self, atol: float | None, rtol: float | None) -> Tolerance:
        """Return this with a study's own parts in place of every dtype's; None leaves a part as it is.

        What a study says holds for any number of elements.
        """
        if atol is None and rtol is None:
            return self
        return Tolerance(
            self.atol if atol is None else atol,
            self.rtol if rtol is None else rtol,
            {dtype: one.overridden(atol, rtol) for dtype, one in self.by_dtype.items()},
        )


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
    (`B=1 S=72`), the other fields are as in the study's problem. A candidate runs the first two that it can."""
    arithmetic: Arithmetic | None = None
    """Number format of those operations, which decides how fast they can be: `f16` (bf16 too) and `f8` (8-bit integers
    too) as on the tensor cores, `tf32` half of that, `f32` and `f64` as on the plain pipes. None takes it from the
    tensors: the narrowest type of inputs and outputs."""

    slices: Sequence[Slice] | Callable[[Problem], Sequence[Slice]] = ()
    """Which part of the outputs a part of the inputs reaches, or a function that says it of a problem. With it each
    candidate of a large problem gets inputs of its own, in slices; without it the inputs of a large problem are renewed
    whole, every `gate.renew_every`."""
    nonfinite: tuple[str, ...] = ()
    """Inputs that may hold infinities and NaN: the reference says what becomes of them, and every variant does it. The
    gate's `edges` inputs hold some there, and NaN or an infinity is right where the reference has the same."""

    cpp_reference: bool = True
    """Whether `reference.h` says the same in plain C++. Without it `check` compares nothing, and a program that checks
    itself cannot be exported: a torch module, say, is not rewritten by hand before a kernel is worth exporting."""

    def __post_init__(self) -> None:
        if self.arithmetic is not None and self.arithmetic not in get_args(Arithmetic):
            raise KernelError(f"arithmetic = {self.arithmetic!r}: {nearest(self.arithmetic, get_args(Arithmetic))}")
        if not callable(self.slices):
            object.__setattr__(self, "slices", tuple(self.slices))
        given = (self.nonfinite,) if isinstance(self.nonfinite, str) else tuple(self.nonfinite)
        object.__setattr__(self, "nonfinite", given)

    def slices_at(self, problem: Problem) -> tuple[Slice, ...]:
        """Return the declared slices at a problem.

        Raises:
            KernelError: the function that says them raised.
        """
        if not callable(self.slices):
            return tuple(self.slices)
        try:
            return tuple(self.slices(problem))
        except RAISED as error:
            raise KernelError(f"slices raised {type(error).__name__}: {error} at {problem}") from error


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
    state: State = field(default_factory=dict)
    """What the module's writable variables hold when a call begins: a variable's name → its initial bytes, or the byte
    (0 to 255) that fills it. Each is restored before *every* call, and the copy or memset is timed with the kernel. A
    name stands for all variables so called, with namespaces (`ns::counter`) for one of them; a candidate without such a
    variable ignores it. A variable that is changed and not declared makes a candidate `wrong` by the check `state`."""
    starting_points: tuple[Mapping[str, Value], ...] = ()
    """Candidates known to be good on some chip or at some problem, each as what it changes of the default: `evo` tries
    the feasible ones right after the default candidate, unless a search of the simulated chip or three studies and more
    are its warm start."""
    source: str = "kernel.cu"
    """File with the device code, relative to the folder."""
    folder: Path = Path()
    """Filled in when the folder is loaded."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "genes", tuple(self.genes))
        object.__setattr__(self, "fields", tuple(self.fields))
        object.__setattr__(self, "constraints", tuple(self.constraints))
        object.__setattr__(self, "state", checked_state(self.name, self.state))
        object.__setattr__(self, "starting_points", self._points())
        object.__setattr__(self, "_space", self._unbound())
        names = [constraint.name for constraint in self.constraints]
        for name in names:
            if names.count(name) > 1:
                raise KernelError(f"kernel {self.name}: constraint {name} is declared twice")

    def _points(self) -> tuple[Mapping[str, Value], ...]:
        """Return the starting points, which a declaration may hold in any sequence."""
        given: Any = self.starting_points
        if isinstance(given, (Mapping, str)) or not isinstance(given, Iterable):
            raise KernelError(
                f"kernel {self.name}: starting_points is {given!r}; write a tuple of mappings from genes to values, "
                "with a comma behind a single one"
            )
        return tuple(given)

    def _unbound(self) -> Space:
        """Return the space, once every starting point says what it changes."""
        space = Space(self.genes)
        points, changes = [space.default()], []
        for number, given in enumerate(self.starting_points, 1):
            where = f"kernel {self.name}: starting point {number}"
            if not isinstance(given, Mapping):
                raise KernelError(f"{where} is {given!r}; write a mapping from genes to values")
            try:
                changes.append({name: _own(space.gene(name), value) for name, value in given.items()})
                point = space.canonical({**space.default(), **changes[-1]})
            except SpaceError as error:
                raise KernelError(f"{where}: {error}") from error
            unused = next((name for name, value in changes[-1].items() if point[name] != value), None)
            if unused is not None:
                raise KernelError(
                    f"{where} gives {unused} a value, which does not matter there by its `when`; leave it out"
                )
            if point in points:
                before = points.index(point)
                same = f"starting point {before} again" if before else "the default candidate, which is tried first"
                raise KernelError(f"{where} is {same}; leave it out")
            points.append(point)
        return replace(space, starting_points=tuple(changes))

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


def _own(gene: Gene, value: object) -> Value:
    """Return a gene's value as it declares it.

    Raises:
        SpaceError: it is none of its values, or one of another type.
    """
    given = int(value) if isinstance(value, bool) else value
    for one in gene.values:
        if one == given and type(one) is type(given):
            return one
    alike = next((one for one in gene.values if str(one) == str(value) or one == given), None)
    meant = f"write {alike!r}" if alike is not None else f"it is one of {', '.join(map(repr, gene.values))}"
    raise SpaceError(f"gene {gene.name} cannot be {value!r}: {meant}")
