"""The compiler asked what it knows: a text with questions in it, and the answers in the PTX that it becomes.

Each expression in question is given a call of a constexpr function template beside it, with the expression's value as
a template argument. Its instantiation names a variable in device memory, and the names of those stand in the PTX: one
for each value that the expression has, in whichever instantiations of the templates around it. That works inside
constexpr functions and in functions that no kernel calls too, where inline assembly would not compile or not show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evokern.cuda_source.source_file import SourceFile
from evokern.cuda_source.specialize.questions import Question

Compile = Callable[[str], str | None]
"""Text to PTX, with the macros and the kernels of a candidate; None where it does not compile."""

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
# The Itanium C++ ABI's name of an instantiation (5.1.5 and 5.1.6): a number, a type, a number.
_ANSWER = re.compile(r"evokern_answerILi(\d+)E(\w+?)Lx(n?)(\d+)EE\b")
_SUFFIX = {"i": "", "j": "u", "l": "l", "m": "ul", "x": "ll", "y": "ull"}  # by the type's mangled name
_LEAST = (-(1 << 31), -(1 << 63))  # the least integers: C++ reads -2147483648 as the negative of a wider literal


@dataclass(frozen=True, slots=True)
class ConstantValue:
    """What an expression comes to, wherever it is compiled."""

    value: int
    """Its value; 0 or 1 for a truth."""
    type: str
    """Its type, as the ABI abbreviates it: ``i`` for int, ``b`` for bool."""

    @property
    def literal(self) -> str | None:
        """The value as a C++ literal of the same type; None where there is none."""
        if self.type == "b":
            return "true" if self.value else "false"
        value = self.value % (1 << 64) if self.type in ("m", "y") else self.value
        return f"{value}{_SUFFIX[self.type]}" if self.type in _SUFFIX and value not in _LEAST else None


@dataclass(frozen=True, slots=True)
class Answers:
    """What the compiler said."""

    values: dict[int, ConstantValue]
    """By the question's number, where it has one answer in all instantiations."""
    taken: frozenset[int]
    """Numbers of the preprocessor lines whose text is compiled."""

    @classmethod
    def read(cls, ptx: str, expressions: int) -> Answers:
        """Read the answers in PTX; numbers from ``expressions`` on are preprocessor lines."""
        found: dict[int, set[ConstantValue]] = {}
        for number, kind, minus, digits in _ANSWER.findall(ptx):
            found.setdefault(int(number), set()).add(ConstantValue(-int(digits) if minus else int(digits), kind))
        values = {n: next(iter(v)) for n, v in found.items() if n < expressions and len(v) == 1}
        return cls(values, frozenset(n - expressions for n in found if n >= expressions))


def ask(unit: SourceFile, questions: Sequence[Question], taken: Sequence[int], compiler: Compile) -> Answers | None:
    """Compile a text with questions in it.

    Args:
        unit: the text.
        questions: what is asked of its expressions.
        taken: indices of preprocessor lines; asked is which of them are followed by text that is compiled.
        compiler: compiles it.

    Returns:
        The answers; None where the text does not compile.
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
    """An expression's type and value as template arguments."""

    def written(first: int, last: int) -> str:
        return f"({unit.text[unit.stream.tokens[first].start : unit.stream.tokens[last].end]})"

    text = written(question.first, question.last)
    if question.kind == "value":
        return f"decltype(evokern_copy({text})), evokern_number({text}, 0)"
    kind = "bool"
    if question.sides:  # where one side is converted to the type of both, it cannot stand alone
        sides = (f"decltype(evokern_copy({written(*side)}))" for side in question.sides)
        kind = f"typename evokern_sides<{', '.join(sides)}>::truth"
    return f"{kind}, static_cast<bool>{text}"
