"""Parser that splits a token stream into declarations, such as functions, classes and variables.

The parser knows no types and uses only the shape of the tokens. Braces after a parameter list are a function body,
braces after a class keyword are a class body, and braces after ``=`` are an initialiser. The members of namespaces,
``extern "C"`` blocks and classes are declarations too. A macro given by `-D` breaks the declarations of its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from evokern.cuda_source.lexer import Token, TokenStream, directive_body
from evokern.cuda_source.preprocessor import words

_ATTRIBUTES = frozenset({
    "__launch_bounds__", "__align__", "alignas", "__attribute__", "__declspec", "decltype", "noexcept", "explicit",
    "requires", "throw", "__cluster_dims__", "__maxnreg__", "__block_size__", "__grid_constant__", "_Pragma",
    "__pragma",
})  # fmt: skip
_CLASS_WORDS = frozenset({"class", "struct", "union", "enum"})
_ACCESS = frozenset({"public", "private", "protected"})


@dataclass(frozen=True, slots=True)
class CppDeclaration:
    """A declaration as a range of tokens."""

    kind: str
    """``namespace``, ``linkage``, ``function``, ``class``, ``enum``, ``variable``, ``alias``, ``typedef``, ``using``,
    ``directive`` (``using namespace``), ``assertion`` or ``call`` (a macro's call)."""
    first: int
    """Index of the first token."""
    last: int
    """Index of the last token, including ``;`` or ``}``."""
    names: tuple[str, ...]
    """Names that the declaration introduces at its own level, including the values of an enum."""
    name_index: int
    """Index of the token with the first name; ``first`` if there is none."""
    head: tuple[int, ...]
    """Indices of the tokens before the body or initialiser, without the content of brackets."""
    parameters: tuple[int, int] | None = None
    """Indices of the brackets around a function's parameters."""
    template: tuple[int, int] | None = None
    """Indices of the angle brackets of the innermost template parameter list."""
    body: tuple[int, int] | None = None
    """Indices of the braces around a body."""
    namespace: str = ""
    """Enclosing namespaces and classes, joined by ``::``."""
    extern_c: bool = False
    """Whether the declaration is in an ``extern "C"`` block or is itself declared ``extern "C"``."""
    members: tuple[CppDeclaration, ...] = field(default=())
    """Declarations inside a namespace, a linkage block or a class."""

    def leaves(self) -> Iterator[CppDeclaration]:
        """Yield the contained declarations other than namespaces and linkage blocks."""
        if self.kind in ("namespace", "linkage"):
            for member in self.members:
                yield from member.leaves()
        else:
            yield self


def read_declarations(stream: TokenStream) -> tuple[CppDeclaration, ...]:
    """Return the outermost declarations of a file."""
    return _Reader(stream).level(0, len(stream.tokens), "", False)


class _Reader:
    def __init__(self, stream: TokenStream) -> None:
        self.stream = stream
        self.tokens = stream.tokens
        self.partner = stream.partner

    def text(self, index: int) -> str:
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def level(self, index: int, end: int, namespace: str, extern_c: bool) -> tuple[CppDeclaration, ...]:
        """Return the declarations between two indices."""
        found: list[CppDeclaration] = []
        while index < end:
            token = self.tokens[index]
            if token.kind == "directive" or token.text in (";", "}", ")"):
                index += 1
            elif token.text in _ACCESS and self.text(index + 1) == ":":
                index += 2
            else:
                declaration = (
                    self._namespace(index, end, namespace, extern_c)
                    or self._linkage(index, end, namespace)
                    or self._plain(index, end, namespace, extern_c)
                )
                found.append(declaration)
                index = declaration.last + 1
        return tuple(found)

    def _namespace(self, first: int, end: int, namespace: str, extern_c: bool) -> CppDeclaration | None:
        index = first + 1 if self.text(first) == "inline" else first
        if self.text(index) != "namespace":
            return None
        index += 1
        words: list[str] = []
        while index < end and self.text(index) not in ("{", "=", ";"):
            if self.text(index) in ("[", "("):
                index = self.partner[index]
            elif self.tokens[index].kind == "word" and self.text(index) != "inline":
                words.append(self.text(index))
            index += 1
        head = tuple(range(first, min(index, end)))
        if self.text(index) != "{" or index >= end:
            while index < end - 1 and self.text(index) != ";":
                index += 1
            return CppDeclaration(
                "alias", first, min(index, end - 1), tuple(words[:1]), first, head, namespace=namespace
            )
        inner = "::".join(filter(None, (namespace, *words)))
        close = self.partner[index]
        members = self.level(index + 1, min(close, end), inner, extern_c)
        return CppDeclaration(
            "namespace", first, close, (), first, head, body=(index, close), namespace=inner, members=members
        )

    def _linkage(self, first: int, end: int, namespace: str) -> CppDeclaration | None:
        if not (self.text(first) == "extern" and self.tokens[min(first + 1, end - 1)].kind == "string"):
            return None
        if self.text(first + 2) != "{" or first + 2 >= end:
            return None
        close = self.partner[first + 2]
        members = self.level(first + 3, min(close, end), namespace, self.text(first + 1) == '"C"')
        return CppDeclaration(
            "linkage",
            first,
            close,
            (),
            first,
            (first, first + 1),
            body=(first + 2, close),
            namespace=namespace,
            members=members,
        )

    def _plain(self, first: int, end: int, namespace: str, extern_c: bool) -> CppDeclaration:
        """Read one declaration that is neither a namespace nor a linkage block."""
        head: list[int] = []
        depth_zero: list[int] = []  # the head without attribute arguments and template lists
        parameters: tuple[int, int] | None = None
        template: tuple[int, int] | None = None
        body: tuple[int, int] | None = None
        class_word = ""
        equals = initialisers = False
        index, last = first, end - 1
        while index < end:
            token, text = self.tokens[index], self.text(index)
            previous = self.text(index - 1) if index > first else ""
            step = index + 1
            if token.kind == "directive":  # if several alternative heads precede one body, use the first
                index = self.stream.after_alternative(index)
                continue
            if text == ";":
                last = index
                break
            if text == "}":  # a stray brace, or the end of the enclosing block
                last = max(index - 1, first)
                break
            if text == "template" and self.text(step) == "<" and not equals:
                behind = self.stream.skip_angles(step, end)
                if behind is not None:
                    template = (step, behind - 1)
                    head.extend(range(index, behind))
                    index = behind
                    continue
            if text == "(":
                step = self.partner[index] + 1
                if not (equals or initialisers or previous in _ATTRIBUTES):
                    if previous == "operator":  # operator()(...)
                        head.append(index)
                        depth_zero.append(index)
                        index = step
                        continue
                    parameters = (index, step - 1)
                    if self._is_lone_call(first, index, step, end):
                        last = step - 1
                        head.extend(range(index, step))
                        break
            elif text == "[":
                step = self.partner[index] + 1
            elif text == "<" and token.kind == "punct" and previous != "operator" and index > first:
                step = self.stream.skip_angles(index, end) or step
            elif text == "=" and previous != "operator":
                equals = True
            elif text == ":" and parameters and not equals:
                initialisers = True
            elif text in _CLASS_WORDS and not parameters and not equals and not class_word:
                class_word = text
            elif text == "{":
                close = self.partner[index]
                step = close + 1
                if equals:
                    pass
                elif class_word and not parameters:
                    body = (index, close)
                elif parameters and not (initialisers and self._is_initialiser(index, close)):
                    body = (index, close)
                    last = close + 1 if self.text(close + 1) == ";" and close + 1 < end else close
                    break
                index = step
                continue
            if body is None and not equals:
                head.extend(sorted({index, min(step, end) - 1}) if text in ("(", "[") else range(index, min(step, end)))
                depth_zero.append(index)
            index = step
        last = min(max(last, first), end - 1)
        return self._finish(
            _Shape(first, last, tuple(head), tuple(depth_zero), parameters, template, body, class_word, equals),
            namespace,
            extern_c,
        )

    def _is_initialiser(self, opener: int, close: int) -> bool:
        """Return whether braces in a constructor's initialiser list (``: a{1}, b{2} {``) belong to a member."""
        before = self.tokens[opener - 1]
        return (before.kind == "word" or before.text == ">") and self.text(close + 1) in (",", "{")

    def _is_lone_call(self, first: int, opener: int, behind: int, end: int) -> bool:
        """Return whether ``NAME(...)`` is alone on its lines without ``;``, so that it is a macro call."""
        if opener != first + 1 or behind >= end or self.tokens[first].kind != "word" or not self.text(first).isupper():
            return False
        between = self.stream.text[self.tokens[behind - 1].end : self.tokens[behind].start]
        following = self.tokens[behind]
        return "\n" in between and (following.kind in ("word", "directive")) and self.text(first) not in _ATTRIBUTES

    def _finish(self, shape: _Shape, namespace: str, extern_c: bool) -> CppDeclaration:
        words = [i for i in shape.depth_zero if self.tokens[i].kind == "word"]
        start = self.text(shape.first)
        members: tuple[CppDeclaration, ...] = ()
        if start == "using":
            kind = "directive" if self.text(shape.first + 1) == "namespace" else "alias" if shape.equals else "using"
            names = words[1:2] if kind == "alias" else words[-1:]
        elif start == "static_assert" or start == "_Static_assert":
            kind, names = "assertion", []
        elif start == "typedef":
            kind, names = "typedef", words[-1:]
            if shape.parameters:  # typedef R (*name)(...)
                names = [i for i in shape.head if self.tokens[i].kind == "word" and self.text(i - 1) == "*"][
                    :1
                ] or names
            if shape.body:
                names = [i for i in self._class_names(shape) if self.text(i) != "typedef"]
        elif shape.class_word and shape.body:
            kind = "enum" if shape.class_word == "enum" else "class"
            names = self._class_names(shape)
            if kind == "class":
                inner = "::".join(filter(None, (namespace, *(self.text(i) for i in names[:1]))))
                members = self.level(shape.body[0] + 1, shape.body[1], inner, False)
        elif shape.parameters:
            names = self._function_name(shape)
            typeless = names == [shape.first] and not self._is_member_name(shape, namespace)
            kind = "call" if typeless else "function"
        elif shape.class_word:
            kind, names = "class", words[-1:]
        else:
            kind, names = "variable", self._variable_names(shape)
        return CppDeclaration(
            kind,
            shape.first,
            shape.last,
            tuple(self.text(i) for i in names),
            names[0] if names else shape.first,
            shape.head,
            shape.parameters if kind in ("function", "call") else None,
            shape.template,
            shape.body,
            namespace,
            extern_c or any(self.text(i) == '"C"' and self.text(i - 1) == "extern" for i in shape.head),
            members,
        )

    def _is_member_name(self, shape: _Shape, namespace: str) -> bool:
        """Return whether ``Name(...)`` without a preceding type is a constructor."""
        return self.text(shape.first) == namespace.rpartition("::")[2] or self.text(shape.first + 1) == "::"

    def _function_name(self, shape: _Shape) -> list[int]:
        assert shape.parameters is not None
        words = [i for i in shape.depth_zero if i < shape.parameters[0] and self.tokens[i].kind == "word"]
        return words[-1:]

    def _class_names(self, shape: _Shape) -> list[int]:
        assert shape.body is not None
        names: list[int] = []
        for index in shape.depth_zero:
            if index > shape.body[0] or self.text(index) == ":":
                break
            if self.tokens[index].kind == "word" and self.text(index) not in _CLASS_WORDS | _ATTRIBUTES | {"final"}:
                names = [index]
        if shape.class_word == "enum":
            parts = self.stream.split_commas(shape.body[0] + 1, shape.body[1] - 1)
            names += [i for i, _ in parts if self.tokens[i].kind == "word"]
        return names + [i for i in range(shape.body[1] + 1, shape.last) if self.tokens[i].kind == "word"]

    def _variable_names(self, shape: _Shape) -> list[int]:
        """Return the index of the word before each ``=``, ``[``, ``{``, ``,`` and the final ``;``."""
        names: list[int] = []
        last = shape.last if self.text(shape.last) == ";" else shape.last + 1
        for first, behind in self.stream.split_commas(shape.first, last - 1):
            index, candidate = first, -1
            while index <= behind and self.text(index) not in ("=", "{"):
                if self.tokens[index].kind == "word" and self.text(index) not in _ATTRIBUTES:
                    candidate = index
                elif self.text(index) == "<":
                    index = (self.stream.skip_angles(index, behind + 1) or index + 1) - 1
                elif self.text(index) in ("(", "["):
                    index = self.partner[index]
                index += 1
            if candidate >= 0:
                names.append(candidate)
        return names


@dataclass(frozen=True, slots=True)
class _Shape:
    """Result of one pass over the tokens of a declaration."""

    first: int
    last: int
    head: tuple[int, ...]
    depth_zero: tuple[int, ...]
    parameters: tuple[int, int] | None
    template: tuple[int, int] | None
    body: tuple[int, int] | None
    class_word: str
    equals: bool


_NO_TYPES = frozenset(
    {
        *("and", "bitand", "bitor", "case", "co_return", "co_yield", "compl", "const", "constexpr", "delete", "do"),
        *("else", "extern", "goto", "inline", "mutable", "new", "not", "operator", "or", "private", "protected"),
        *("public", "register", "return", "sizeof", "static", "throw", "typename", "volatile", "xor"),
        *("__constant__", "__device__", "__forceinline__", "__global__", "__host__", "__noinline__", "__restrict__"),
        "__shared__",
    }
)
"""Words that may precede a use of a macro; any other word before a name is its type."""
_TYPES = frozenset(
    {
        *("auto", "bool", "char", "double", "float", "half", "int", "long", "short", "signed", "unsigned", "void"),
        *("__half", "__nv_bfloat16"),
    }
)
_AFTER_NAME = frozenset(["=", ";", ",", ")", "[", "(", "{", ">", ":"])


@dataclass(frozen=True)
class Collision:
    """A name of the source that is also a macro."""

    name: str
    """The name."""
    line: int
    """Line of the name."""
    text: str
    """The line, without indentation."""
    defines: bool = False
    """Whether the line is a `#define`, which replaces the value of the macro."""


def collisions(text: str, macros: Collection[str], broken: int | None = None) -> Iterator[Collision]:
    """Yield the first place of each macro at which a text declares its name, refers to a member, or defines it.

    Code under a condition that tests the macro, such as `#ifndef BLOCK_M`, does not count.

    Args:
        text: the source.
        macros: names of the macros.
        broken: line at which the compiler misses a name, so that each macro there counts.
    """
    stream, seen = TokenStream(text), set[str]()
    lines = text.split("\n")
    tested: list[frozenset[str]] = []
    code = [token for token in stream.tokens if token.kind != "directive"]
    position = -1
    for token in stream.tokens:
        name, defines = token.text, False
        if token.kind != "directive":
            position += 1
        elif token.directive in ("if", "ifdef", "ifndef"):
            tested.append(words(directive_body(token.text)))
        elif token.directive in ("elif", "elifdef", "elifndef") and tested:
            tested[-1] |= words(directive_body(token.text))
        elif token.directive == "endif" and tested:
            tested.pop()
        elif token.directive == "define":
            name, defines = (directive_body(token.text).split("(")[0].split() or [""])[0], True
        if name not in macros or name in seen or any(name in one for one in tested):
            continue
        line = stream.line(token.start)
        if defines or (token.kind == "word" and (line == broken or _declares(code, position))):
            seen.add(name)
            yield Collision(name, line, lines[line - 1].strip(), defines)


def _declares(code: Sequence[Token], position: int) -> bool:
    """Return whether the token at a position is a declared name or a member, and not a use of the macro."""
    before, earlier = (code[at] if at >= 0 else None for at in (position - 1, position - 2))
    after = code[position + 1].text if position + 1 < len(code) else ""
    if after == "=" or (before is not None and before.text in (".", "->", "::")):
        return True
    if before is None or after not in _AFTER_NAME:
        return False
    if before.kind == "word":
        return before.text not in _NO_TYPES
    return before.text in ("*", "&") and earlier is not None and earlier.text in _TYPES
