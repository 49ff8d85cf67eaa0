"""One candidate's source out of the source of all: unused choices gone, and still a text that a person reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from evokern.cuda_source import preprocessor
from evokern.cuda_source.lexer import TokenStream, directive_body
from evokern.cuda_source.source_file import SourceFile
from evokern.cuda_source.specialize.answered import answer_edits
from evokern.cuda_source.specialize.branches import prune_edits
from evokern.cuda_source.specialize.conditionals import branch_lines, conditional_edits, conditionals, inline_headers
from evokern.cuda_source.specialize.instrument import Compile, ask
from evokern.cuda_source.specialize.layout import apply
from evokern.cuda_source.specialize.questions import CERTAIN, questions
from evokern.cuda_source.specialize.unreferenced import drop_unreferenced

# A paragraph of comment under a heading (// ----), and nothing but another heading behind it.
_EMPTY_SECTION = re.compile(r"((?:\A|\n)\n*)// ----[^\n]*\n(?://[^\n]*\n)*\n+(?=// ----)")
_PASSES = 40  # each pass makes the text shorter; nesting deeper than this is left as it is


def specialize(
    text: str,
    macros: Mapping[str, str | int],
    compiler: Compile,
    headers: Mapping[str, str] | None = None,
    entries: Iterable[str] = (),
) -> str:
    """Write a kernel's source for one choice of its macros.

    Preprocessor conditionals and ``if constexpr`` that the choice decides are resolved, asserts that hold go, values
    of choices are written out, and what no kernel reaches any more is dropped. The compiler decides, so a branch that
    some instantiations of a template take and others do not stays, and so does everything where it does not compile.
    The macros that the rest still names are defined behind the opening comment, so the result needs no ``-D``, and
    compiles to the same machine code as the original with the macros given by ``-D``.

    Args:
        text: the source.
        macros: the chosen values, as ``-D`` gives them; a value may name another macro.
        compiler: compiles a text like this one to PTX, with the macros given by ``-D``.
        headers: the folder's own headers by the name in ``#include``; they are put in place of the directive.
        entries: the kernels that are launched; every ``__global__`` function when empty.

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
    """Write what the compiler knows of a text into it."""
    unit = SourceFile("", text)
    asked, blocks = questions(unit, macros), conditionals(unit)
    lines = branch_lines(blocks)
    for expressions in (asked, [question for question in asked if question.kind in CERTAIN]):
        answers = ask(unit, expressions, lines, compiler)
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
    """No trailing blanks, no double empty lines, none behind an opening brace, no heading without a text."""
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"\{\n\n+", "{\n", text)
    text = re.sub(r"\n{3,}", "\n\n", text)
    text = _until_settled(text, lambda current: _EMPTY_SECTION.sub(r"\1", current))
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def _with_definitions(text: str, chosen: Mapping[str, str]) -> str:
    """Define the macros that the text names, behind its opening comment."""
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
    """Offset behind the comment that opens the file: the first empty line before any code, or the first code."""
    first = stream.tokens[0].start if stream.tokens else len(text)
    opening = text[:first]
    blank = opening.find("\n\n")
    return blank + 2 if blank >= 0 else text.rfind("\n", 0, first) + 1
