"""Specialisation of a kernel's source to one candidate, as readable text without unused alternatives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from evokern.cuda_source import preprocessor
from evokern.cuda_source.lexer import TokenStream, directive_body
from evokern.cuda_source.source_file import SourceFile
from evokern.cuda_source.specialize.answer_edits import answer_edits
from evokern.cuda_source.specialize.branches import prune_edits
from evokern.cuda_source.specialize.conditionals import branch_lines, conditional_edits, conditionals, inline_headers
from evokern.cuda_source.specialize.instrument import Compile, evaluate_questions
from evokern.cuda_source.specialize.layout import apply
from evokern.cuda_source.specialize.questions import MUST_BE_CONSTANT, questions
from evokern.cuda_source.specialize.unreferenced import drop_unreferenced

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

    Macros that the result still uses are defined after the opening comment, so the result needs no ``-D``. It compiles
    to the same machine code as the original with the macros given by ``-D``.

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
    text = inline_headers(text.replace("\r\n", "\n"), headers or {})
    text = _with_answers(text, chosen, compiler)
    text = _until_settled(text, lambda current: apply(current, prune_edits(SourceFile("", current))))
    text = drop_unreferenced(text, entries)
    return _with_definitions(_tidied(text), chosen)


def _with_answers(text: str, macros: Mapping[str, str], compiler: Compile) -> str:
    """Write the values that the compiler knows into a text."""
    unit = SourceFile("", text)
    asked, blocks = questions(unit, macros), conditionals(unit)
    lines = branch_lines(blocks)
    for expressions in (asked, [question for question in asked if question.kind in MUST_BE_CONSTANT]):
        answers = evaluate_questions(unit, expressions, lines, compiler)
        if answers is not None:
            taken = frozenset(lines[number] for number in answers.taken)
            return apply(text, [*conditional_edits(unit, blocks, taken), *answer_edits(unit, expressions, answers)])
    return text


def _until_settled(text: str, change: Callable[[str], str]) -> str:
    for _ in range(_PASSES):
        changed = change(text)
        if changed == text:
            break
        text = changed
    return text


def _tidied(text: str) -> str:
    """Remove trailing spaces, repeated empty lines, empty lines after an opening brace, and empty sections."""
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"\{\n\n+", "{\n", text)
    text = re.sub(r"\n{3,}", "\n\n", text)
    text = _until_settled(text, lambda current: _EMPTY_SECTION.sub(r"\1", current))
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def _with_definitions(text: str, chosen: Mapping[str, str]) -> str:
    """Define the macros that a text uses after its opening comment."""
    stream = TokenStream(text)
    defined = {definition.name for definition in preprocessor.definitions(stream) if not definition.guard}
    named = {token.text for token in stream.tokens if token.kind == "word"}
    named |= {
        word for t in stream.tokens if t.kind == "directive" for word in preprocessor.words(directive_body(t.text))
    }
    waiting = [name for name in chosen if name in named]
    needed: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in needed and name not in defined:
            needed.add(name)
            waiting += [word for word in preprocessor.words(chosen[name]) if word in chosen]
    if not needed:
        return text
    lines = [f"#define {name} {value}".rstrip() for name, value in chosen.items() if name in needed]
    position = _behind_comment(text, stream)
    return text[:position] + "\n".join(lines) + "\n\n" + text[position:].lstrip("\n")


def _behind_comment(text: str, stream: TokenStream) -> int:
    """Return the offset after the opening comment: after the first empty line before any code, or at the first code."""
    first = stream.tokens[0].start if stream.tokens else len(text)
    opening = text[:first]
    blank = opening.find("\n\n")
    return blank + 2 if blank >= 0 else text.rfind("\n", 0, first) + 1
