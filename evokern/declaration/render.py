"""CUDA source and compile options of a candidate.

The source text is not modified. Genes and problem macros are passed as `-D` options, so compiler messages refer to the
lines of `kernel.cu`. A named choice becomes a number, the position of the value in the gene's declaration:
`-DLOADS=LOADS_VECTOR16 -DLOADS_VECTOR16=2`. The source can then test `if constexpr (LOADS == LOADS_VECTOR16)`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from evokern.declaration.feasibility import launches_of
from evokern.declaration.foreign import ForeignCandidate
from evokern.declaration.genes import Config
from evokern.declaration.header.leaves import problem_constants
from evokern.declaration.header.rules import HELPERS, rules
from evokern.declaration.header.text import choice_macro, constant_macro, genes_header, includes_header
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.kernel_files import GENERATED
from evokern.declaration.tensor import State
from evokern.errors import KERNEL_CODE_EXCEPTIONS, CodeChangedError, KernelError
from evokern.escaping import in_comment

MOST_MACRO = 1 << 16
"""Maximum length of a macro's value in characters."""


@dataclass(frozen=True)
class Rendered:
    """Source and options of a candidate, ready for the compiler."""

    source: str
    """Source text."""
    name: str
    """File name for compiler messages."""
    headers: Mapping[str, str]
    """Headers of the kernel, by the name used in `#include`."""
    options: tuple[str, ...]
    """Compiler options: macros, then the kernel's own."""
    entries: tuple[str, ...]
    """Entry points of the launches, without repetition, in order."""
    architecture_suffix: str = ""
    """Suffix of the architecture: `a` for architecture-specific instructions, otherwise empty."""
    state: State = field(default_factory=dict)
    """Declared state of the kernel."""

    @property
    def macros(self) -> dict[str, str]:
        """Map from name to value of the macros in the `-D` options."""
        pairs = (_MACRO.match(option) for option in _joined(self.options))
        return {pair["name"]: "1" if pair["value"] is None else pair["value"] for pair in pairs if pair}


_MACRO = re.compile(r"(?:-D\s*|--define-macro[=\s]\s*)(?P<name>[^=]+)(?:=(?P<value>.*))?", re.DOTALL)


def without_macros(options: Iterable[str]) -> list[str]:
    """Return compiler options without those that define a macro."""
    return [option for option in _joined(options) if not _MACRO.match(option)]


def _joined(options: Iterable[str]) -> list[str]:
    """Return compiler options with `-D` and the next word as one option."""
    joined: list[str] = []
    for option in options:
        if joined and joined[-1] in ("-D", "--define-macro"):
            joined[-1] += f" {option}"
        else:
            joined.append(option)
    return joined


def macros(kernel: Kernel, config: Config, problem: Problem) -> dict[str, str]:
    """Return all macros of a candidate: constants of named choices, then genes, then the kernel's own `macros`.

    A gene with `as_="template"` has no macro. The macro of a gene with `as_="constexpr"` has another name, which only
    the generated header uses.

    Raises:
        KernelError: the kernel's `macros` raised or redefines a gene.
    """
    result: dict[str, str] = {}
    for gene in kernel.genes:
        if gene.as_ == "template":
            continue
        named = any(isinstance(value, str) for value in gene.values)
        if gene.as_ == "constexpr":
            value = config[gene.name]
            result[constant_macro(gene.name)] = str(gene.values.index(value) if named else value)
            continue
        if named:
            result |= {choice_macro(gene, value): str(index) for index, value in enumerate(gene.values)}
        result[gene.name] = choice_macro(gene, config[gene.name]) if named else str(config[gene.name])
    try:
        extra = dict(kernel.macros(config, problem))
    except KernelError:
        raise
    except KERNEL_CODE_EXCEPTIONS as error:
        raise KernelError(
            f"kernel {kernel.name}: macros raised {type(error).__name__}: {error} for {dict(config)} at {problem}"
        ) from error
    for name, value in extra.items():
        if name in result:
            raise KernelError(f"kernel {kernel.name}: macro {name} is already a gene; rename the macro")
        result[name] = str(value)
        if len(result[name]) > MOST_MACRO:
            raise KernelError(
                f"kernel {kernel.name}: the value of macro {name} has {len(result[name]):,} characters; use at most "
                f"{MOST_MACRO:,}"
            )
    return result


