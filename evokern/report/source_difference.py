"""Difference between two candidates' sources, computed from the stored text without compiling.

Conditions of `#if` and `if constexpr` are evaluated if they use only genes, numbers and constants derived from them.
Untaken branches are removed, and genes in the remaining lines are replaced by their values. Other names (function
results, the problem's macros) stay unchanged in both candidates.

`evokern export` uses the compiler for this. Reports and notebooks cannot, because they have no kernel folder.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from evokern.cuda_source.lexer import TokenStream, directive_body
from evokern.cuda_source.specialize.conditionals import inline_headers
from evokern.cuda_source.specialize.statements import skip_statement
from evokern.declaration.genes import Config, Gene
from evokern.declaration.genes_header import choice_macro

MOST_LINES = 120
"""Maximum number of lines in a difference."""
_MOST_CONDITION = 400
_CONSTANT = re.compile(r"\bconstexpr\s+(?:bool|int|unsigned|u32|size_t)\s+([^\W\d]\w*)\s*=\s*([^;{}]{1,300});")
_DEFINED = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))")
_COMPARE: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


@dataclass(frozen=True)
class DifferenceLine:
    """One line of a difference."""

    mark: str
    """`-` for a line only in the champion, `+` for a line only in the other candidate, `@` for a new location."""
    text: str
    """Text of the line; for `@` the file and line number."""


@dataclass(frozen=True)
class _Branch:
    """Lines that are active only for one value of a condition."""

    first: int
    last: int
    condition: str
    wanted: bool


class SourceDifference:
    """A kernel's source, prepared for comparing two candidates."""

    def __init__(self, sources: Mapping[str, str], genes: Sequence[Gene]) -> None:
        """Parse the source.

        Args:
            sources: Texts of the kernel's files, by name.
            genes: Genes of the study.
        """
        self._genes = genes
        main = next((name for name in sorted(sources) if name.endswith(".cu") and "/" not in name), None)
        text = inline_headers(sources[main], sources) if main else ""
        stream = TokenStream(text)
        self._lines = text.splitlines()
        self._branches: list[_Branch] = []
        self._asked: dict[int, list[str]] = {}
        self._read_branches(stream)
        covering: list[list[_Branch]] = [[] for _ in self._lines]
        for branch in self._branches:
            for line in range(branch.first, min(branch.last + 1, len(self._lines))):
                covering[line].append(branch)
        # Group lines that belong to the same branches.
        self._regions: list[tuple[_Branch, ...]] = list(dict.fromkeys(map(tuple, covering)))
        numbers = {region: number for number, region in enumerate(self._regions)}
        self._region = [numbers[tuple(branches)] for branches in covering]
        self._constants = _constants(text)
        self._places = _places(self._lines, sources)
        names = "|".join(re.escape(gene.name) for gene in genes)
        self._gene = re.compile(rf"\b(?:{names})\b") if names else None
        self._naming = {index for index, line in enumerate(self._lines) if self._gene and self._gene.search(line)}
        # Only conditions, lines in branches, and lines that contain a gene can differ.
        self._alive = [
            index
            for index in range(len(self._lines))
            if index in self._asked or covering[index] or index in self._naming
        ]
        self._kept: tuple[Config, list[str | None]] | None = None

    @property
    def known(self) -> bool:
        """Whether a source is available."""
        return bool(self._lines)

    def between(self, champion: Config, other: Config) -> list[DifferenceLine]:
        """Return the lines that differ between two candidates, in source order, at most `MOST_LINES`."""
        kept = self._kept  # read once; threads of a served page may use different champions
        if kept is None or kept[0] != champion:
            self._kept = kept = champion, self._view(champion)
        found: list[DifferenceLine] = []
        before, file = -2, ""
        for index, one, two in zip(self._alive, kept[1], self._view(other), strict=True):
            if one == two:
                continue
            place = self._places[index]
            if index != before + 1 or place.partition(",")[0] != file:
                found.append(DifferenceLine("@", place))
            before, file = index, place.partition(",")[0]
            found += [DifferenceLine(mark, text) for mark, text in (("-", one), ("+", two)) if text is not None]
        if len(found) > MOST_LINES:
            left = sum(line.mark != "@" for line in found[MOST_LINES:])
            found = [*found[:MOST_LINES], DifferenceLine("@", f"and {left} more lines")]
        return found

    def _view(self, config: Config) -> list[str | None]:
        """Return each line that can differ as it appears for a candidate, or None if it is inactive."""
        values: dict[str, int] = {}
        written: dict[str, str] = {}
        for gene in self._genes:
            value = config.get(gene.name, gene.default)
            if any(isinstance(one, str) for one in gene.values):
                values |= {choice_macro(gene, one): index for index, one in enumerate(gene.values)}
                written[gene.name] = choice_macro(gene, value)
                values[gene.name] = values.get(written[gene.name], -1)
            else:
                values[gene.name] = int(value)
                written[gene.name] = str(value)
        answers: dict[str, bool | None] = {}

        def holds(condition: str) -> bool | None:
            if condition not in answers:
                found = _value(condition, values, self._constants, frozenset())
                answers[condition] = None if found is None else bool(found)
            return answers[condition]

        def is_included(region: Sequence[_Branch]) -> bool:
            return all(holds(branch.condition) in (None, branch.wanted) for branch in region)

        included = [is_included(region) for region in self._regions]

        def line(index: int) -> str | None:
            if not included[self._region[index]]:
                return None
            text = self._lines[index]
            asked = self._asked.get(index)
            if asked:
                answers = [holds(condition) for condition in asked]
                words = ", ".join("undecided" if one is None else "true" if one else "false" for one in answers)
                return f"{text.rstrip()}  // {words}" if any(one is not None for one in answers) else text
            if self._gene is None or index not in self._naming:
                return text
            code, slashes, comment = text.partition("//")
            return self._gene.sub(lambda found: written[found[0]], code) + slashes + comment

        return [line(index) for index in self._alive]

    def _read_branches(self, stream: TokenStream) -> None:
        opened: list[tuple[int, str, list[str]]] = []
        for index, token in enumerate(stream.tokens):
            at = stream.line(token.start) - 1
            if token.kind != "directive":
                if (
                    token.text == "if"
                    and index + 2 < len(stream.tokens)
                    and stream.tokens[index + 1].text == "constexpr"
                ):
                    self._read_constexpr(stream, index)
                continue
            name, body = token.directive, directive_body(token.text)
            if name in ("if", "ifdef", "ifndef"):
                condition = {"ifdef": f"defined({body})", "ifndef": f"!defined({body})"}.get(name, body)
                self._asked.setdefault(at, []).append(condition)
                opened.append((at, condition, []))
            elif name in ("elif", "else") and opened:
                begun, condition, before = opened.pop()
                self._branches.append(_Branch(begun + 1, at - 1, condition, True))
                if name == "elif":
                    self._asked.setdefault(at, []).append(body)
                # The next branch is active only if none of the previous conditions holds.
                before = [*before, condition]
                condition = " && ".join([*(f"!({one})" for one in before), *([f"({body})"] if name == "elif" else [])])
                opened.append((at, condition, before))
            elif name == "endif" and opened:
                begun, condition, _ = opened.pop()
                self._branches.append(_Branch(begun + 1, at - 1, condition, True))

    def _read_constexpr(self, stream: TokenStream, index: int) -> None:
        """Record the lines that belong only to one branch of an `if constexpr`."""
        tokens, partner = stream.tokens, stream.partner
        close = partner.get(index + 2, index + 2)
        condition = stream.text[tokens[index + 2].end : tokens[close].start]
        self._asked.setdefault(stream.line(tokens[index].start) - 1, []).append(condition)
        begin, end = close + 1, len(tokens)
        for wanted in (True, False):
            behind = skip_statement(tokens, partner, begin, end)
            if behind > begin:
                first = stream.line(tokens[begin].start) - 1
                last = stream.line(tokens[behind - 1].start) - 1
                braced = tokens[begin].text == "{"
                # Skip lines that the condition or a brace shares with other code.
                own = first + 1 if braced or first == stream.line(tokens[close].start) - 1 else first
                self._branches.append(_Branch(own, last - 1 if braced else last, condition, wanted))
            if behind >= end or tokens[behind].text != "else":
                return
            begin = behind + 1


