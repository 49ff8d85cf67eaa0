"""Evaluation of expressions by the compiler, through an instrumented source and the resulting PTX.

Next to each expression, the source gets a call to a constexpr function template with the expression's value as a
template argument. Its instantiation refers to a variable in device memory. The PTX contains one variable name for each
value of the expression, over all instantiations of the enclosing templates. Unlike inline assembly, this method works
in constexpr functions and in functions that no kernel calls. Edits then write the known values into the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from evokern.cuda_source.source_file import SourceFile
from evokern.cuda_source.specialize.layout import Edit, Layout
from evokern.cuda_source.specialize.questions import Question

Compile = Callable[[str], str | None]
"""Function that compiles a text to PTX with the macros and kernels of a candidate; None on a compile error."""

_PRELUDE = """\
template <typename evokern_t> __host__ __device__ evokern_t evokern_copy(evokern_t);
template <typename evokern_t>
__host__ __device__ constexpr auto evokern_number(evokern_t evokern_v, int) -> decltype(evokern_v ^ evokern_v, 0ll) {
  return evokern_v;
}
template <typename evokern_t>
__host__ __device__ constexpr long long evokern_number(const evokern_t&, long) {
  return 0;
}
template <typename evokern_t, typename evokern_u> struct evokern_sides { using truth = void; };
template <typename evokern_t> struct evokern_sides<evokern_t, evokern_t> { using truth = bool; };
template <int evokern_n, typename evokern_t, long long evokern_v> __device__ char evokern_answer;
template <int evokern_n, typename evokern_t, long long evokern_v>
__host__ __device__ constexpr bool evokern_tell() {
  (void)&evokern_answer<evokern_n, evokern_t, evokern_v>;
  return true;
}
"""
# Mangled name of an instantiation (Itanium C++ ABI, sections 5.1.5 and 5.1.6): a number, a type, a number.
_ANSWER = re.compile(r"evokern_answerILi(\d+)E(\w+?)Lx(n?)(\d+)EE\b")
_SUFFIX = {"i": "", "j": "u", "l": "l", "m": "ul", "x": "ll", "y": "ull"}  # by the type's mangled name
_LEAST = (-(1 << 31), -(1 << 63))  # minimum integers; C++ parses -2147483648 as the negation of a wider literal


@dataclass(frozen=True, slots=True)
class ConstantValue:
    """Constant value of an expression."""

    value: int
    """Value of the expression; 0 or 1 for bool."""
    type: str
    """Type abbreviation of the ABI, for example ``i`` for int and ``b`` for bool."""

    @property
    def literal(self) -> str | None:
        """Value as a C++ literal of the same type, or None if there is no such literal."""
        if self.type == "b":
            return "true" if self.value else "false"
        value = self.value % (1 << 64) if self.type in ("m", "y") else self.value
        return f"{value}{_SUFFIX[self.type]}" if self.type in _SUFFIX and value not in _LEAST else None


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of the compiler to questions about expressions and branches."""

    values: dict[int, ConstantValue]
    """Number of a question → value, for values that are the same in all instantiations."""
    taken: frozenset[int]
    """Numbers of the preprocessor branches that are compiled."""

    @classmethod
    def read(cls, ptx: str, expressions: int) -> Answers:
        """Parse the answers in PTX; answers numbered from ``expressions`` upwards belong to preprocessor lines."""
        found: dict[int, set[ConstantValue]] = {}
        for number, kind, minus, digits in _ANSWER.findall(ptx):
            found.setdefault(int(number), set()).add(ConstantValue(-int(digits) if minus else int(digits), kind))
        values = {n: next(iter(v)) for n, v in found.items() if n < expressions and len(v) == 1}
        return cls(values, frozenset(n - expressions for n in found if n >= expressions))


def evaluate_questions(
    unit: SourceFile, questions: Sequence[Question], taken: Sequence[int], compiler: Compile
) -> Answers | None:
    """Compile an instrumented text and return the answers to questions.

    Args:
        unit: the text.
        questions: expressions to evaluate.
        taken: indices of preprocessor lines; the answers include which of their branches are compiled.
        compiler: compiles the text to PTX.

    Returns:
        The answers, or None if the text does not compile.
    """
    ptx = compiler(_instrumented(unit, questions, taken))
    return None if ptx is None else Answers.read(ptx, len(questions))


def _instrumented(unit: SourceFile, questions: Sequence[Question], taken: Sequence[int]) -> str:
    tokens = unit.stream.tokens
    inserted: list[tuple[int, int, int, str]] = []  # offset, rank, order within the rank, text
    for number, question in enumerate(questions):
        start, end = tokens[question.first].start, tokens[question.last].end
        inserted.append((start, 1, -end, f"(evokern_tell<{number}, {_arguments(unit, question)}>(), ("))
        inserted.append((end, 0, -start, "))"))
    ends = []
    for number, index in enumerate(taken):
        name = f"EVOKERN_TAKEN_{number}"
        inserted.append((tokens[index].end, 2, 0, f"\n#define {name}"))
        answer = f"static_assert(evokern_tell<{len(questions) + number}, bool, 1>());"
        ends.append(f"\n#ifdef {name}\n{answer}\n#endif\n")
    pieces, position = [_PRELUDE], 0
    for offset, _, _, text in sorted(inserted):
        pieces += [unit.text[position:offset], text]
        position = offset
    return "".join([*pieces, unit.text[position:], *ends])


def _arguments(unit: SourceFile, question: Question) -> str:
    """Return the type and value of an expression as template arguments."""

    def written(first: int, last: int) -> str:
        return f"({unit.text[unit.stream.tokens[first].start : unit.stream.tokens[last].end]})"

    text = written(question.first, question.last)
    if question.kind == "value":
        return f"decltype(evokern_copy({text})), evokern_number({text}, 0)"
    kind = "bool"
    if question.sides:  # sides of different types are converted, so neither may replace the whole expression
        sides = (f"decltype(evokern_copy({written(*side)}))" for side in question.sides)
        kind = f"typename evokern_sides<{', '.join(sides)}>::truth"
    return f"{kind}, static_cast<bool>{text}"


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