def read_source(kernel: Kernel) -> tuple[str, dict[str, str]]:
    """Return the kernel's source text, and its headers by the name used in `#include`, with the generated header.

    Raises:
        KernelError: the source is missing, or a file is not text.
    """
    files = kernel.files()
    source = next(file for file in files if file.path == kernel.source_path)
    headers = {name: file.text for file in files if file is not source for name in file.includes}
    return source.text, _with_generated(kernel, source.text, headers)


def _with_generated(kernel: Kernel, source: str, headers: dict[str, str]) -> dict[str, str]:
    """Add the generated header if a text includes it; `-D` options replace the default values in it."""
    if GENERATED in headers or not includes_header([source, *headers.values()]):
        return headers
    return {**headers, GENERATED: genes_header(kernel.name, kernel.genes, kernel.space.default())}


def source_of(kernel: Kernel, config: Config) -> tuple[str, str, dict[str, str]]:
    """Return the file name, source text and headers of a candidate; an external source replaces the kernel's own text.

    Raises:
        KernelError: the source is missing, or a file is not text.
    """
    text, headers = read_source(kernel)
    if isinstance(config, ForeignCandidate):
        return config.source.name, config.source.text, _with_generated(kernel, config.source.text, headers)
    return kernel.source, text, headers


def check_outside_headers(kernel: Kernel) -> None:
    """Reject a kernel if a header outside its folder changed since the kernel was loaded.

    Raises:
        CodeChangedError: a header was changed, added or removed.
    """
    if kernel.content is None:
        return
    before, now = kernel.content.outside, kernel.outside_headers(kernel.files())
    changed = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    if changed:
        place = os.path.normpath(kernel.folder / changed[0])
        raise CodeChangedError(
            f"{place}, a header of kernel {kernel.name}, changed after the kernel was loaded; results of two versions "
            "would mix. Restore the header and run the same command again, or start over"
        )


def render(kernel: Kernel, config: Config, problem: Problem) -> Rendered:
    """Return the source and options of a candidate for a problem.

    Raises:
        KernelError: the source is missing, or a function in `kernel.py` raised.
        CodeChangedError: a header outside the kernel changed.
    """
    if not isinstance(config, ForeignCandidate):
        check_outside_headers(kernel)
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


@dataclass(frozen=True)
class CandidateHeader:
    """Generated header of one candidate, for compilers and editors outside evokern."""

    text: str
    """Text of the header."""
    included: bool
    """Whether the kernel's source includes the header."""
    entries: tuple[str, ...]
    """Entry points of the candidate's launches."""
    left_out: tuple[str, ...]
    """Constraints without an assertion, because they use values that no macro contains."""


def candidate_header(kernel: Kernel, config: Config, problem: Problem) -> CandidateHeader:
    """Return the generated header with the values of one candidate, and assertions that follow from constraints.

    Raises:
        KernelError: the source is missing, or a function in `kernel.py` raised.
    """
    rendered = render(kernel, config, problem)
    asserted, left_out = rules(kernel, problem)
    own = {constant_macro(gene.name) for gene in kernel.genes} | {
        gene.name for gene in kernel.genes if gene.as_ == "macro"
    }
    own |= {choice_macro(gene, value) for gene in kernel.genes for value in gene.values}
    extra = {name: value for name, value in macros(kernel, config, problem).items() if name not in own}
    lines = [*HELPERS, problem_constants(kernel, problem), *asserted] if asserted else []
    lines += [in_comment(f"// Checked only by evokern: {', '.join(left_out)}")] if left_out else []
    text = genes_header(kernel.name, kernel.genes, config, extra, lines)
    return CandidateHeader(text, GENERATED in rendered.headers, rendered.entries, tuple(left_out))
