"""Records of a CUDA file: kernels, parameters, macros, constants, shared arrays and includes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel."""

    type: str
    """Type as written, without the name, for example ``const __half *__restrict__``."""
    name: str
    """Name of the parameter; empty if the declaration has none."""
    base: str
    """Type without qualifiers, pointer and reference, for example ``__half``."""
    pointer: bool
    """Whether the parameter is a pointer (``*`` or ``[]``)."""
    const: bool
    """Whether the value or the pointer's target is const, which indicates an input."""

    @property
    def of_pointers(self) -> bool:
        """Whether the parameter points to pointers, as ``float* const*`` does."""
        stars, brackets = self.type.count("*"), self.type.count("[")
        return "(" not in self.type and (stars > 1 or (stars == 1 and brackets > 0))


@dataclass(frozen=True, slots=True)
class TemplateParameter:
    """A parameter of a kernel template."""

    type: str
    """``typename``, ``class``, or the type of a value such as ``int``."""
    name: str
    """Name of the parameter; empty if the declaration has none."""
    default: str | None
    """Default value as written, or None."""


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """A ``__global__`` function."""

    name: str
    """Name without the namespace."""
    namespace: str
    """Enclosing namespaces, for example ``detail::kernels``; empty at file scope."""
    parameters: tuple[Parameter, ...]
    """Parameters of the kernel, in order."""
    template: tuple[TemplateParameter, ...]
    """Template parameters; empty for a plain function."""
    extern_c: bool
    """Whether the symbol is the plain name."""
    launch_bounds: tuple[str, ...]
    """Expressions in ``__launch_bounds__``: threads, blocks per SM, blocks per cluster."""
    cluster_dims: tuple[str, ...]
    """Expressions in ``__cluster_dims__``: blocks of a thread-block cluster along x, y, z."""
    line: int
    """Line of the name, counted from 1."""
    file: str = ""
    """Header that contains the kernel, as written in ``#include``; empty for the main file."""
    obstacle: str = ""
    """Reason why the kernel cannot be compiled on its own; empty if it can."""

    @property
    def qualified(self) -> str:
        """Qualified name, that is, with namespaces."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name

    @property
    def signature(self) -> str:
        """Name, template parameters and parameters in one line."""
        template = ", ".join(" ".join(filter(None, (p.type, p.name))) for p in self.template)
        parameters = ", ".join(" ".join(filter(None, (p.type, p.name))) for p in self.parameters)
        return f"{self.qualified}{f'<{template}>' if template else ''}({parameters})"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A selected kernel in the form that the compiler needs."""

    entry: KernelFunction
    """The kernel function."""
    symbol: str | None
    """Symbol in the machine code, if known (``extern "C"``, or a mangled name given by the user)."""
    expression: str | None
    """Otherwise NVRTC's name expression (``nvrtcAddNameExpression``), for example ``ns::k<512, 64>``."""


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro that the file defines or expects."""

    name: str
    """Name of the macro."""
    value: str | None
    """Replacement as written; None if the file does not define the macro."""
    kind: str
    """``defined``; ``default`` (``#ifndef``/``#define``, can be set with ``-D``); ``required`` (``#ifndef``/
    ``#error``)."""
    line: int
    """Line of the definition, or of the condition."""
    number: int | None = None
    """Value of an integer literal, which may have parentheses or a sign; else None."""
    function_like: bool = False
    """Whether the macro takes arguments."""
    file: str = ""
    """Header that contains the macro, as written in ``#include``; empty for the main file."""


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A host function, which is removed for the device compiler."""

    name: str
    """Name of the function."""
    line: int
    """First line of the function."""
    last_line: int
    """Last line of the function."""


@dataclass(frozen=True, slots=True)
class Include:
    """An ``#include`` directive and its status."""

    name: str
    """Name in quotes or angle brackets."""
    quoted: bool
    """Whether the name is in quotes."""
    status: str
    """``device`` (provided by the compiler), ``local`` (a user's file, also read), ``host`` (removed), or ``missing``
    (quoted but not found, removed)."""
    line: int
    """Line of the directive."""
    file: str = ""
    """Header that contains the directive; empty for the main file."""
