"""Functions that find kernels, host functions and macros in one file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from evokern.cuda_source import preprocessor
from evokern.cuda_source.declarations import CppDeclaration
from evokern.cuda_source.reader.host_code import HostCode
from evokern.cuda_source.reader.records import HostFunction, KernelFunction, Macro, Parameter, TemplateParameter
from evokern.cuda_source.source_file import SourceFile

_QUALIFIERS = re.compile(
    r"\b(const|volatile|__restrict__|__restrict|restrict|__grid_constant__|struct|register)\b|[*&]|\[\s*\]"
)
_QUALIFYING = frozenset(("const", "volatile", "__restrict__", "__restrict"))
_INTEGER_TYPES = frozenset(("int", "unsigned", "long", "short", "char", "bool", "size_t", "int32_t", "uint32_t",
                            "int64_t", "uint64_t", "auto", "uint"))  # fmt: skip


def entries(unit: SourceFile, host_code: HostCode) -> Iterator[KernelFunction]:
    """Yield the ``__global__`` functions defined in a file."""
    for leaf in unit.leaves:
        defined = leaf.kind in ("function", "call") and leaf.body is not None and leaf.names and leaf.parameters
        if not defined or not leaf.parameters or "__global__" not in host_code.marks.get(id(leaf), ()):
            continue
        explicit = leaf.template is not None and leaf.template[1] == leaf.template[0] + 1  # template <> ... k<64>(...)
        if explicit:
            continue
        yield KernelFunction(
            name=leaf.names[0],
            namespace=leaf.namespace,
            parameters=tuple(
                _parameter(unit, host_code, *part)
                for part in unit.arguments(leaf.parameters[0])
                if unit.stream.source(*part) != "void"
            ),
            template=tuple(_template_parameters(unit, leaf)),
            extern_c=leaf.extern_c or _brings_linkage(unit, leaf),
            launch_bounds=_attribute(unit, leaf, "__launch_bounds__"),
            cluster_dims=_attribute(unit, leaf, "__cluster_dims__"),
            line=unit.line(leaf.name_index),
            file=unit.name,
            obstacle=host_code.obstacles.get(id(leaf), ""),
        )


def _brings_linkage(unit: SourceFile, leaf: CppDeclaration) -> bool:
    """Return whether a macro before the name expands to ``extern "C"``."""
    values = {d.name: d.value for d in unit.definitions}
    return any('extern "C"' in values.get(unit.stream.tokens[i].text, "") for i in leaf.head)


def _parameter(unit: SourceFile, host_code: HostCode, first: int, last: int) -> Parameter:
    tokens = unit.stream.tokens
    default = next((i for i in range(first, last + 1) if tokens[i].text == "="), last + 1)
    bounds = [i for i in range(first, default) if tokens[i].text == "["]
    words = [i for i in range(first, bounds[0] if bounds else default) if tokens[i].kind == "word"]
    named = len(words) > 1 and tokens[words[-1] - 1].text != "::" and tokens[words[-1]].text not in _INTEGER_TYPES
    name_at = words[-1] if named and not _QUALIFIERS.fullmatch(tokens[words[-1]].text) else None
    end = default - 1 if name_at is None else name_at - 1
    written = unit.stream.source(first, end)
    if name_at is not None and bounds:
        written += " " + unit.stream.source(bounds[0], default - 1)
    pointer = "*" in written or "[" in written
    hidden = [
        word for word in re.findall(r"\w+", written) if word in host_code.macros
    ]  # const or __restrict__ by macro
    plain = " ".join(word for word in written.split() if word not in hidden or host_code.macros[word] - _QUALIFYING)
    return Parameter(
        type=written,
        name=tokens[name_at].text if name_at is not None else "",
        base=" ".join(_QUALIFIERS.sub(" ", re.sub(r"\[[^\]]*\]", " ", plain)).split()),
        pointer=pointer,
        const="const" in re.findall(r"\w+", written.split("*")[0]),
    )


def _template_parameters(unit: SourceFile, leaf: CppDeclaration) -> Iterator[TemplateParameter]:
    if leaf.template is None:
        return
    tokens = unit.stream.tokens
    for first, last in unit.stream.split_commas(leaf.template[0] + 1, leaf.template[1] - 1):
        equals = next((i for i in range(first, last + 1) if tokens[i].text == "="), last + 1)
        named = tokens[equals - 1].kind == "word" and equals - 1 > first
        end = equals - 2 if named else equals - 1
        yield TemplateParameter(
            type=unit.stream.source(first, end),
            name=tokens[equals - 1].text if named else "",
            default=unit.stream.source(equals + 1, last) if equals < last else None,
        )


def _attribute(unit: SourceFile, leaf: CppDeclaration, name: str) -> tuple[str, ...]:
    """Return the expressions in an attribute of a function; empty if the function does not have it."""
    for index in leaf.head:
        if unit.stream.tokens[index].text == name:
            return tuple(unit.stream.source(*part) for part in unit.arguments(index + 1))
    return ()


def dynamic_arrays(text: str) -> list[str]:
    """Return the names of the arrays in dynamic shared memory that device code declares."""
    return re.findall(r"\b(?:extern\b[^;{}]*\b__shared__|__shared__\b[^;{}]*\bextern)\b[^;{}]*?(\w+)\s*\[", text)


def host_functions(unit: SourceFile, host_code: HostCode) -> Iterator[HostFunction]:
    """Yield the host functions and Python-binding blocks that are removed from a file."""
    for leaf in host_code.dropped[unit.name]:
        if leaf.body and leaf.kind in ("function", "call") and leaf.names and id(leaf) not in host_code.obstacles:
            yield HostFunction(leaf.names[0], unit.line(leaf.first), unit.line(leaf.last))


def macros(unit: SourceFile) -> Iterator[Macro]:
    """Yield the macros of a file: defined, with a default, or required."""
    demanded = preprocessor.required(unit.stream)
    seen: set[str] = set()
    first = unit.definitions[:1]
    guards = {preprocessor.include_guard(unit.stream), *(one.name for one in first if not one.value)}
    for definition in unit.definitions:
        if definition.name in seen or (definition.guard and definition.name in guards):
            continue
        seen.add(definition.name)
        yield Macro(
            definition.name,
            definition.value or None,
            "default" if definition.guard else "defined",
            unit.line(definition.index),
            preprocessor.integer(definition.value),
            definition.parameters is not None,
            unit.name,
        )
    for name, index in demanded.items():
        if name not in seen and not name.startswith("__"):
            seen.add(name)
            yield Macro(name, None, "required", unit.line(index), file=unit.name)
