"""Declaration of a kernel folder: source, genes, constraints, launches, and the workload with its reference.

    kernels/saxpy/
        kernel.cu      device code; genes and problem values are macros, which `evokern_genes.h` defines.
        kernel.py      a module-level `kernel = Kernel(...)`.
        reference.h    the reference in plain C++ double, `inline void reference(...)`.

A declaration uses four types: a `Problem` (shapes, dtype, options), a `Config` (one value per gene), a `Launch`
(geometry and arguments) and a `Tensor` (one buffer of the workload). The functions of a declaration get a problem and a
configuration.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from evokern.declaration.as_data.golden import GoldenValues as GoldenValues

# Imports with `as` are re-exported, for modules that declare or read kernels.
from evokern.declaration.bounds import CustomBound, ErrorBound
from evokern.declaration.field_types import (
    FLAG,
    FUNCTION,
    NUMBER,
    TEXT,
    Kind,
    entries,
    members,
    one_of,
    optional,
    quoted,
    require,
    returning,
)
from evokern.declaration.genes import Config, Gene, Value
from evokern.declaration.genes import Mutation as Mutation
from evokern.declaration.genes import Parameter as Parameter
from evokern.declaration.kernel_files import KernelContent, KernelFile, kernel_files, outside_headers, outside_name
from evokern.declaration.launch import SCALAR_BYTES as SCALAR_BYTES
from evokern.declaration.launch import L2Window as L2Window
from evokern.declaration.launch import Launch as Launch
from evokern.declaration.launch import Scalar as Scalar
from evokern.declaration.launch import Slice as Slice
from evokern.declaration.launch import bfloat16_bits as bfloat16_bits
from evokern.declaration.launch import f32 as f32
from evokern.declaration.launch import i32 as i32
from evokern.declaration.launch import i64 as i64
from evokern.declaration.problem import Problem as Problem
from evokern.declaration.problem import ProblemField as ProblemField
from evokern.declaration.problem import problem_of
from evokern.declaration.space import AtMost as AtMost
from evokern.declaration.space import Constraint as Constraint
from evokern.declaration.space import Space
from evokern.declaration.space import VectorAccess as VectorAccess
from evokern.declaration.space import divides as divides
from evokern.declaration.tensor import DTYPE_BYTES as DTYPE_BYTES
from evokern.declaration.tensor import FLUSHED, SMALLEST, State, checked_state
from evokern.declaration.tensor import SIGNIFICAND_BITS as SIGNIFICAND_BITS
from evokern.declaration.tensor import Role as Role
from evokern.declaration.tensor import Tensor as Tensor
from evokern.declaration.tensor import TileMap as TileMap
from evokern.declaration.tensor import Tolerance as Tolerance
from evokern.declaration.tensor import unit_roundoff as unit_roundoff
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError, SpaceError, suggestion
from evokern.escaping import repr_of

if TYPE_CHECKING:
    import torch

    from evokern.hardware.profiles import Profile

_TOLERANCE = one_of(Tolerance, "a Tolerance(atol, rtol)")

Inputs = Mapping[str, "torch.Tensor"]

_SMALL_PROBLEM = Kind(TEXT.accepts, 'a problem as text, for example "1024" or "N=1024"')


def _slices(given: object) -> tuple[Slice, ...]:
    return members("the workload", "slices", given, one_of(Slice, "a Slice"))


def _number(owner: str, name: str, made: Any) -> float:
    if not NUMBER.accepts(made):
        raise KernelError(f"{owner}: {name} returned {quoted(made)}; return a number")
    return float(made)


def is_installed(module: str) -> bool:
    """Return whether a module can be found, without importing it or its packages."""
    if module in sys.modules:
        return True
    first, *inner = module.split(".")
    try:
        spec = find_spec(first)
    except ValueError:  # a loaded module without a spec
        return False
    if spec is None or not inner:
        return spec is not None
    folders = [str(Path(one, *inner[:-1])) for one in spec.submodule_search_locations or ()]
    return PathFinder.find_spec(inner[-1], folders) is not None


Arithmetic = Literal["f8", "f16", "tf32", "f32", "f64"]
"""Number format of the arithmetic of a workload."""


@dataclass(frozen=True)
class Baseline:
    """An existing implementation to compare with: a function of torch tensors (GPU only)."""

    name: str
    """Name shown with the result."""
    run: Callable[[Problem, Inputs], Mapping[str, torch.Tensor]]
    """Function of the problem and the inputs, in their own dtypes or as returned by `prepare`; returns the outputs by
    name. It is captured in a CUDA graph."""
    prepare: Callable[[Problem, Inputs], Inputs] | None = None
    """Function that converts the inputs, for example to another dtype; runs once per input set and is not timed."""
    error: Mapping[str, ErrorBound] = field(default_factory=dict)
    """Output → bound for this baseline only, if it computes less precisely: the workload's bound with other fields."""
    requires: str | None = None
    """Module that `run` imports; if it is not installed, the baseline is left out of searches and packages."""

    def __post_init__(self) -> None:
        kinds = {"name": TEXT, "run": FUNCTION, "prepare": optional(FUNCTION), "requires": optional(TEXT)}
        require("a baseline", self, kinds)
        entries("a baseline", "error", self.error, one_of(ErrorBound, "an error bound"))

    @property
    def installed(self) -> bool:
        """Return whether the required module is installed."""
        return self.requires is None or is_installed(self.requires)

    def given(self, problem: Problem, inputs: Inputs) -> Inputs:
        """Return the inputs of `run`, processed by `prepare` if it is set."""
        return inputs if self.prepare is None else self.prepare(problem, inputs)


