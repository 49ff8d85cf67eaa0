"""Removal of device functions, constants, types and macros that no kernel needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Set

from evokern.cuda_source import preprocessor
from evokern.cuda_source.declarations import CppDeclaration
from evokern.cuda_source.lexer import NESTING, TokenStream, directive_body
from evokern.cuda_source.source_file import SourceFile
from evokern.cuda_source.specialize.layout import Layout, apply, squeeze

_STORED = frozenset(("__constant__", "__device__", "__managed__", "__shared__"))
_DROPPABLE = frozenset(("function", "class", "enum", "variable", "alias", "typedef", "using"))
_WORD = re.compile(r"[^\W\d]\w*")


def entry_words(entries: Iterable[str]) -> frozenset[str]:
    """Return the identifiers in the names of kernels, for example ``k``, ``T`` and ``silu`` for ``k<T, silu>``."""
    return frozenset(token.text for entry in entries for token in TokenStream(entry).tokens if token.kind == "word")


def drop_unreferenced(text: str, entries: Iterable[str] = (), wanted: Set[str] = frozenset()) -> str:
    """Remove declarations that no kernel uses and macros that nothing uses.

    A declaration is kept if its name occurs anywhere in the kept text, so equal names may keep too much but never too
    little. Variables in device memory are kept, because host code may write to them.

    Args:
        text: the source.
        entries: names of the launched kernels; empty for all ``__global__`` functions.
        wanted: further names to keep.

    Returns:
        The shorter source.
    """
    named = tuple(entries)
    wanted = wanted | entry_words(named)
    while (shorter := _drop_macros(_drop_declarations(text, named, wanted), wanted)) != text:
        text = shorter
    return squeeze(text)


def _drop_declarations(text: str, entries: tuple[str, ...], wanted: Set[str]) -> str:
    unit = SourceFile("", text)
    macros = preprocessor.macro_words(unit.definitions)
    conditions = set(wanted).union(*(macros.get(word, ()) for word in wanted))
    mentions = {id(leaf): _words(unit, leaf, macros) for leaf in unit.leaves}
    by_name: dict[str, list[int]] = {}
    for leaf in unit.leaves:
        for name in leaf.names:
            by_name.setdefault(name, []).append(id(leaf))
    conditions |= {
        word
        for t in unit.stream.tokens
        if t.directive in ("if", "elif", "pragma")
        for word in preprocessor.words(directive_body(t.text))
    }
    pasted = _pasted(unit)
    roots = [
        id(leaf)
        for leaf in unit.leaves
        if _is_root(unit, leaf, entries) or set(leaf.names) & conditions or any(map(pasted, leaf.names))
    ]
    kept = preprocessor.closure(roots, lambda one: [used for word in mentions[one] for used in by_name.get(word, ())])
    layout = Layout(unit)
    ranges = [_with_conditions(unit, leaf) for leaf in unit.leaves if id(leaf) not in kept]
    return apply(text, [layout.removal(first, last) for first, last in ranges if first <= last])


def _with_conditions(unit: SourceFile, leaf: CppDeclaration) -> tuple[int, int]:
    """Return a declaration's tokens, including the `#if` before a first word under a condition; none if it is unclear.

    An example is `#if INLINE == 0`, `__noinline__`, `#endif`, and then the rest of the declaration.
    """
    tokens, first = unit.stream.tokens, leaf.first
    open_, least = 0, 0
    for token in tokens[leaf.first : leaf.last + 1]:
        open_ += NESTING.get(token.directive, 0)
        least = min(least, open_)
    while least < 0 and first and tokens[first - 1].directive:
        first -= 1
        change = NESTING.get(tokens[first].directive, 0)
        open_, least = open_ + change, min(0, least + change)
    return (first, leaf.last) if open_ == least == 0 else (1, 0)


def _words(unit: SourceFile, leaf: CppDeclaration, macros: dict[str, frozenset[str]]) -> set[str]:
    found: set[str] = set()
    for index in range(leaf.first, leaf.last + 1):
        token = unit.stream.tokens[index]
        if token.kind == "word":
            found |= {token.text} | macros.get(token.text, frozenset())
        elif token.kind == "directive":
            found |= preprocessor.words(directive_body(token.text))
    return found


def _is_root(unit: SourceFile, leaf: CppDeclaration, entries: tuple[str, ...]) -> bool:
    head = {unit.stream.tokens[i].text for i in leaf.head}
    expanded = head | {word for d in unit.definitions if d.name in head for word in preprocessor.words(d.value)}
    if leaf.kind not in _DROPPABLE or "operator" in leaf.names:
        return True
    if leaf.kind == "function" and "__global__" in expanded:
        named_by_macro = {d.name for d in unit.definitions} & set(leaf.names)
        return not entries or bool(named_by_macro) or any(_means(e, name) for e in entries for name in leaf.names)
    return leaf.kind == "variable" and bool(expanded & _STORED)


def _means(entry: str, name: str) -> bool:
    """Return whether an entry (plain, qualified, mangled, with template arguments) may refer to a kernel's name."""
    if entry.startswith("_Z"):
        return f"{len(name)}{name}" in entry  # length and name (Itanium C++ ABI, section 5.1.2)
    return entry.partition("<")[0].rpartition("::")[2].strip() == name


def _pasted(unit: SourceFile) -> Callable[[str], bool]:
    """Return a function that returns whether ``##`` in a macro may produce a name."""
    patterns = set()
    for definition in unit.definitions:
        variable = definition.parameters or ()
        for ends in re.findall(r"(\w*)\s*##\s*(\w*)", definition.value):
            first, last = ("" if end in variable else re.escape(end) for end in ends)
            patterns.add(rf"{first}\w*{last}")
    one = re.compile("|".join(sorted(patterns)))
    return lambda name: bool(patterns) and one.fullmatch(name) is not None


def _drop_macros(text: str, wanted: Set[str]) -> str:
    """Remove macro definitions whose names occur nowhere else."""
    unit = SourceFile("", text)
    used: set[str] = {token.text for token in unit.stream.tokens if token.kind == "word"} | wanted
    for token in unit.stream.tokens:
        if token.kind == "directive" and token.directive not in ("define", "undef"):
            used |= preprocessor.words(directive_body(token.text))
    bodies = preprocessor.macro_words(unit.definitions)
    used |= {word for name in used for word in bodies.get(name, ())}
    layout = Layout(unit)
    pasted = _pasted(unit)
    unused = [d.index for d in unit.definitions if d.name not in used and not pasted(d.name)]
    unused += [
        index
        for index, token in enumerate(unit.stream.tokens)
        if token.directive == "undef" and not set(_WORD.findall(token.text)[1:2]) & used
    ]
    return apply(text, [layout.removal(index, index) for index in unused])