def _constants(text: str) -> dict[str, str]:
    """Return the expressions of constants that are defined exactly once, by name."""
    found: dict[str, str] = {}
    for match in _CONSTANT.finditer(text):
        found[match[1]] = "" if match[1] in found else match[2]
    return found


def _places(lines: Sequence[str], sources: Mapping[str, str]) -> list[str]:
    """Return the source file and line of each line of the joined text, or of the last known line before it."""
    origin: dict[str, str] = {}
    for name, text in sources.items():
        for number, line in enumerate(text.splitlines(), 1):
            origin[line] = "" if line in origin else f"{name}, line {number}"
    found, place = [], ""
    for line in lines:
        place = origin.get(line) or place
        found.append(place)
    return found


def _value(text: str, values: Mapping[str, int], constants: Mapping[str, str], within: frozenset[str]) -> int | None:
    """Return the value of a C++ expression of known numbers, or None for any other expression."""
    if len(text) > _MOST_CONDITION:
        return None
    known = _DEFINED.sub(lambda found: "1" if (found[1] or found[2]) in values else "unknown", text)
    plain = known.replace("&&", " and ").replace("||", " or ").replace("\n", " ").replace("\\", " ")
    plain = re.sub(r"!(?!=)", " not ", plain)
    try:
        return _worked_out(_tree(plain.strip()), values, constants, within)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=2048)
def _tree(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _worked_out(
    node: ast.expr, values: Mapping[str, int], constants: Mapping[str, str], within: frozenset[str]
) -> int | None:
    def of(part: ast.expr) -> int | None:
        return _worked_out(part, values, constants, within)

    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.Name(id="true" | "false" as word):
            return int(word == "true")
        case ast.Name(id=name):
            if name in values:
                return values[name]
            text = constants.get(name)
            return _value(text, values, constants, within | {name}) if text and name not in within else None
        case ast.UnaryOp(op=ast.Not(), operand=part):
            inner = of(part)
            return None if inner is None else int(not inner)
        case ast.UnaryOp(op=ast.USub(), operand=part):
            inner = of(part)
            return None if inner is None else -inner
        case ast.BoolOp(op=kind, values=parts):
            found = [of(part) for part in parts]
            # As in C++, one operand can decide the result.
            decisive = isinstance(kind, ast.Or)
            if any(one is not None and bool(one) is decisive for one in found):
                return int(decisive)
            return None if None in found else int(not decisive)
        case ast.Compare(left=left, ops=[kind], comparators=[right]) if type(kind) in _COMPARE:
            one, two = of(left), of(right)
            return None if one is None or two is None else int(_COMPARE[type(kind)](one, two))
        case ast.BinOp(left=left, op=arithmetic, right=right) if type(arithmetic) in _ARITHMETIC:
            one, two = of(left), of(right)
            return None if one is None or two is None else _ARITHMETIC[type(arithmetic)](one, two)
    return None


__all__ = ["MOST_LINES", "DifferenceLine", "SourceDifference"]
