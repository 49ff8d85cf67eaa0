"""Specialisation of a kernel's source to one candidate, as readable text without unused alternatives.

Branches on ``true`` and ``false`` are resolved, and unused constants are removed.

evokern compiles with ``-default-device``, which makes functions and variables without an execution space device code.
nvcc has no such option and would compile them for the host.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set

from evokern.cuda_source import preprocessor
from evokern.cuda_source.declarations import CppDeclaration
from evokern.cuda_source.lexer import NESTING, TokenStream, directive_body
from evokern.cuda_source.source_file import SourceFile
from evokern.cuda_source.specialize.conditionals import (
    branch_lines,
    conditional_edits,
    conditionals,
    inline_headers,
    unguarded,
    untaken_spans,
)
from evokern.cuda_source.specialize.instrument import Compile, answer_edits, evaluate_questions
from evokern.cuda_source.specialize.layout import Edit, Layout, apply, outside_strings, plain_lines, squeeze
from evokern.cuda_source.specialize.questions import MUST_BE_CONSTANT, declarations_within, questions
from evokern.cuda_source.specialize.statements import declarators, declared_names, skip_statement, statement_starts
from evokern.cuda_source.specialize.unreferenced import drop_unreferenced, entry_words


def prune_edits(unit: SourceFile, wanted: Set[str] = frozenset()) -> list[Edit]:
    """Return the edits that resolve ``if constexpr``, outermost first, so that each pass is valid.

    A plain ``if`` is kept, because without it the compiler orders some instructions differently.

    Args:
        unit: the text.
        wanted: names that are used elsewhere.
    """
    return [*_Pruner(unit).run(), *_unused_constants(unit, wanted)]


class _Pruner:
    def __init__(self, unit: SourceFile) -> None:
        self.stream = unit.stream
        self.tokens = unit.stream.tokens
        self.partner = unit.stream.partner
        self.layout = Layout(unit)
        self.blocks: list[tuple[int, int]] = []  # the braces around the current token

    def run(self) -> Iterator[Edit]:
        for index, token in enumerate(self.tokens):
            while self.blocks and index > self.blocks[-1][1]:
                self.blocks.pop()
            if token.text == "{":
                self.blocks.append((index, self.partner[index]))
            elif token.text == "if" and self.blocks:
                yield from self._branch(index)

    def _branch(self, index: int) -> Iterator[Edit]:
        end = self.blocks[-1][1]
        words = [token.text for token in self.tokens[index + 1 : index + 5]]
        if len(words) < 4 or words[:2] != ["constexpr", "("] or words[2] not in ("true", "false") or words[3] != ")":
            return
        first = (index + 5, skip_statement(self.tokens, self.partner, index + 5, end))
        behind, second = first[1], None
        if behind < end and self.tokens[behind].text == "else":
            second = (behind + 1, skip_statement(self.tokens, self.partner, behind + 1, end))
            behind = second[1]
        if not all(begin < stop and self._balanced(begin, stop) for begin, stop in filter(None, (first, second))):
            return
        kept = first if words[2] == "true" else second
        if not self._stands_alone(index):
            yield self._inside(index, behind, kept)
        elif kept is None:
            yield self.layout.removal(index, behind - 1)
        else:
            bare = self.tokens[kept[0]].text == "{" and not self._clashes(kept[0], index, behind)
            yield self.layout.replacement(index, behind - 1, kept[0], kept[1] - 1, inner=bare)

    def _stands_alone(self, index: int) -> bool:
        """Return whether a statement is directly in its block, not part of another statement."""
        opener, close = self.blocks[-1]
        at = opener + 1
        while at < index:
            at = skip_statement(self.tokens, self.partner, at, close)
        return at == index

    def _balanced(self, first: int, behind: int) -> bool:
        """Return whether no preprocessor conditional crosses the border of a branch."""
        depth = 0
        for index in range(first, behind):
            depth += NESTING.get(self.tokens[index].directive, 0)
            if depth < 0:
                return False
        return depth == 0

    def _inside(self, index: int, behind: int, kept: tuple[int, int] | None) -> Edit:
        """Return the edit for a statement inside another one, which must remain a single statement."""
        start, end = self.tokens[index].start, self.tokens[behind - 1].end
        if kept is None:
            return Edit(start, end, "{}")
        text = self.layout.text(kept[0], kept[1] - 1)
        return Edit(start, end, f"{{ {text} }}" if self.tokens[kept[0]].text == "if" else text)

    def _clashes(self, opener: int, index: int, behind: int) -> bool:
        """Return whether a name declared directly in a branch also occurs in the enclosing block."""
        declared: set[str] = set()
        at = opener + 1
        while at < self.partner[opener]:
            after = skip_statement(self.tokens, self.partner, at, self.partner[opener])
            while at < after - 1 and self.tokens[at].kind == "directive":
                at += 1
            if self.tokens[at].text not in ("{", "if", "for", "while", "switch", "do"):
                stop = after - 2 if self.tokens[after - 1].text == ";" else after - 1
                declared |= declared_names(self.stream, at, stop) if stop >= at else set()
            at = after
        block = self.blocks[-1]
        outside = (*range(block[0], index), *range(behind, block[1]))
        return bool(declared) and any(self.tokens[i].text in declared for i in outside if self.tokens[i].kind == "word")


def _unused_constants(unit: SourceFile, wanted: Set[str]) -> Iterator[Edit]:
    """Remove unused constexpr variables that are the only declaration of their statement."""
    tokens = unit.stream.tokens
    uses = Counter(wanted) + Counter(token.text for token in tokens if token.kind == "word")
    for token in tokens:
        if token.kind == "directive":
            uses.update(preprocessor.words(directive_body(token.text)))
    layout = Layout(unit)
    for start in statement_starts(unit.stream):
        if start < len(tokens) and tokens[start].text in ("constexpr", "static"):
            stop = skip_statement(tokens, unit.stream.partner, start, len(tokens)) - 1
            found = list(declarators(unit.stream, start, stop - 1)) if tokens[stop].text == ";" else []
            constant = len(found) == 1 and "constexpr" in {tokens[i].text for i in range(start, found[0][0])}
            if constant and found[0][1] <= found[0][2] and uses[tokens[found[0][0]].text] == 1:
                yield layout.removal(start, stop)


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


# A heading (// ----) and its comment, followed directly by another heading.
_EMPTY_SECTION = re.compile(r"((?:\A|\n)\n*)// ----[^\n]*\n(?://[^\n]*\n)*\n+(?=// ----)")
_PASSES = 40  # each pass makes the text shorter; deeper nesting is not resolved


_MOST_PASSES = 3
"""Number of times that the compiler is asked about the branches of a text."""


def specialize(
    text: str,
    macros: Mapping[str, str | int],
    compiler: Compile,
    headers: Mapping[str, str] | None = None,
    entries: Iterable[str] = (),
) -> str:
    """Return a kernel's source specialised to given values of its macros.

    Decided preprocessor conditionals and ``if constexpr`` are resolved, satisfied assertions are removed, values of
    choices are written out, and unreachable declarations are dropped. The compiler evaluates the conditions. A branch
    that only some instantiations of a template take is kept. If the text does not compile, nothing is resolved.

    Macros that the result still uses are defined after the opening comment, so the result needs no ``-D``. Functions
    and variables without an execution space, which evokern compiles for the device, are marked ``__device__`` for nvcc.
    The result compiles to the same machine code as the original with the macros given by ``-D``.

    Args:
        text: the source.
        macros: values of the macros as for ``-D``; a value may contain another macro.
        compiler: compiles a text to PTX, with the macros given by ``-D``.
        headers: local headers by the name in ``#include``; they are inlined.
        entries: names of the launched kernels; empty for all ``__global__`` functions.

    Returns:
        The specialised source.
    """
    chosen = {name: str(value) for name, value in macros.items()}
    named = entry_words(entries)
    wanted = named.union(*map(preprocessor.words, chosen.values()))
    text = _inlined(text, headers)
    for _ in range(_MOST_PASSES):
        before = text
        text = _with_answers(text, chosen, compiler)
        text = _until_settled(text, lambda current: apply(current, prune_edits(SourceFile("", current), wanted)))
        text = drop_unreferenced(text, entries, wanted)
        if text == before or "if constexpr" not in text:  # dropped calls may leave a template with one instantiation
            break
    return _with_definitions(_tidied(text), chosen, named)


def self_contained(
    text: str, macros: Mapping[str, str | int], headers: Mapping[str, str] | None = None, entries: Iterable[str] = ()
) -> str:
    """Return a kernel's source with its headers and macros inserted and all alternatives kept; arguments as above."""
    text = _inlined(text, headers)
    text = apply(text, marking_edits(SourceFile("", text), ()))
    return _with_definitions(text, {name: str(value) for name, value in macros.items()}, entry_words(entries))


