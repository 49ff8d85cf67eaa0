"""Edits that write known values into a text: literals for conditions and values, and the chosen side of ``?``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from evokern.cuda_source.source_file import SourceFile
from evokern.cuda_source.specialize.instrument import Answers, ConstantValue
from evokern.cuda_source.specialize.layout import Edit, Layout
from evokern.cuda_source.specialize.questions import Question


def answer_edits(unit: SourceFile, questions: Sequence[Question], answers: Answers) -> Iterator[Edit]:
    """Yield the edits that write the compiler's answers into a text; satisfied assertions are removed."""
    layout = Layout(unit)
    for number, question in enumerate(questions):
        answer = answers.values.get(number)
        if answer is None:
            continue
        if question.kind == "choice" and answer.type == "b":
            yield from _chosen_side(unit, question, bool(answer.value))
        elif question.kind == "assertion":
            end = unit.stream.partner[question.first - 1] + 1
            yield layout.removal(question.first - 2, end)
        elif question.kind != "choice":
            yield from _literal(unit, question, answer)


def _literal(unit: SourceFile, question: Question, answer: ConstantValue) -> Iterator[Edit]:
    """Yield the edit that replaces an expression by its value; a comment after it keeps its column."""
    text = answer.literal
    if text is None:
        return
    tokens = unit.stream.tokens
    start, end = tokens[question.first].start, tokens[question.last].end
    if text.startswith("-") and tokens[question.first - 1].text not in ("=", "(", ",", "["):
        text = f"({text})"
    behind = _comment_behind(unit, end) if "\n" not in unit.text[start:end] else None
    if behind:
        pad = " " * max(end - start - len(text), 0)
        yield Edit(start, end + behind.end(), text + behind.group() + pad)
    else:
        yield Edit(start, end, text)


def _chosen_side(unit: SourceFile, question: Question, holds: bool) -> Iterator[Edit]:
    """Yield separate edits that remove the condition and the other side, so the chosen side can be edited too."""
    tokens = unit.stream.tokens
    start, end = tokens[question.first].start, tokens[question.sides[1][1]].end
    first, last = question.sides[0 if holds else 1]
    kept_start, kept_end = tokens[first].start, tokens[last].end
    yield Edit(start, kept_start, "")
    behind = _comment_behind(unit, end) if "\n" not in unit.text[start:end] else None
    if behind:
        pad = " " * (end - start - (kept_end - kept_start))
        yield Edit(kept_end, end + behind.end(), behind.group() + pad)
    elif kept_end < end:
        yield Edit(kept_end, end, "")


def _comment_behind(unit: SourceFile, end: int) -> re.Match[str] | None:
    """Match the end of a statement up to an aligned comment."""
    return re.match(r"\)*; {2,}(?=//)", unit.text[end:])
