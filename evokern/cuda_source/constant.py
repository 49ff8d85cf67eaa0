"""C++ integer constant expressions, evaluated: macros, constexpr variables, plain constexpr functions and aggregates.

Only what is certain has a value. Anything else (a template parameter, a floating-point number, an overload, a loop)
raises `UndecidableError`, and whoever asked leaves the code as it is. Integers have C++'s types, so that unsigned
arithmetic wraps and signed overflow is no value at all (ISO C++17, 8.20).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evokern.cuda_source import preprocessor
from evokern.cuda_source.lexer import Token, TokenStream


class UndecidableError(Exception):
    """An expression's value cannot be known from the text alone."""


@dataclass(frozen=True, slots=True)
class Integer:
    """A value with its C++ type."""

    value: int
    """The value; 0 or 1 for bool."""
    bits: int = 32
    """Width of the type; 1 for bool."""
    signed: bool = True
    """Whether the type is signed."""

    def __post_init__(self) -> None:
        if not self.signed or self.bits == 1:
            object.__setattr__(self, "value", bool(self.value) if self.bits == 1 else self.value % (1 << self.bits))
        elif not -(1 << (self.bits - 1)) <= self.value < 1 << (self.bits - 1):
            raise UndecidableError(f"{self.value} overflows a signed integer of {self.bits} bits")

    @property
    def literal(self) -> str:
        """The value as a C++ literal of the same type."""
        if self.bits == 1:
            return "true" if self.value else "false"
        if self.signed and self.value == -(1 << (self.bits - 1)):
            raise UndecidableError("the least integer has no literal")
        return f"{self.value}{'' if self.signed else 'u'}{'ll' if self.bits == 64 else ''}"


Aggregate = dict[str, "Integer"]
Value = Integer | Aggregate
Lookup = Callable[[str], Value]
Call = Callable[[str, "list[Value]"], Value]

TYPES: Mapping[str, tuple[int, bool]] = {
    "bool": (1, False),
    "char": (8, True),
    "signed char": (8, True),
    "unsigned char": (8, False),
    "short": (16, True),
    "unsigned short": (16, False),
    "int": (32, True),
    "signed": (32, True),
    "unsigned": (32, False),
    "unsigned int": (32, False),
    "long": (64, True),
    "unsigned long": (64, False),
    "long long": (64, True),
    "unsigned long long": (64, False),
    "size_t": (64, False),
    "ptrdiff_t": (64, True),
    "uint": (32, False),
    **{f"int{bits}_t": (bits, True) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}_t": (bits, False) for bits in (8, 16, 32, 64)},
}
"""Width and signedness of the integer types (LP64, as NVRTC and nvcc have it on Linux)."""

_TYPE_WORDS = frozenset({"unsigned", "signed", "long", "short", "int", "char", "bool"})
_SIZES = {"float": 4, "double": 8, "half": 2, "__half": 2, "__half2": 4, "half2": 4, "__nv_bfloat16": 2, "float2": 8}
_SIZES |= {"float4": 16, "int4": 16, "uint4": 16, "int2": 8, "uint2": 8, "double2": 16}
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)


def convert(value: Value, written: str) -> Value:
    """Convert a value to a type as written; an aggregate stays one.

    Raises:
        UndecidableError: an integer is to become something else than an integer.
    """
    if isinstance(value, dict):
        return value
    name = " ".join(
        word for word in written.split() if word not in ("const", "constexpr", "static", "inline", "std", "::")
    )
    name = name.removeprefix("std::")
    if name == "auto":
        return value
    if name not in TYPES:
        raise UndecidableError(f"{written} is no integer type")
    bits, signed = TYPES[name]
    if signed and bits > 1:
        wrapped = value.value % (1 << bits)
        return Integer(wrapped - (1 << bits) if wrapped >= 1 << (bits - 1) else wrapped, bits, True)
    return Integer(value.value, bits, signed)


def evaluate(tokens: Sequence[Token], lookup: Lookup, call: Call) -> Value:
    """Evaluate a constant expression.

    Args:
        tokens: the expression, macros expanded.
        lookup: gives a name's value.
        call: gives the value of a function for its arguments.

    Raises:
        UndecidableError: the value is not certain.
    """
    parser = _Parser(tokens, lookup, call)
    value = parser.ternary()
    if parser.index < len(tokens):
        raise UndecidableError(f"{tokens[parser.index].text} is beyond a constant expression")
    if isinstance(value, UndecidableError):
        raise value
    return value


