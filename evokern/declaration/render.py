"""Candidate → CUDA source and compile options.

The source text stays as it is: genes and problem macros arrive as `-D` options, so that compiler messages name the
lines of `kernel.cu`. A named choice arrives as a number: `-DLOADS=LOADS_VECTOR16` with `-DLOADS_VECTOR16=2`, the
position of the value in the gene's declaration, so that the source can write `if constexpr (LOADS == LOADS_VECTOR16)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from evokern.declaration.feasibility import launches_of
from evokern.declaration.foreign import ForeignCandidate
from evokern.declaration.genes import Config, Gene, Value
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.state import State
from evokern.errors import RAISED, KernelError


@dataclass(frozen=True)
class Rendered:
    """A candidate's program, ready for the compiler."""

    source: str
    """Text of the kernel's source file."""
    name: str
    """File name for compiler messages."""
    headers: Mapping[str, str]
    """The kernel's headers, by the name an `#include` uses."""
    options: tuple[str, ...]
    """Compiler options: macros, then the kernel's own."""
    entries: tuple[str, ...]
    """Entry points of the launches, each once, in order."""
    architecture_suffix: str = ""
    """`a` where architecture-specific instructions are needed."""
    state: State = field(default_factory=dict)
    """The kernel's declared state."""

    @property
    def macros(self) -> dict[str, str]:
        """The `-D` options as name → value."""
        pairs = (option[2:].split("=", 1) for option in self.options if option.startswith("-D"))
        return {pair[0]: pair[1] if len(pair) > 1 else "1" for pair in pairs}


def choice_macro(gene: Gene, value: Value) -> str:
    """Return the constant that stands for a named choice, for example `LOADS_VECTOR16`."""
    return re.sub(r"\W", "_", f"{gene.name}_{value}").upper()


def macros(kernel: Kernel, config: Config, problem: Problem) -> dict[str, str]:
    """Return every macro of a candidate: constants of named choices, genes, then the problem's.

    Raises:
        KernelError: the kernel's `macros` raised, or redefines a gene.
    """
    result: dict[str, str] = {}
    for gene in kernel.genes:
        named = any(isinstance(value, str) for value in gene.values)
        if named:
            result |= {choice_macro(gene, value): str(index) for index, value in enumerate(gene.values)}
        result[gene.name] = choice_macro(gene, config[gene.name]) if named else str(config[gene.name])
    try:
        extra = dict(kernel.macros(config, problem))
    except RAISED as error:
        raise KernelError(
            f"kernel {kernel.name}: macros raised {type(error).__name__}: {error} for {dict(config)} at {problem}"
        ) from error
    for name, value in extra.items():
        if name in result:
            raise KernelError(f"kernel {kernel.name}: macro {name} is a gene already; rename the problem's macro")
        result[name] = str(value)
    return result


def read_source(kernel: Kernel) -> tuple[str, dict[str, str]]:
    """Return the kernel's source text and its headers by the name in `#include`.

    Raises:
        KernelError: the source is missing, or a file is no text.
    """
    files = kernel.files()
    source = next(file for file in files if file.path == kernel.source_path)
    headers = {name: file.text for file in files if file is not source for name in file.includes}
    return source.text, headers


def source_of(kernel: Kernel, config: Config) -> tuple[str, str, dict[str, str]]:
    """Return file name, source text and headers of a candidate: the kernel's own, or a foreign source beside them.

    Raises:
        KernelError: the source is missing, or a file is no text.
    """
    text, headers = read_source(kernel)
    if isinstance(config, ForeignCandidate):
        return config.source.name, config.source.text, headers
    return kernel.source, text, headers


def render(kernel: Kernel, config: Config, problem: Problem) -> Rendered:
    """Return the program of a candidate at a problem.

    Raises:
        KernelError: the source is missing, or a function that the kernel declares raised.
    """
    name, source, headers = source_of(kernel, config)
    defines = tuple(f"-D{name}={value}" for name, value in macros(kernel, config, problem).items())
    return Rendered(
        source=source,
        name=name,
        headers=headers,
        options=(*defines, *kernel.options),
        entries=tuple(dict.fromkeys(launch.entry for launch in launches_of(kernel, config, problem))),
        architecture_suffix=kernel.architecture_suffix(config),
        state=kernel.state,
    )
