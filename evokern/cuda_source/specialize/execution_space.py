"""Marks for functions and variables without an execution space, which nvcc would compile for the host.

evokern compiles with ``-default-device``, which makes them device code. nvcc has no such option.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from evokern.cuda_source import preprocessor
from evokern.cuda_source.declarations import CppDeclaration
from evokern.cuda_source.source_file import SourceFile
from evokern.cuda_source.specialize.constant_names import declarations_within
from evokern.cuda_source.specialize.layout import Edit

_SPACES = frozenset(("__device__", "__host__", "__global__", "__constant__", "__shared__", "__managed__"))


def marking_edits(unit: SourceFile, host: Iterable[tuple[int, int]]) -> Iterator[Edit]:
    """Yield the edits that mark functions and variables with ``__device__``.

    Args:
        unit: the text.
        host: token ranges that evokern does not compile, so that their code is for the host.
    """
    spans = tuple(host)
    macros = preprocessor.macro_words(unit.definitions)
    members = {id(member) for leaf in declarations_within(unit) for member in leaf.members}
    for leaf in declarations_within(unit):
        if any(first <= leaf.first < last for first, last in spans):
            continue
        head = {unit.stream.tokens[index].text for index in leaf.head}
        head = head.union(*(macros.get(word, ()) for word in head))
        needs = _function_needs_mark(unit, leaf) if leaf.kind == "function" else _variable_needs_mark(leaf, head, unit)
        if needs and not head & _SPACES and not (leaf.kind == "variable" and id(leaf) in members):
            start = unit.stream.tokens[min(_place(unit, leaf), leaf.last)].start
            yield Edit(start, start, "__device__ ")


def _function_needs_mark(unit: SourceFile, leaf: CppDeclaration) -> bool:
    """Return whether a function is not defaulted or deleted, whose execution space the compiler derives.

    ``T (&name)[N]`` and ``T (*name)(U)`` look like functions, but are variables.
    """
    if leaf.parameters is None:
        return False
    behind = [token.text for token in unit.stream.tokens[leaf.parameters[1] + 1 : leaf.last]]
    if behind[:1] in (["["], ["("]):
        return False
    return not ({"default", "delete"} & set(behind[-1:]) and "=" in behind)


def _variable_needs_mark(leaf: CppDeclaration, head: set[str], unit: SourceFile) -> bool:
    """Return whether device code cannot use a variable's value as a constant."""
    if leaf.kind != "variable" or head & {"extern", "using", "inline"}:
        return False
    array = any(unit.stream.tokens[index].text == "[" for index in leaf.head if index > leaf.name_index)
    return array or not head & {"const", "constexpr"}


def _place(unit: SourceFile, leaf: CppDeclaration) -> int:
    """Return the index of the token before which the mark goes: after ``template <...>`` and ``extern "C"``."""
    index = leaf.first if leaf.template is None else leaf.template[1] + 1
    first, second = ([token.text for token in unit.stream.tokens[index : index + 2]] + ["", ""])[:2]
    if first == "template":  # an explicit instantiation
        return index + 1
    return index + 2 if first == "extern" and second.startswith('"') else index