def truth(tokens: Sequence[Token], lookup: Lookup, call: Call) -> bool:
    """Evaluate a condition.

    Raises:
        UndecidableError: the value is not certain.
    """
    value = evaluate(tokens, lookup, call)
    if isinstance(value, dict):
        raise UndecidableError("an aggregate is no condition")
    return value.value != 0


def parse_expression(text: str) -> list[Token]:
    """Cut an expression given as text into tokens."""
    return TokenStream(text).tokens


class _Parser:
    """Recursive descent that evaluates as it goes; an operand that is not known travels as an `UndecidableError`.

    So ``A && B`` has a value when A is false, whatever B may be.
    """

    def __init__(self, tokens: Sequence[Token], lookup: Lookup, call: Call) -> None:
        self.tokens = tokens
        self.lookup = lookup
        self.call = call
        self.index = 0

    def peek(self, ahead: int = 0) -> str:
        index = self.index + ahead
        return self.tokens[index].text if index < len(self.tokens) else ""

    def take(self, expected: str = "") -> Token:
        if self.index >= len(self.tokens) or (expected and self.peek() != expected):
            raise UndecidableError(f"expected {expected or 'an operand'}")
        self.index += 1
        return self.tokens[self.index - 1]

    def ternary(self) -> Value | UndecidableError:
        condition = self.binary(0)
        if self.peek() != "?":
            return condition
        self.take("?")
        first = self.ternary()
        self.take(":")
        second = self.ternary()
        if isinstance(condition, UndecidableError):
            return condition
        if isinstance(condition, dict):
            return UndecidableError("an aggregate is no condition")
        if isinstance(first, Integer) and isinstance(second, Integer):
            first, second = _common(first, second)
        return first if condition.value else second

    def binary(self, level: int) -> Value | UndecidableError:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            operator = self.take().text
            left = _attempt(_operate, operator, left, self.binary(level + 1))
        return left

    def unary(self) -> Value | UndecidableError:
        operator = self.peek()
        if operator in ("-", "+", "~", "!"):
            self.take()
            return _attempt(_unary, operator, self.unary())
        if operator == "(" and (written := self._type(1)) and self.peek(1 + len(written)) == ")":
            self.index += len(written) + 2
            return _attempt(_cast, " ".join(written), self.unary())
        return self.postfix()

    def postfix(self) -> Value | UndecidableError:
        value = self.primary()
        while self.peek() == ".":
            self.take()
            field = self.take().text
            if self.peek() == "(":
                raise UndecidableError("member functions are not evaluated")
            value = (
                value[field] if isinstance(value, dict) and field in value else UndecidableError(f"no member {field}")
            )
        return value

    def primary(self) -> Value | UndecidableError:
        if written := self._type(0):
            self.index += len(written)
            return _attempt(_cast, " ".join(written), self._single())
        token = self.take()
        if token.text == "(":
            value = self.ternary()
            self.take(")")
            return value
        if token.kind == "number":
            return _attempt(_number, token.text)
        if token.text in ("true", "false"):
            return Integer(int(token.text == "true"), 1, False)
        if token.text == "sizeof":
            return _attempt(_size_of, "".join(f"{t.text} " for t in self._bracketed()))
        if token.text in ("static_cast", "const_cast"):
            self.take("<")
            written = self._type(0)
            self.index += len(written)
            self.take(">")
            return _attempt(_cast, " ".join(written), self._single())
        if token.kind != "word":
            raise UndecidableError(f"{token.text} is beyond a constant expression")
        while self.peek() == "::":  # a qualified name counts by its last part, which must be unique in the file
            self.take()
            token = self.take()
        if self.peek() == "(":
            return self._call(token.text)
        if self.peek() == "<" and self.peek(1) and self.tokens[self.index - 1].end == self.tokens[self.index].start:
            raise UndecidableError("templates are not evaluated")
        return _attempt(self.lookup, token.text)

    def _call(self, name: str) -> Value | UndecidableError:
        self.take("(")
        arguments: list[Value | UndecidableError] = []
        while self.peek() != ")":
            arguments.append(self.ternary())
            if self.peek() != ")":
                self.take(",")
        self.take(")")
        unknown = next((argument for argument in arguments if isinstance(argument, UndecidableError)), None)
        return unknown or _attempt(self.call, name, arguments)

    def _single(self) -> Value | UndecidableError:
        self.take("(")
        value = self.ternary()
        self.take(")")
        return value

    def _bracketed(self) -> list[Token]:
        self.take("(")
        inside: list[Token] = []
        while self.peek() != ")":
            inside.append(self.take())
        self.take(")")
        return inside

    def _type(self, ahead: int) -> list[str]:
        """The words of an integer type that stand ahead; empty where there is none."""
        found: list[str] = []
        while self.peek(ahead + len(found)) in _TYPE_WORDS:
            found.append(self.peek(ahead + len(found)))
        return found or ([self.peek(ahead)] if self.peek(ahead) in TYPES else [])


