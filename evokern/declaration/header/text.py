"""Generated header `evokern_genes.h`: the genes and problem macros of a kernel, with names, values and enumerations.

A kernel that includes the header needs no `#error` for missing macros: values given by `-D` take precedence over the
values in the header. During a search, evokern passes the header to the compiler, and every value by `-D`. `evokern
render` writes the header of one candidate next to the source, so that nvcc and editors can read the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from evokern.declaration.genes import Gene, Value
from evokern.declaration.kernel_files import GENERATED
from evokern.escaping import in_comment

NAMESPACE = "genes"
"""Namespace of the genes with `as_="constexpr"`."""


def choice_macro(gene: Gene, value: Value) -> str:
    """Return the macro name of a named choice, for example `LOADS_VECTOR16`."""
    return _upper_name(f"{gene.name}_{value}")


@lru_cache(maxsize=4096)
def _upper_name(text: str) -> str:
    return re.sub(r"\W", "_", text).upper()


def constant_macro(gene: str) -> str:
    """Return the macro that passes the value of a gene with `as_="constexpr"` to the generated header.

    Args:
        gene: name of the gene.
    """
    return f"EVOKERN_GENE_{gene}"


def includes_header(texts: Sequence[str]) -> bool:
    """Return whether a source or one of its headers names the generated header."""
    return any(GENERATED in text for text in texts)


def genes_header(
    kernel: str,
    genes: Sequence[Gene],
    values: Mapping[str, Value],
    macros: Mapping[str, str] | None = None,
    rules: Sequence[str] = (),
) -> str:
    """Return the text of the header.

    Args:
        kernel: name of the kernel.
        genes: genes of the kernel.
        values: gene → value that applies if no `-D` option sets it.
        macros: problem macros with their values, likewise.
        rules: assertions that follow from constraints.
    """
    lines = [f"// {GENERATED}: genes of kernel {kernel}, generated from kernel.py; edit that file instead."]
    lines += ["// Values given by -D take precedence.", "#pragma once"]
    for gene in genes:
        lines += ["", *_gene(gene, values[gene.name])]
    if macros:
        lines += ["", "// Macros of kernel.py"]
        for name, value in macros.items():
            lines += _default(name, value)
    if rules:
        lines += ["", "// Constraints", *rules]
    return "\n".join(lines) + "\n"


def _gene(gene: Gene, value: Value) -> Iterator[str]:
    doc = f": {gene.doc}" if gene.doc else ""
    choices = " | ".join(map(str, gene.values))
    yield in_comment(f"// {gene.name}{doc} ({choices})")
    named = any(isinstance(one, str) for one in gene.values)
    if gene.as_ == "template":
        yield in_comment(f"// {gene.name} is a template argument of the entry point: {value}")
        return
    constants = [choice_macro(gene, one) for one in gene.values]
    if gene.as_ == "macro":
        if named:
            yield from (f"#define {constant} {index}" for index, constant in enumerate(constants))
        yield from _default(gene.name, choice_macro(gene, value) if named else str(value))
        return
    macro = constant_macro(gene.name)
    yield from _default(macro, str(gene.values.index(value) if named else value))
    yield f"namespace {NAMESPACE} {{"
    if named:
        yield f"enum {gene.name}_choices {{ {', '.join(constants)} }};"
    wide = any(isinstance(one, int) and not -(2**31) <= one < 2**31 for one in gene.values)
    kind = f"{gene.name}_choices" if named else "long long" if wide else "int"
    yield f"constexpr {kind} {gene.name} = static_cast<{kind}>({macro});"
    yield "}"


def _default(name: str, value: str) -> tuple[str, str, str]:
    own = re.split(r"\W", name, maxsplit=1)[0]  # a macro may have parameters, as in -DF(x)=x
    return f"#ifndef {own}", f"#define {name} {value}", "#endif"
