"""What a reader finds in a CUDA file: entries and parameters, macros, constants, shared arrays, launches, includes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel."""

    type: str
    """The type as written, without the name, for example ``const __half *__restrict__``."""
    name: str
    """The name; empty where the declaration gives none."""
    base: str
    """The type without qualifiers, pointer and reference, for example ``__half``."""
    pointer: bool
    """Whether an address is passed (``*`` or ``[]``)."""
    const: bool
    """Whether the value, or what a pointer points to, is declared const: an input."""
    restrict: bool
    """Whether the pointer carries ``__restrict__``."""


@dataclass(frozen=True, slots=True)
class TemplateParameter:
    """One parameter of a kernel template."""

    type: str
    """``typename``, ``class``, or the type of a value such as ``int``."""
    name: str
    """The name; empty where the declaration gives none."""
    default: str | None
    """The default as written, or None."""


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """A ``__global__`` function."""

    name: str
    """The name without its namespace."""
    namespace: str
    """The namespaces around it, for example ``detail::kernels``; empty at file scope."""
    parameters: tuple[Parameter, ...]
    """The parameters in order."""
    template: tuple[TemplateParameter, ...]
    """The template parameters; empty for a plain function."""
    extern_c: bool
    """Whether the symbol is the bare name."""
    launch_bounds: tuple[str, ...]
    """The expressions in ``__launch_bounds__``: threads, blocks per SM, blocks per cluster."""
    cluster_dims: tuple[str, ...]
    """The expressions in ``__cluster_dims__``: blocks of a thread-block cluster along x, y, z."""
    line: int
    """Line of the name, counted from 1."""
    file: str = ""
    """The include that holds it, as written in ``#include``; empty for the file itself."""
    obstacle: str = ""
    """Why the kernel cannot be compiled on its own, in a sentence; empty when nothing stands in the way."""

    @property
    def qualified(self) -> str:
        """The name with its namespaces."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name

    @property
    def signature(self) -> str:
        """One line for a person: name, template parameters and parameters."""
        template = ", ".join(" ".join(filter(None, (p.type, p.name))) for p in self.template)
        parameters = ", ".join(" ".join(filter(None, (p.type, p.name))) for p in self.parameters)
        return f"{self.qualified}{f'<{template}>' if template else ''}({parameters})"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A kernel asked for by a person, in the form that a compiler needs."""

    entry: KernelFunction
    """The function."""
    symbol: str | None
    """The symbol in the machine code where it is known: ``extern "C"``, or a mangled name that was given."""
    expression: str | None
    """Otherwise NVRTC's name expression (``nvrtcAddNameExpression``), for example ``ns::k<512, 64>``."""


@dataclass(frozen=True, slots=True)
class Macro:
    """A name that the preprocessor replaces, or that the file expects from outside."""

    name: str
    """The name."""
    value: str | None
    """The replacement as written; None when the file gives none."""
    kind: str
    """``defined``; ``default`` (``#ifndef``/``#define``: may be given from outside); ``required`` (``#ifndef``/
    ``#error``); ``undefined`` (used and defined nowhere)."""
    line: int
    """Line of the definition, or of the first use."""
    number: int | None = None
    """The value where it is an integer literal, perhaps in parentheses or with a sign."""
    function_like: bool = False
    """Whether it takes arguments."""
    file: str = ""
    """The include that holds it, as written in ``#include``; empty for the file itself."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A ``constexpr`` or ``const`` integer at file or namespace scope."""

    name: str
    """The name."""
    expression: str
    """The initialiser as written."""
    line: int
    """Line of the definition."""
    file: str = ""
    """The include that holds it, as written in ``#include``; empty for the file itself."""


@dataclass(frozen=True, slots=True)
class SharedArray:
    """A ``__shared__`` declaration."""

    name: str
    """The name."""
    type: str
    """The element type."""
    extents: tuple[str, ...]
    """The array bounds as written, outermost first; empty for a scalar, one empty string for a dynamic array."""
    dynamic: bool
    """Whether its size is given at launch (``extern __shared__``)."""
    function: str
    """The function that it stands in; empty at file scope."""
    line: int
    """Line of the declaration."""
    file: str = ""
    """The include that holds it, as written in ``#include``; empty for the file itself."""


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A function that runs on the host and is set aside for the device compiler."""

    name: str
    """The name."""
    line: int
    """First line."""
    last_line: int
    """Last line."""


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """One ``kernel<<<grid, block, shared, stream>>>(arguments)``, or a ``cudaLaunchKernel`` call."""

    kernel: str
    """The kernel's name as written, without template arguments."""
    template_arguments: str
    """The template arguments as written, without the angle brackets; empty for none."""
    grid: str
    """The first expression."""
    block: str
    """The second expression."""
    shared: str
    """The third expression, in bytes; ``0`` where it is left out."""
    stream: str
    """The fourth expression; ``0`` where it is left out."""
    arguments: tuple[str, ...]
    """The arguments as written."""
    function: str
    """The host function that launches."""
    line: int
    """Line of the launch."""
    definitions: tuple[tuple[str, str], ...] = field(default=())
    """(name, initialiser) of the function's local variables that the expressions mention, directly or not."""
    file: str = ""
    """The include that holds it, as written in ``#include``; empty for the file itself."""


@dataclass(frozen=True, slots=True)
class Include:
    """One ``#include``."""

    name: str
    """The name between the quotes or angle brackets."""
    quoted: bool
    """Whether it is written with quotes."""
    status: str
    """``device`` (the compiler finds it), ``local`` (a file of the user's, read too), ``host`` (set aside), or
    ``missing`` (quoted, found nowhere and set aside)."""
    line: int
    """Line of the directive."""
    file: str = ""
    """The include that holds the directive; empty for the file itself."""