def _attempt(function: Callable[..., Value], *arguments: object) -> Value | UndecidableError:
    try:
        return function(*arguments)
    except UndecidableError as reason:
        return reason


def _cast(written: str, value: Value | UndecidableError) -> Value:
    if isinstance(value, UndecidableError):
        raise value
    return convert(value, written)


def _number(text: str) -> Integer:
    suffix = (
        text[len(text.rstrip("uUlLzZ")) :].lower() if not text.lower().startswith("0x") or text[-1] in "uUlL" else ""
    )
    value = preprocessor.integer(text)
    if value is None:
        raise UndecidableError(f"{text} is no integer")
    wide = "l" in suffix or "z" in suffix
    if "u" in suffix:
        return Integer(value, 64 if wide or value >= 1 << 32 else 32, False)
    if not wide and value < 1 << 31:
        return Integer(value)
    # Hexadecimal literals may be unsigned where decimal ones grow (ISO C++17, 5.13.2).
    if not wide and value < 1 << 32 and text[:2].lower() in ("0x", "0b"):
        return Integer(value, 32, False)
    return Integer(value, 64)


def _size_of(written: str) -> Integer:
    name = " ".join(written.split())
    if "*" in name:
        return Integer(8, 64, False)
    if name in _SIZES:
        return Integer(_SIZES[name], 64, False)
    if name in TYPES:
        return Integer(max(TYPES[name][0] // 8, 1), 64, False)
    raise UndecidableError(f"the size of {name} is not known")


def _promote(value: Integer) -> Integer:
    return value if value.bits >= 32 else Integer(int(value.value))


def _common(a: Integer, b: Integer) -> tuple[Integer, Integer]:
    """The usual arithmetic conversions (ISO C++17, 8 [expr] paragraph 11)."""
    if a.bits == b.bits == 1:
        return a, b
    a, b = _promote(a), _promote(b)
    bits = max(a.bits, b.bits)
    signed = all(x.signed or x.bits < bits for x in (a, b))
    return Integer(a.value, bits, signed), Integer(b.value, bits, signed)


def _unary(operator: str, value: Value | UndecidableError) -> Value:
    if isinstance(value, UndecidableError):
        raise value
    if isinstance(value, dict):
        raise UndecidableError("an aggregate has no arithmetic")
    if operator == "!":
        return Integer(int(not value.value), 1, False)
    value = _promote(value)
    result = {"-": -value.value, "+": value.value, "~": ~value.value}[operator]
    return Integer(result, value.bits, value.signed)


def _operate(operator: str, left: Value | UndecidableError, right: Value | UndecidableError) -> Value:
    if operator in ("&&", "||"):
        return _logical(operator, left, right)
    for side in (left, right):
        if isinstance(side, UndecidableError):
            raise side
    if not isinstance(left, Integer) or not isinstance(right, Integer):
        raise UndecidableError("an aggregate has no arithmetic")
    if operator in ("<<", ">>"):
        left, right = _promote(left), _promote(right)
        if not 0 <= right.value < left.bits:
            raise UndecidableError("a shift by more than the type's width")
        shifted = left.value << right.value if operator == "<<" else left.value >> right.value
        return Integer(shifted, left.bits, left.signed)
    a, b = _common(_promote(left), _promote(right))
    x, y = a.value, b.value
    if operator in ("==", "!=", "<", ">", "<=", ">="):
        holds = {"==": x == y, "!=": x != y, "<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y}[operator]
        return Integer(int(holds), 1, False)
    if operator in ("/", "%"):
        if y == 0:
            raise UndecidableError("division by zero")
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)  # C++ rounds towards zero
        return Integer(quotient if operator == "/" else x - quotient * y, a.bits, a.signed)
    result = {"+": x + y, "-": x - y, "*": x * y, "&": x & y, "|": x | y, "^": x ^ y}[operator]
    return Integer(result, a.bits, a.signed)


def _logical(operator: str, left: Value | UndecidableError, right: Value | UndecidableError) -> Value:
    decisive = operator == "||"
    for side in (left, right):
        if isinstance(side, Integer) and bool(side.value) == decisive:
            return Integer(int(decisive), 1, False)
    for side in (left, right):
        if isinstance(side, UndecidableError):
            raise side
    return Integer(int(not decisive), 1, False)
