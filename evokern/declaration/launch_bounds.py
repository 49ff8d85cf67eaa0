"""Launch bounds as a kernel's source states them, for a check before the compile.

``__launch_bounds__(THREADS)`` is evaluated from genes, template arguments, constants and macros of the source file. If
the text alone does not determine the bound (a kernel under an ``#if``, a function call), no bound is returned. After
the compile, `evokern.compile.occupancy` checks the bound that the compiler knows.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from evokern.declaration.foreign import ForeignCandidate
from evokern.declaration.genes import Config, Value
from evokern.declaration.kernel import AtMost, Kernel, Problem
from evokern.errors import KERNEL_CODE_EXCEPTIONS
from evokern.files import read_bytes

_IGNORED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'', re.DOTALL)
_ATTRIBUTE = re.compile(r"\b(?:__\w+__|alignas)\s*\(")
_DEFINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+(\w+)(\(?)(.*)")
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*(.*)")
_CONSTANT = re.compile(
    r"\b(?:constexpr|const)\s+(?:static\s+)?(?:unsigned\s+|signed\s+)?\w+\s+(\w+)\s*(?:=([^;{},]+)|\{([^;{}]*)\})\s*;"
)
_PARAMETER = re.compile(r"(?:int|unsigned|unsigned int|size_t|short|long|auto|bool)\s+(\w+)\s*(?:=(.*))?", re.DOTALL)
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.LShift: lambda a, b: a << min(b, 32), ast.RShift: operator.rshift,
}  # fmt: skip
MOST_EXPANSIONS = 16
"""Maximum nesting of macros and constants in a bound."""


@dataclass(frozen=True)
class _Stated:
    """Launch bounds of one kernel in a source text."""

    bound: str
    """Expression of the maximum number of threads."""
    parameters: tuple[tuple[str, str], ...]
    """Template parameters as (name, default); a type parameter has no name."""


@dataclass(frozen=True)
class _Source:
    """Facts of a source text."""

    kernels: Mapping[str, _Stated | None]
    """Kernel → its launch bounds; None if they are unknown."""
    definitions: Mapping[str, str]
    """Macro or constant that is defined exactly once, for every candidate → its expression."""
    defaults: frozenset[str]
    """Macros with a default (``#ifndef NAME``), which a gene replaces."""
    ambiguous: frozenset[str]
    """Macros and constants that are defined more than once or under a condition."""


def thread_bound(kernel: Kernel, config: Config, problem: Problem, entry: str) -> int | None:
    """Return the maximum number of threads in a block of an entry, as the source states it; None if unknown.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the problem.
        entry: entry of a launch, for example ``k`` or ``ns::k<256>``.
    """
    source = _read(config.source.text) if isinstance(config, ForeignCandidate) else _own_source(kernel.source_path)
    name, _, arguments = entry.partition("<")
    stated = source.kernels.get(name.split("::")[-1].strip())
    if stated is None:
        return None
    known = dict(_template_values(stated, arguments))

    def value(word: str) -> str | int | None:
        if word in known:
            return known[word]
        if word in source.ambiguous:
            return None
        if word in source.definitions and word not in source.defaults:
            return None if word in config else source.definitions[word]
        given: Value | None = config[word] if word in config else dict(kernel.macros(config, problem)).get(word)
        return source.definitions.get(word) if given is None else given if isinstance(given, int) else str(given)

    try:
        return _evaluate(stated.bound, value, MOST_EXPANSIONS)
    except KERNEL_CODE_EXCEPTIONS:  # for example a division by zero; the compiler reports the actual error
        return None


def bounds_reason(called: str, threads: AtMost) -> str:
    """Return why a block exceeds the launch bounds of its kernel."""
    return (
        f"the __launch_bounds__ of {called} allow blocks of at most {threads.available:g} threads, "
        f"not {threads.needed:g}"
    )


def _own_source(path: Path) -> _Source:
    try:
        status = path.stat()
    except OSError:
        return _read("")
    return _read_file(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=32)
def _read_file(path: Path, _changed: int, _size: int) -> _Source:
    try:
        return _read(read_bytes(path).decode("utf-8", errors="replace"))
    except OSError:
        return _read("")


@functools.lru_cache(maxsize=32)
def _read(text: str) -> _Source:
    """Return the facts of a source text."""
    plain = _IGNORED.sub(" ", text.replace("\\\r\n", " ").replace("\\\n", " "))
    if "__launch_bounds__" not in plain or re.search(r"#\s*define\s+(?:__launch_bounds__|__global__)", plain):
        return _Source({}, {}, frozenset(), frozenset())
    code, found, defaults, conditional = _without_directives(plain)
    code = _file_scope(code)
    for match in _CONSTANT.finditer(code):
        found.setdefault(match[1], []).append((match[2] or match[3]).strip())
    ambiguous = {name for name, values in found.items() if len(values) > 1} | conditional
    definitions = {name: values[0] for name, values in found.items() if name not in ambiguous}
    kernels: dict[str, _Stated | None] = {}
    for head in re.split(r"[;{}]", code):
        if "__global__" not in head:
            continue
        name, stated = _kernel(head, definitions)
        kernels[name] = None if name in kernels and kernels[name] != stated else stated
    return _Source(kernels, definitions, frozenset(defaults), frozenset(ambiguous))


def _without_directives(text: str) -> tuple[str, dict[str, list[str]], set[str], set[str]]:
    """Return the code, the definitions of macros, those with a default, and those that a condition selects.

    Code under a condition is replaced by a mark, so that nothing is known about a kernel there.
    """
    code: list[str] = []
    found: dict[str, list[str]] = {}
    defaults: set[str] = set()
    conditional: set[str] = set()
    guards: list[str] = []
    for line in text.splitlines():
        directive = _DIRECTIVE.match(line)
        if directive is None:
            code.append(re.sub(r"[^;{}]+", " __conditional__ ", line) if guards else line)
            continue
        kind, rest = directive[1], directive[2].strip()
        defined = _DEFINE.match(line)
        if kind in ("if", "ifdef", "ifndef"):
            tested = re.fullmatch(r"!\s*defined\s*\(?\s*(\w+)\s*\)?", rest)
            guards.append(rest if kind == "ifndef" else tested[1] if tested and kind == "if" else "")
        elif kind == "endif" and guards:
            guards.pop()
        elif kind in ("else", "elif") and guards:
            guards[-1] = ""
        elif kind == "undef":
            conditional.add(rest.split(" ")[0])
        elif defined:
            if defined[2] or (guards and guards != [defined[1]]):
                conditional.add(defined[1])
            if guards == [defined[1]]:
                defaults.add(defined[1])
            found.setdefault(defined[1], []).append(defined[3].strip())
    return "\n".join(code), found, defaults, conditional


def _file_scope(code: str) -> str:
    """Return the code without the bodies of functions and types; namespaces and initialisers remain."""
    kept: list[str] = []
    depth = start = 0
    for at, character in enumerate(code):
        if character == "{":
            before = re.split(r"[;{}]", code[start:at])[-1] if not depth else ""
            open_ = re.search(r"\b(?:namespace|extern)\b", before) or ("(" not in before and "const" in before)
            if depth or not open_:
                depth += 1
        if not depth:
            kept.append(character)
        if character == "}" and depth:
            depth -= 1
            if not depth:
                kept.append(";")
        if character in ";{}":
            start = at + 1
    return "".join(kept)


def _kernel(head: str, definitions: Mapping[str, str]) -> tuple[str, _Stated | None]:
    """Return the name of a kernel from the text before its body, and its launch bounds."""
    for _ in range(MOST_EXPANSIONS):
        words = re.findall(r"\b[A-Za-z_]\w*\b", head)
        used = next((word for word in words if "__launch_bounds__" in definitions.get(word, "")), None)
        if used is None:
            break
        head = re.sub(rf"\b{used}\b", lambda _, used=used: definitions[used], head)  # type: ignore[misc]
    bounds = [inner for name, inner in _attributes(head) if name == "__launch_bounds__"]
    bare = head
    for name, inner in _attributes(head):
        bare = re.sub(rf"\b{name}\s*\({re.escape(inner)}\)", " ", bare)
    after = bare.split("__global__", 1)[1] if "__global__" in bare else bare
    named = re.search(r"(\w+)\s*(<[^()]*>)?\s*\(", after)
    parameters = _template(head)
    if named is None or named[2] or not bounds or "__conditional__" in head or parameters is None:
        return named[1] if named else "", None  # unknown; a specialisation has its own bounds
    return named[1], _Stated(_split(bounds[0])[0], parameters)


def _attributes(head: str) -> Iterator[tuple[str, str]]:
    """Yield each attribute with parentheses as (name, text in the parentheses)."""
    for match in _ATTRIBUTE.finditer(head):
        depth, at = 1, match.end()
        while depth and at < len(head):
            depth += {"(": 1, ")": -1}.get(head[at], 0)
            at += 1
        yield re.split(r"\s*\(", match[0])[0], head[match.end() : at - 1]


def _template(head: str) -> tuple[tuple[str, str], ...] | None:
    """Return the template parameters before a kernel; None if they are not understood."""
    match = re.search(r"\btemplate\s*<(.*)>\s*[^<>]*\b__global__", head, re.DOTALL)
    if match is None:
        return None if re.search(r"\btemplate\b", head) else ()
    found = []
    for part in _split(match[1]):
        number = _PARAMETER.fullmatch(part.strip())
        found.append((number[1], (number[2] or "").strip()) if number else ("", ""))
    return tuple(found)


def _template_values(stated: _Stated, arguments: str) -> Iterator[tuple[str, str | int | None]]:
    """Yield the template parameters with their arguments; an unknown argument is None."""
    given = [part.strip() for part in _split(arguments.rsplit(">", 1)[0])] if arguments else []
    for position, (name, default) in enumerate(stated.parameters):
        if name:
            yield name, given[position] if position < len(given) else default or None


def _split(text: str) -> list[str]:
    """Split a list at its commas, except those in brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, "<": 1, "[": 1, "{": 1, ")": -1, ">": -1, "]": -1, "}": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _evaluate(text: str, value: Callable[[str], str | int | None], left: int) -> int | None:
    """Return the value of an integer expression; None if a name or an operator in it is unknown."""
    tree = _parsed(text)
    return None if tree is None or not left else _number(tree, value, left)


def _number(node: ast.expr, value: Callable[[str], str | int | None], left: int) -> int | None:
    match node:
        case ast.Constant(int(number)):
            return int(number)
        case ast.Name(name):
            found = value(name)
            return found if isinstance(found, int) or found is None else _evaluate(found, value, left - 1)
        case ast.UnaryOp(ast.USub(), operand):
            positive = _number(operand, value, left)
            return None if positive is None else -positive
        case ast.BinOp(one, sign, two) if type(sign) in _OPERATORS:
            pair = _number(one, value, left), _number(two, value, left)
            return None if pair[0] is None or pair[1] is None else _OPERATORS[type(sign)](pair[0], pair[1])
    return None


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> ast.expr | None:
    """Return the tree of an integer expression in C; None if it is anything else."""
    plain = re.sub(r"\b((?:0[xX][\da-fA-F]+|\d+))[uUlL]+\b", r"\1", text).strip()
    if re.search(r"//|\*\*|\b0\d", plain):
        return None
    try:
        return ast.parse(plain.replace("/", "//"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None
