"""Removal of host code: spaces replace code that a device compiler cannot read, so device code stays in place.

A declaration is kept if it is marked for the device or used by device code, directly or indirectly. For example, a
``constexpr`` helper that a kernel uses is kept; launchers, ``main``, bindings and host globals are removed. An unmarked
function that device code uses is kept too (NVRTC compiles it with ``-default-device``). It is removed if its body
launches a kernel, allocates memory, or uses a host library.

Preprocessor lines are kept, even inside blanked functions, so that every ``#if`` has its ``#endif``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evokern.cuda_source import preprocessor
from evokern.cuda_source.declarations import CppDeclaration
from evokern.cuda_source.lexer import directive_body
from evokern.cuda_source.reader import known_headers
from evokern.cuda_source.source_file import SourceFile

_DEVICE_MARKS = frozenset({"__global__", "__device__", "__constant__", "__shared__", "__managed__"})
_HOST_WORDS = frozenset({"try", "catch", "throw", "dynamic_cast", "typeid", "cout", "cerr", "endl", "getenv", "fopen"})


@dataclass(frozen=True)
class HostCode:
    """Classification of the declarations in a set of files."""

    dropped: Mapping[str, tuple[CppDeclaration, ...]]
    """File name → declarations to blank."""
    obstacles: Mapping[int, str]
    """``id`` of a removed device declaration → reason why a device compiler cannot compile it on its own."""
    marks: Mapping[int, frozenset[str]]
    """``id`` of a declaration → its execution and memory space specifiers."""
    macros: Mapping[str, frozenset[str]]
    """Macro → words in its expansion."""


class _Separation:
    """Classifier for all files of a program, because a helper in a header may be used only in another file."""

    def __init__(self, units: Iterable[SourceFile], named: frozenset[str] = frozenset()) -> None:
        self.named = named
        self.units = list(units)
        self.macros = preprocessor.macro_words(d for unit in self.units for d in unit.definitions)
        self.pairs = [(unit, leaf) for unit in self.units for leaf in unit.leaves]

    def words(self, unit: SourceFile, indices: Iterable[int]) -> set[str]:
        """Return the identifiers among tokens, including those from macro expansions."""
        found: set[str] = set()
        for index in indices:
            token = unit.stream.tokens[index]
            if token.kind == "word":
                found.add(token.text)
                found |= self.macros.get(token.text, frozenset())
            elif token.directive in ("define", "pragma"):  # `#pragma unroll` can use a constant
                found |= preprocessor.words(directive_body(token.text))
        return found

    def marks(self, unit: SourceFile, declaration: CppDeclaration) -> frozenset[str]:
        """Return the execution and memory space specifiers of a declaration and of its members."""
        inside = declaration.kind == "variable"
        indices = range(declaration.first, declaration.last + 1) if inside else declaration.head
        own = self.words(unit, indices) & (_DEVICE_MARKS | {"__host__"})
        return frozenset(own.union(*(self.marks(unit, member) for member in declaration.members)))

    def host_reason(self, unit: SourceFile, declaration: CppDeclaration) -> str:
        """Return the construct that identifies a declaration as host code, or an empty string."""
        tokens = unit.stream.tokens
        for index in range(declaration.first, declaration.last + 1):
            text = tokens[index].text
            if text == "<<<":
                return "a kernel launch"
            if tokens[index].kind != "word":
                continue
            if library := self.host_library(unit, index):
                return library
            for word in (text, *self.macros.get(text, ())):
                if word in _HOST_WORDS or (_is_runtime_call(word) and word not in known_headers.DEVICE_RUNTIME):
                    return str(word)
            after = tokens[index + 1 : index + 3]
            if (
                text == "std"
                and len(after) == 2
                and after[0].text == "::"
                and after[1].text not in known_headers.DEVICE_STD
            ):
                return f"std::{after[1].text}"
        return ""

    def host_library(self, unit: SourceFile, index: int) -> str:
        """Return the qualified name at a token if it belongs to a host-only library, else an empty string."""
        tokens, last, namespace = unit.stream.tokens, index, unit.stream.tokens[index].text
        if namespace not in known_headers.HOST_NAMESPACES and namespace != "thrust":
            return ""
        if tokens[index - 1].text == "::" and index > 1 and tokens[index - 2].kind == "word":
            return ""
        while last + 2 < len(tokens) and tokens[last + 1].text == "::" and tokens[last + 2].kind == "word":
            last += 2
        if last == index or (namespace == "thrust" and tokens[index + 2].text not in known_headers.THRUST_HOST):
            return ""
        if last == index + 2 and known_headers.is_torch_type(namespace, tokens[last].text):
            return ""
        return "".join(token.text for token in tokens[index : last + 1])

    def run(self) -> HostCode:
        """Classify all declarations: keep device code and the declarations that it uses."""
        marks = {id(leaf): self.marks(unit, leaf) for unit, leaf in self.pairs}
        obstacles = self._obstacles(marks)
        mentions = {id(leaf): self.words(unit, range(leaf.first, leaf.last + 1)) for unit, leaf in self.pairs}
        by_name: dict[str, list[tuple[SourceFile, CppDeclaration]]] = {}
        for unit, leaf in self.pairs:
            for name in leaf.names:
                by_name.setdefault(name, []).append((unit, leaf))

        staying = {id(leaf) for unit, leaf in self.pairs if self._may_stay(unit, leaf, marks, obstacles)}

        def named(words: Iterable[str]) -> list[int]:
            return [id(leaf) for word in words for _, leaf in by_name.get(word, ()) if id(leaf) in staying]

        roots = [id(leaf) for _, leaf in self.pairs if marks[id(leaf)] & _DEVICE_MARKS and id(leaf) not in obstacles]
        kept = preprocessor.closure([*roots, *named(self.named)], lambda one: named(mentions[one]))
        lost = {name for name, places in by_name.items() if not any(id(leaf) in kept for _, leaf in places)}
        own = {name for unit in self.units for name in _namespaces(unit.declarations)}
        for unit, leaf in self.pairs:
            if leaf.kind == "assertion" or self._is_own_macro(leaf):
                fits = not mentions[id(leaf)] & lost and not self.host_reason(unit, leaf)
            elif leaf.kind == "directive" or (leaf.kind == "alias" and "namespace" in self._head_words(unit, leaf)):
                fits = self._names_device_namespace(unit, leaf, own)
                own |= set(leaf.names) if fits and leaf.kind == "alias" else set()
            else:
                continue
            if fits:
                kept.add(id(leaf))
        dropped = {unit.name: self._dropped(unit, unit.leaves, kept) for unit in self.units}
        return HostCode(dropped, obstacles, marks, self.macros)

    def _obstacles(self, marks: Mapping[int, frozenset[str]]) -> dict[int, str]:
        found: dict[int, str] = {}
        names: dict[str, str] = {}
        for unit, leaf in self.pairs:
            if marks[id(leaf)] & _DEVICE_MARKS and leaf.kind == "function":
                for index in range(leaf.first, leaf.last + 1):
                    if unit.stream.tokens[index].text == "<<<" and "__host__" not in marks[id(leaf)]:
                        found[id(leaf)] = (
                            "it launches a kernel itself (dynamic parallelism), and evokern has no device runtime"
                        )
                        names.update(dict.fromkeys(leaf.names, "a kernel launch on the device"))
                        break
                    if library := self.host_library(unit, index):
                        found[id(leaf)] = (
                            f"it uses {library}, which belongs to a host library; pass plain pointers and numbers"
                        )
                        names.update(dict.fromkeys(leaf.names, library))
                        break
        self._spread(found, names, marks)
        for _, leaf in self.pairs:  # an instantiation or prototype of such a function is removed with it
            if leaf.body is None and leaf.kind == "function" and names.keys() & set(leaf.names):
                found.setdefault(id(leaf), f"it uses {names[leaf.names[0]]}")
        return found

    def _spread(self, found: dict[int, str], names: dict[str, str], marks: Mapping[int, frozenset[str]]) -> None:
        """Mark functions that call a function that cannot be compiled on its own."""
        functions = [(unit, leaf) for unit, leaf in self.pairs if leaf.kind == "function" and leaf.body is not None]
        sound = {name for _, leaf in functions if id(leaf) not in found for name in leaf.names}
        lost = set(names) - sound
        while lost:
            more: set[str] = set()
            for unit, leaf in functions:
                if id(leaf) in found or not marks[id(leaf)] & _DEVICE_MARKS:
                    continue
                used = lost & self.words(unit, range(leaf.first, leaf.last + 1))
                if used:
                    name = min(used)
                    found[id(leaf)] = f"it calls {name}, which needs {names[name]}"
                    names.update(dict.fromkeys(leaf.names, names[name]))
                    more |= set(leaf.names)
            sound = {name for _, leaf in functions if id(leaf) not in found for name in leaf.names}
            lost = more - sound

    def _may_stay(
        self, unit: SourceFile, leaf: CppDeclaration, marks: Mapping[int, frozenset[str]], obstacles: Mapping[int, str]
    ) -> bool:
        if id(leaf) in obstacles or leaf.names[:1] == ("main",):
            return False
        if leaf.kind == "function" and leaf.body is None and leaf.names and self._only_host(leaf.names[0], marks):
            return False
        if leaf.kind in ("function", "variable", "call", "typedef", "alias", "using"):
            host_only = "__host__" in marks[id(leaf)] and not marks[id(leaf)] & _DEVICE_MARKS
            return not host_only and not self.host_reason(unit, leaf)
        return True

    def _only_host(self, name: str, marks: Mapping[int, frozenset[str]]) -> bool:
        """Return whether all definitions of a function are host code; its prototypes are then removed too."""
        defined = [
            (unit, leaf)
            for unit, leaf in self.pairs
            if leaf.kind == "function" and leaf.body is not None and leaf.names[:1] == (name,)
        ]
        return bool(defined) and all(
            not marks[id(leaf)] & _DEVICE_MARKS and bool(self.host_reason(unit, leaf)) for unit, leaf in defined
        )

    def _is_own_macro(self, leaf: CppDeclaration) -> bool:
        return leaf.kind == "call" and bool(leaf.names) and leaf.names[0] in self.macros

    def _head_words(self, unit: SourceFile, leaf: CppDeclaration) -> list[str]:
        tokens = unit.stream.tokens
        return [tokens[i].text for i in range(leaf.first, leaf.last + 1) if tokens[i].kind == "word"]

    def _names_device_namespace(self, unit: SourceFile, leaf: CppDeclaration, own: set[str]) -> bool:
        """Return whether ``using namespace N`` or ``namespace A = N`` refers to a namespace that is kept."""
        target = [word for word in self._head_words(unit, leaf) if word not in ("using", "namespace")]
        target = target[1:] if leaf.kind == "alias" else target
        return bool(target) and target[0] in own | {"std", "nvcuda", *known_headers.LIBRARIES}

    def _dropped(
        self, unit: SourceFile, leaves: Iterable[CppDeclaration], kept: set[int]
    ) -> tuple[CppDeclaration, ...]:
        """Return the declarations to blank, including the host members of classes that are kept."""
        found: list[CppDeclaration] = []
        for leaf in leaves:
            if id(leaf) not in kept:
                found.append(leaf)
            elif leaf.kind == "class":
                found += self._host_members(unit, leaf)
        return tuple(found)

    def _host_members(self, unit: SourceFile, declaration: CppDeclaration) -> list[CppDeclaration]:
        found: list[CppDeclaration] = []
        for member in declaration.members:
            marks = self.marks(unit, member)
            if member.kind == "class":
                found += self._host_members(unit, member)
            elif (
                member.kind == "function"
                and not marks & _DEVICE_MARKS
                and ("__host__" in marks or self.host_reason(unit, member))
            ):
                found.append(member)
        return found


def _is_runtime_call(word: str) -> bool:
    return (word.startswith("cuda") and word[4:5].isupper()) or (
        word.startswith("cu") and word[2:3].isupper() and word[3:4].islower()
    )


def _namespaces(declarations: Iterable[CppDeclaration]) -> set[str]:
    """Return the name components of all namespaces that a file opens."""
    found: set[str] = set()
    for declaration in declarations:
        if declaration.kind == "namespace":
            found |= set(declaration.namespace.split("::"))
        if declaration.kind in ("namespace", "linkage"):
            found |= _namespaces(declaration.members)
    return found


def find_host_code(units: Iterable[SourceFile], named: frozenset[str] = frozenset()) -> HostCode:
    """Classify the declarations of a program's files as device or host code.

    Args:
        units: the files.
        named: additional names to keep.
    """
    return _Separation(units, named).run()


def blank(unit: SourceFile, dropped: Iterable[CppDeclaration], includes: Iterable[int]) -> str:
    """Return a file's text with declarations and includes replaced by spaces.

    Args:
        unit: the file.
        dropped: declarations to blank; preprocessor lines inside them are kept, except pragmas.
        includes: indices of the ``#include`` tokens to blank.

    Returns:
        Text in which every remaining character has its old position. If a ``#`` follows a blanked range on its line,
        the range ends with ``;``, because the line would otherwise become a preprocessor line.
    """
    tokens = unit.stream.tokens
    ranges: list[tuple[int, int]] = [(tokens[i].start, tokens[i].end) for i in includes]
    for declaration in dropped:
        begin = tokens[declaration.first].start
        for index in range(declaration.first, declaration.last + 1):
            if tokens[index].kind == "directive" and tokens[index].directive != "pragma":
                ranges.append((begin, tokens[index].start))
                begin = tokens[index].end
        ranges.append((begin, tokens[declaration.last].end))
    before_hash = {
        tokens[i - 1].end for i in range(1, len(tokens)) if tokens[i].kind == "punct" and tokens[i].text.startswith("#")
    }
    pieces: list[str] = []
    position = 0
    for begin, end in sorted(ranges):
        if end > position:
            begin = max(begin, position)
            pieces.append(unit.text[position:begin])
            blanks = "".join("\n" if character == "\n" else " " for character in unit.text[begin:end])
            pieces.append(f"{blanks[:-1]};" if end in before_hash else blanks)
            position = end
    pieces.append(unit.text[position:])
    return "\n".join("" if line.isspace() else line for line in "".join(pieces).split("\n"))