def _undeclared(problem: Problem) -> float:
    """Stand for a missing declaration, which `Workload` rejects."""
    raise KernelError("not declared")


@dataclass(frozen=True)
class Workload:
    """Computation of a kernel: its buffers, reference, tolerance and cost."""

    tensors: Callable[[Problem, Config], Mapping[str, Tensor]]
    """Function that returns all buffers by name, in the order of `reference.h`: inputs, outputs, workspaces."""
    reference: Callable[[Problem, Inputs], Mapping[str, torch.Tensor]]
    """Function that returns float64 outputs for float64 inputs: torch tensors of the declared shapes, on any device."""
    tolerance: Mapping[str, Tolerance] = field(default_factory=dict)
    """Tolerance of each output without a bound."""
    flops: Callable[[Problem], float] = _undeclared
    """Floating-point operations of one call; an FMA counts as two."""
    bytes: Callable[[Problem], float] = _undeclared
    """Minimum device memory traffic of one call, in bytes."""
    error: Mapping[str, ErrorBound | Callable[[Problem, Inputs], torch.Tensor]] = field(default_factory=dict)
    """Bound on the rounding error of each output, which holds at every shape: a bound of `evokern.declaration.bounds`,
    or a function of the problem and the float64 inputs that returns the largest absolute error of each element."""
    baselines: tuple[Baseline, ...] = ()
    """Existing implementations to compare with; the fastest correct one is used."""
    small_problems: tuple[str, ...] = ()
    """Small problems, including tails, for the gate of a simulated device.

    If every part names its field (`B=1 S=72`), the other fields are as in the study's problem. A candidate runs the
    first two problems that it supports."""
    arithmetic: Arithmetic | None = None
    """Number format of the operations, used for the roofline bound; None selects the narrowest input or output type.

    `f16` (also bf16) and `f8` (also 8-bit integers) run on the tensor cores, and `tf32` at half the rate of `f16`.
    `f32` and `f64` run on the ordinary pipes."""

    slices: Sequence[Slice] | Callable[[Problem], Sequence[Slice]] = ()
    """Slices of inputs and the outputs that they affect, or a function that returns them for a problem.

    With slices, each candidate of a large problem gets new inputs in the slices. Without slices, the inputs of a large
    problem are renewed entirely every `gate.renew_every` candidates."""
    nonfinite: tuple[str, ...] = ()
    """Inputs that may contain infinities and NaN, which the reference and all variants must handle.

    The gate's `edges` inputs then include such values. The output must be NaN or an infinity where the reference is."""

    golden: GoldenValues | None = None
    """Recorded inputs and outputs of one problem, which apply there instead of `reference`."""

    cpp_reference: bool = True
    """Whether `reference.h` contains the reference in plain C++.

    If not, `evokern check` cannot compare the two references, and an exported program checks itself only at the study's
    shape, with a file. This is useful for a torch module that is not yet rewritten in C++."""

    def __post_init__(self) -> None:
        if self.arithmetic is not None and self.arithmetic not in get_args(Arithmetic):
            raise KernelError(
                f"unknown arithmetic {self.arithmetic!r}: {suggestion(self.arithmetic, get_args(Arithmetic))}"
            )
        owner = "the workload"
        for required in ("flops", "bytes"):
            if getattr(self, required) is _undeclared:
                raise KernelError(f"the workload declares no `{required}`; add a function of the problem")
        require(owner, self, dict.fromkeys(("tensors", "reference", "flops", "bytes"), FUNCTION))
        require(owner, self, {"cpp_reference": FLAG, "golden": optional(one_of(GoldenValues, "a GoldenValues(…)"))})
        entries(owner, "tolerance", self.tolerance, _TOLERANCE)
        given = (self.nonfinite,) if isinstance(self.nonfinite, str) else self.nonfinite
        checked: dict[str, object] = {
            "nonfinite": members(owner, "nonfinite", given, TEXT),
            "baselines": members(owner, "baselines", self.baselines, one_of(Baseline, "a Baseline")),
            "small_problems": members(owner, "small_problems", self.small_problems, _SMALL_PROBLEM),
            "tensors": returning(
                self.tensors, lambda made: entries(owner, "tensors", made, one_of(Tensor, "a Tensor"))
            ),
            "flops": returning(self.flops, lambda made: _number(owner, "flops", made)),
            "bytes": returning(self.bytes, lambda made: _number(owner, "bytes", made)),
            "slices": returning(self.slices, _slices) if callable(self.slices) else _slices(self.slices),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        limits = dict(self.tolerance)
        for name, bound in self.error.items():
            if name in limits and limits[name].bound is None:
                raise KernelError(f"output {name!r} has a bound and a tolerance; remove it from `tolerance`")
            if not (isinstance(bound, ErrorBound) or callable(bound)):
                raise KernelError(
                    f"error of {name!r} is {bound!r}; use a bound such as SumOfProducts(terms=...), or a function"
                )
            own = bound if isinstance(bound, ErrorBound) else CustomBound(bound)
            limits[name] = Tolerance(0.0, 0.0, bound=own)
        for baseline in self.baselines:
            for name, bound in baseline.error.items():
                declared = limits[name].bound if name in limits else None
                if type(bound) is not type(declared):  # they share the magnitudes
                    raise KernelError(
                        f"baseline {baseline.name}: its bound for {name!r} is {type(bound).__name__}, but the workload "
                        f"declares {'none' if declared is None else type(declared).__name__}; use `replace` of the "
                        "workload's bound"
                    )
        object.__setattr__(self, "tolerance", limits)

    def buffers(self, problem: Problem, config: Config, baseline: Baseline | None = None) -> dict[str, Tensor]:
        """Return the buffers of a candidate, with the factors of its bounds and the share of `exact` inputs.

        Args:
            problem: the problem.
            config: the candidate.
            baseline: the baseline that uses the buffers of the candidate, and may have its own bounds.

        Raises:
            KernelError: a bound names an unknown tensor, or its number of terms or a precision is wrong.
        """
        tensors = dict(self.tensors(problem, config))
        bounds = {name: one.bound for name, one in self.tolerance.items() if one.bound is not None and name in tensors}
        if baseline is not None:
            bounds |= {name: bound for name, bound in baseline.error.items() if name in bounds}
        if not bounds:
            return tensors
        given = {name: tensor for name, tensor in tensors.items() if tensor.given}
        bits = {name: 8 * DTYPE_BYTES[tensor.dtype] for name, tensor in given.items()}
        for name, bound in bounds.items():
            dtype = tensors[name].dtype
            if dtype not in SIGNIFICAND_BITS:
                raise KernelError(f"output {name!r} has type {dtype}, which does not round; give it a tolerance")
            every, narrow = bound.intermediates(problem, config)
            flushed = every * FLUSHED[dtype] if dtype in FLUSHED else narrow * SMALLEST[dtype] / 2
            tensors[name] = replace(tensors[name], factors=bound.factors(problem, config, bits), flushed=flushed)
        shares = [bound.density(problem) for bound in bounds.values()]
        drawn = all(tensor.may_be_exact for tensor in given.values())
        if drawn and len(bounds) == len(self.tolerance) and None not in shares:
            share = min(share for share in shares if share is not None)
            for name in given:
                tensors[name] = replace(tensors[name], exact_share=share)
        return tensors

    def slices_at(self, problem: Problem) -> tuple[Slice, ...]:
        """Return the declared slices for a problem.

        Raises:
            KernelError: the function `slices` raised.
        """
        if not callable(self.slices):
            return tuple(self.slices)
        try:
            return tuple(self.slices(problem))
        except KERNEL_CODE_EXCEPTIONS as error:
            raise KernelError(f"slices raised {type(error).__name__}: {error} ({problem})") from error


_SUFFIXES = ("", "a", "f")


def _suffix(owner: str, made: object) -> str:
    if made not in _SUFFIXES:
        raise KernelError(f"{owner}: architecture_suffix returned {quoted(made)}; return 'a', 'f' or ''")
    return str(made)


def explained(error: BaseException) -> str:
    """Return a clause about an exception of the kernel's code, with the nearest name for an unknown argument."""
    unknown = re.match(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'", str(error))
    owner = globals().get(unknown[1]) if unknown else None
    if unknown is None or owner is None:
        return f"raised {type(error).__name__}: {error}"
    known = suggestion(unknown[2], inspect.signature(owner).parameters)
    return f"passes {unknown[1]} the unknown argument {unknown[2]!r}: {known}"


_MACRO = Kind(lambda value: isinstance(value, (int, str)), "a whole number or a string")


@dataclass(frozen=True)
class Kernel:
    """Declaration of a parameterised kernel."""

    name: str
    """Name of the folder."""
    genes: tuple[Gene, ...]
    """Parameters and mutations."""
    fields: tuple[ProblemField, ...]
    """Fields of the problem, positional ones first."""
    launches: Callable[[Config, Problem], Sequence[Launch]]
    """Function that returns the launches of one call, in order."""
    workload: Workload
    """Inputs, reference, tolerance, cost, baselines."""
    constraints: tuple[Constraint, ...] = ()
    """The kernel's own constraints, in addition to the limits of the chip."""
    macros: Callable[[Config, Problem], Mapping[str, Value]] = field(default=lambda config, problem: {})
    """Function that returns additional macros, for example `HEAD_DIM` from the problem."""
    vector_accesses: Callable[[Config, Problem], Sequence[VectorAccess]] = field(default=lambda config, problem: ())
    """Function that returns vector accesses whose alignment depends on the problem or on genes."""
    options: tuple[str, ...] = ()
    """Additional NVRTC options, for example `--use_fast_math`."""
    architecture_suffix: Callable[[Config], str] = field(default=lambda config: "")
    """Function that returns `a` for candidates with architecture-specific instructions (wgmma), otherwise an empty
    string."""
    deterministic: bool = True
    """Whether two runs on the same inputs produce identical bits."""
    state: State = field(default_factory=dict)
    """Initial value of writable module variables: name → bytes, or one byte (0 to 255) that fills the variable.

    Each variable is restored before *every* call, and the copy or memset is timed with the kernel. A name matches all
    variables with this name; add namespaces (`ns::counter`) to select one. A candidate without such a variable ignores
    the entry. If a candidate changes an undeclared variable, the check `state` finds it `wrong`."""
    starting_points: tuple[Mapping[str, Value], ...] = ()
    """Good candidates for some chip or problem, each given as changes of the default.

    `evo` tries the feasible ones right after the default candidate. It skips them if the warm start is a search on the
    simulated chip, or uses three or more studies."""
    starting_points_at: Callable[[Problem, Profile], Iterable[Mapping[str, Value]]] | None = None
    """Function that returns further starting points for a problem and a chip, tried before the others."""
    source: str = "kernel.cu"
    """File with the device code, relative to the folder."""
    folder: Path = Path()
    """Path of the folder, set when it is loaded."""
    content: KernelContent | None = field(default=None, repr=False, compare=False)
    """Content of the folder that a search uses to its end; None for the current content of the files."""

    __repr__ = repr_of("name", "folder")

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "state", checked_state(self.name, self.state))
        object.__setattr__(self, "starting_points", self._points())
        object.__setattr__(self, "_space", self._unbound())
        names = [constraint.name for constraint in self.constraints]
        for name in names:
            if names.count(name) > 1:
                raise KernelError(f"kernel {self.name}: constraint {name} is declared twice")

    def _check_types(self) -> None:
        """Check the type of each field, and make the functions check their results."""
        owner = f"kernel {self.name}"
        require("kernel", self, {"name": TEXT})
        functions = ("launches", "macros", "vector_accesses", "architecture_suffix")
        at = () if self.starting_points_at is None else ("starting_points_at",)
        require(owner, self, dict.fromkeys((*functions, *at), FUNCTION))
        require(owner, self, {"source": TEXT, "deterministic": FLAG, "workload": one_of(Workload, "a Workload(…)")})
        launch, access = one_of(Launch, "a Launch"), one_of(VectorAccess, "a VectorAccess")
        checked: dict[str, object] = {
            "genes": members(owner, "genes", self.genes, one_of(Gene, "a Parameter or a Mutation")),
            "fields": members(owner, "fields", self.fields, one_of(ProblemField, "a ProblemField")),
            "constraints": members(owner, "constraints", self.constraints, one_of(Constraint, "a Constraint")),
            "options": members(owner, "options", self.options, TEXT),
            "launches": returning(self.launches, lambda made: members(owner, "launches", made, launch)),
            "macros": returning(self.macros, lambda made: entries(owner, "macros", made, _MACRO)),
            "architecture_suffix": returning(self.architecture_suffix, lambda made: _suffix(owner, made)),
            "vector_accesses": returning(
                self.vector_accesses, lambda made: members(owner, "vector_accesses", made, access)
            ),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def _points(self) -> tuple[Mapping[str, Value], ...]:
        """Return the starting points as a tuple; a declaration may use any iterable."""
        given: Any = self.starting_points
        if isinstance(given, (Mapping, str)) or not isinstance(given, Iterable):
            raise KernelError(
                f"kernel {self.name}: starting_points is {given!r}; use a tuple of mappings from genes to values, and "
                "put a comma after a single mapping"
            )
        return tuple(given)

    def _unbound(self) -> Space:
        """Return the space with the checked starting points."""
        space = Space(self.genes)
        points, changes = [space.default()], []
        for given in self._checked(space, self.starting_points):
            point = space.canonical({**space.default(), **given})
            changes.append(given)
            if point in points:
                before = points.index(point)
                same = f"starting point {before}" if before else "the default candidate, which is always tried first"
                raise KernelError(f"kernel {self.name}: starting point {len(changes)} repeats {same}; remove it")
            points.append(point)
        return replace(space, starting_points=tuple(changes))

    def _checked(self, space: Space, points: Iterable[Any]) -> Iterator[Mapping[str, Value]]:
        """Return starting points with values of the genes."""
        for number, given in enumerate(points, 1):
            where = f"kernel {self.name}: starting point {number}"
            if not isinstance(given, Mapping):
                raise KernelError(f"{where} is {given!r}; use a mapping from genes to values")
            try:
                changes = {name: _own(space.gene(name), value) for name, value in given.items()}
                point = space.canonical({**space.default(), **changes})
            except SpaceError as error:
                raise KernelError(f"{where}: {error}") from error
            unused = next((name for name, value in changes.items() if point[name] != value), None)
            if unused is not None:
                raise KernelError(
                    f"{where} sets {unused}, but the gene's `when` makes it inactive there; remove {unused}"
                )
            yield changes

    def starting_points_for(self, problems: Sequence[Problem], chip: Profile) -> tuple[Mapping[str, Value], ...]:
        """Return the starting points for these problems and this chip, best first.

        Raises:
            KernelError: a starting point is invalid.
        """
        space, points = self.space, self.space.starting_points
        if self.starting_points_at is not None:
            own = (point for p in problems for point in self.starting_points_at(p, chip))
            points = (*self._checked(space, own), *points)
        return tuple({space.canonical({**space.default(), **point}): point for point in points}.values())

    @property
    def space(self) -> Space:
        """Space of the genes without constraints (see `evokern.declaration.feasibility.feasible_space`)."""
        return self._space  # type: ignore[attr-defined,no-any-return]

    @property
    def source_path(self) -> Path:
        """Path of the device code."""
        return self.folder / self.source

    def problem(self, text: str | Mapping[str, Value | bool]) -> Problem:
        """Return a problem from `"2,8,512,64,causal=1"` or from a mapping.

        Raises:
            KernelError: a field is unknown, missing or out of range; the message lists the supported values.
        """
        return problem_of(self.name, self.fields, text)

    @property
    def field_names(self) -> list[str]:
        """Names of the problem's fields."""
        return [entry.name for entry in self.fields]

    @property
    def free_fields(self) -> list[ProblemField]:
        """Fields that accept every number in a range, and not only declared choices."""
        return [entry for entry in self.fields if not entry.choices]

    def files(self) -> tuple[KernelFile, ...]:
        """Return all files of the kernel: sources, headers, declaration."""
        return self.content.files if self.content else kernel_files(self.folder, self.source)

    def file_text(self, name: str) -> str | None:
        """Return the text of one file of the kernel, or None if it is missing.

        Raises:
            KernelError: the file is not UTF-8.
        """
        return next((file.text for file in self.files() if file.name == name), None)

    def read_content(self) -> KernelContent:
        """Return the content of the files now, which may have changed since the kernel was loaded.

        A kernel that is declared as data keeps its content.
        """
        if self.content is not None and all(file.name != "kernel.py" for file in self.content.files):
            return self.content
        files = kernel_files(self.folder, self.source)
        return KernelContent(files, self.outside_headers(files))

    def outside_headers(self, files: Sequence[KernelFile]) -> dict[str, str]:
        """Return the current digests of the headers outside the kernel that some files of it may include."""
        device = [file for file in files if file.includes or file.path == self.source_path]
        known = {name for file in files for name in file.includes}
        found = outside_headers((file.kept_text for file in device), self.options, known)
        return {outside_name(path, self.folder): digest for path, digest in found.items()}

    def digest(self) -> str:
        """Return the SHA-256 digest of the kernel's content, as stored in studies."""
        return (self.content or self.read_content()).digest()


def _own(gene: Gene, value: object) -> Value:
    """Return a value as the gene declares it.

    Raises:
        SpaceError: the gene has no such value, or its value has another type.
    """
    given = int(value) if isinstance(value, bool) else value
    for one in gene.values:
        if one == given and type(one) is type(given):
            return one
    alike = next((one for one in gene.values if str(one) == str(value) or one == given), None)
    meant = f"write {alike!r}" if alike is not None else f"use one of {', '.join(map(repr, gene.values))}"
    raise SpaceError(f"gene {gene.name} cannot be {value!r}: {meant}")
