"""Records of the host code: launches, buffers and what the code around them states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from evokern.cuda_source.host.values import Dim3, Expr, TypeName


@dataclass(eq=False)
class HostBuffer:
    """A buffer that host code passes to a kernel: a pointer parameter, an allocation, or a tensor."""

    name: str
    """Name of the variable."""
    kind: str
    """`parameter`, `allocation` (on the device), `host` (an array or container on the host), or `tensor`."""
    line: int = 0
    """Line of the allocation or declaration."""
    elements: Expr | None = None
    """Number of elements, if the file states it."""
    bytes: Expr | None = None
    """Size in bytes, if the file states it."""
    shape: tuple[Expr, ...] | None = None
    """Extents of a tensor that the file creates, or whose number of dimensions it checks."""
    dtype: str = ""
    """Element type as written, such as `float`, `at::Half` or `torch::kInt`; empty if unknown."""
    copied_in: bool = False
    """Whether the file copies data to the buffer before the launch."""
    copied_out: bool = False
    """Whether the file copies data from the buffer after the launch."""
    asked: set[int] = field(default_factory=set)
    """Axes of a tensor whose extents the file reads."""
    like: str = ""
    """Tensor whose extents it has, as `torch::empty_like` states it; empty if it has its own."""
    labels: dict[int, str] = field(default_factory=dict)
    """Axis of a tensor → the name of the variable to which the file assigns the extent."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer to a buffer."""

    buffer: HostBuffer
    type: str = ""
    """Element type as written; empty if unknown."""
    offset: Expr = 0
    """Offset in elements."""


Argument: TypeAlias = "Expr | Pointer | Dim3 | TypeName | object"
"""A value that host code passes to a function."""


@dataclass(frozen=True)
class HostLaunch:
    """One launch, as seen from one host function; a launch in a called function is seen from each caller as well."""

    kernel: str
    """Name of the kernel as written, without template arguments."""
    template: tuple[Expr | TypeName, ...]
    """Template arguments; those that the compiler deduces from the arguments are included if they are known."""
    grid: Dim3
    block: Dim3
    shared: Expr
    """Dynamic shared memory in bytes."""
    cluster: Dim3 | None
    """Extents of a cluster that the launch sets; None if it sets none."""
    arguments: tuple[Argument, ...]
    """Arguments of the kernel."""
    function: str
    """Host function that contains the launch."""
    root: str
    """Host function in whose names the expressions are; equal to `function` for the launch itself."""
    line: int
    file: str
    """Header that contains the launch; empty for the main file."""
    conditions: tuple[Expr, ...] = ()
    """Conditions under which the root makes the launch, such as `hidden == 256`."""
    requirements: tuple[Expr, ...] = ()
    """Conditions that the file checks before the launch, such as `x.size(1) % 8 == 0`; others end in an error."""
    bindings: Mapping[str, Expr | TypeName] = field(default_factory=dict)
    """Template parameter of the function, or of a structure template that it gets → value in this view."""
    given: Mapping[str, Argument] = field(default_factory=dict)
    """Parameter of the function that contains the launch → value in this view."""
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Type name that a dispatch macro such as `AT_DISPATCH_FLOATING_TYPES` sets → its types."""

    @property
    def own(self) -> bool:
        """Whether the expressions are in the names of the function that contains the launch."""
        return self.root == self.function