def _inlined(text: str, headers: Mapping[str, str] | None) -> str:
    return inline_headers(
        unguarded(plain_lines(text)), {name: plain_lines(header) for name, header in (headers or {}).items()}
    )


def _with_answers(text: str, macros: Mapping[str, str], compiler: Compile) -> str:
    """Write the values that the compiler knows into a text, and mark functions with their execution space."""
    unit = SourceFile("", text)
    asked, blocks = questions(unit, macros), conditionals(unit)
    lines = branch_lines(blocks)
    for expressions in (asked, [question for question in asked if question.kind in MUST_BE_CONSTANT]):
        answers = evaluate_questions(unit, expressions, lines, compiler)
        if answers is not None:
            taken = frozenset(lines[number] for number in answers.taken)
            resolved = [*conditional_edits(unit, blocks, taken), *answer_edits(unit, expressions, answers)]
            return apply(text, [*resolved, *marking_edits(unit, untaken_spans(unit, blocks, taken))])
    return apply(text, marking_edits(unit, ()))


_UNROLL = re.compile(r"^([ \t]*#[ \t]*pragma[ \t]+unroll\b)([^\n]*)", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")


def _until_settled(text: str, change: Callable[[str], str]) -> str:
    for _ in range(_PASSES):
        changed = change(text)
        if changed == text:
            break
        text = changed
    return text


def _tidied(text: str) -> str:
    """Remove superfluous blank lines and empty sections."""
    text = squeeze(text)
    empty = _until_settled(text, lambda current: outside_strings(current, lambda part: _EMPTY_SECTION.sub(r"\1", part)))
    return squeeze(empty).strip("\n") + "\n"


def _with_definitions(text: str, chosen: Mapping[str, str], wanted: Set[str]) -> str:
    """Define the macros that a text or the names of its kernels use, after its opening comment.

    Args:
        text: the source.
        chosen: values of the macros by name; a name may include parameters, as in ``-DF(x)=x``.
        wanted: words in the names of the kernels.
    """
    # nvcc expands no macro in this pragma.
    text = _UNROLL.sub(lambda one: one[1] + _WORD.sub(lambda word: chosen.get(word[0], word[0]), one[2]), text)
    stream = TokenStream(text)
    named = _undefined_words(stream) | wanted
    bodies: dict[str, str] = {}
    for head, value in chosen.items():
        bodies.setdefault(re.split(r"\W", head, maxsplit=1)[0], value)
    needed = preprocessor.closure(bodies.keys() & named, lambda name: preprocessor.words(bodies[name]) & bodies.keys())
    lines = [
        f"#define {head} {value}".rstrip()
        for head, value in chosen.items()
        if re.split(r"\W", head, maxsplit=1)[0] in needed
    ]
    return _inserted(text, stream, "\n".join(lines)) if lines else text


def _undefined_words(stream: TokenStream) -> set[str]:
    """Return the words of a text, without macros whose first mention is an unconditional definition."""
    found: set[str] = set()
    defined: set[str] = set()
    for _, token, around in preprocessor.nested(stream):
        words = set(preprocessor.words(directive_body(token.text))) if token.kind == "directive" else {token.text}
        if token.directive in ("define", "undef") and not around:
            own = re.match(r"\w+", directive_body(token.text))
            defined |= {own.group()} - found if own else set()
        found |= words - defined
    return found


def _inserted(text: str, stream: TokenStream, lines: str) -> str:
    """Insert lines after the opening comment: after the first blank line before any code, or directly before it."""
    first = stream.tokens[0].start if stream.tokens else len(text)
    for found in re.finditer(r"//[^\n]*|/\*[\s\S]*?\*/|\n\n", text[:first]):
        if found.group() == "\n\n":
            return f"{text[: found.end()]}{lines}\n\n{text[found.end() :].lstrip(chr(10))}"
    line = text[:first].rpartition("\n")[2]
    before = text[:first] + "\n" if line.strip() else text[: first - len(line)]
    return f"{before}{lines}\n\n{text[len(before.removesuffix(chr(10))) if line.strip() else first - len(line) :]}"
