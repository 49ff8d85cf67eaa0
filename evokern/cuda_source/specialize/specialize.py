"""Specialisation of a kernel's source to one candidate, as readable text without unused alternatives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set

from evokern.cuda_source import preprocessor
from evokern.cuda_source.lexer import TokenStream, directive_body
from evokern.cuda_source.source_file import SourceFile
from evokern.cuda_source.specialize.answer_edits import answer_edits
from evokern.cuda_source.specialize.branches import prune_edits
from evokern.cuda_source.specialize.conditionals import (
    branch_lines,
    conditional_edits,
    conditionals,
    inline_headers,
    unguarded,
    untaken_spans,
)
from evokern.cuda_source.specialize.execution_space import marking_edits
from evokern.cuda_source.specialize.instrument import Compile, evaluate_questions
from evokern.cuda_source.specialize.layout import apply
from evokern.cuda_source.specialize.lines import outside_strings, plain_lines, squeeze
from evokern.cuda_source.specialize.questions import MUST_BE_CONSTANT, questions
from evokern.cuda_source.specialize.unreferenced import drop_unreferenced, entry_words

# A heading (// ----) and its comment, followed directly by another heading.
_EMPTY_SECTION = re.compile(r"((?:\A|\n)\n*)// ----[^\n]*\n(?://[^\n]*\n)*\n+(?=// ----)")
_PASSES = 40  # each pass makes the text shorter; deeper nesting is not resolved


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
    text = _with_answers(text, chosen, compiler)
    text = _until_settled(text, lambda current: apply(current, prune_edits(SourceFile("", current), wanted)))
    text = drop_unreferenced(text, entries, wanted)
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
    waiting = [name for name in bodies if name in named]
    needed: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += [word for word in preprocessor.words(bodies[name]) if word in bodies]
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
