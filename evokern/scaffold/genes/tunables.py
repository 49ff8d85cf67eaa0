"""Find the numbers of device code that a draft may change: macros, constants and switches, with values to try.

Uses of their names decide: conditions, array extents, comparisons and arithmetic.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from evokern.cuda_source import CudaSource
from evokern.cuda_source.host import Pointer, expression, names_in, translated, tree
from evokern.cuda_source.host import number as number_of
from evokern.cuda_source.host.tree import Node
from evokern.cuda_source.preprocessor import closure
from evokern.declaration.genes import Form
from evokern.declaration.header.text import NAMESPACE
from evokern.scaffold.buffers import neighbours
from evokern.scaffold.plan import WARP, DraftGene
from evokern.scaffold.source_text import behind_opening

_LOGIC = frozenset({"&&", "||"})
_EQUALITY = frozenset({"==", "!="})
_ORDER = frozenset({"<", "<=", ">", ">="})
_CONDITIONAL = frozenset({
    "if_statement", "while_statement", "conditional_expression", "preproc_if", "preproc_elif", "switch_statement",
})  # fmt: skip
_IDENTIFIERS = frozenset({"identifier", "type_identifier"})


@dataclass
class Uses:
    """Uses of one name."""

    kinds: set[str] = field(default_factory=set)
    """`condition`, `extent` (of an array), `bound` (compared), `assertion`, `launch` (bounds), `other`."""
    compared: set[int] = field(default_factory=set)
    """Numbers with which conditions compare the name for equality."""


@dataclass(frozen=True)
class DeviceUses:
    """Uses of all names in device code, and what its assertions require."""

    names: Mapping[str, Uses]
    """Name → uses; a definition is none."""
    assertions: tuple[str, ...]
    """Conditions of the `static_assert`s, divided at `&&`."""
    bodies: Mapping[str, str]
    """Macro without parameters → its replacement."""
    template_parameters: frozenset[str]
    """Names of template parameters that are numbers."""


def device_uses(text: str) -> DeviceUses:
    """Return the uses of the names in device code.

    Args:
        text: device code.
    """
    names: dict[str, Uses] = defaultdict(Uses)
    assertions: list[str] = []
    bodies: dict[str, str] = {}
    parameters: set[str] = set()
    for node in tree.walk(tree.parse(text)):
        if node.type in _IDENTIFIERS:
            _add(names, node)
        elif node.type == "preproc_arg":
            definition = node.parent
            for word in tree.walk(tree.parse(f"void f() {{ g({_code(node)}); }}")):
                if word.type in _IDENTIFIERS:
                    _add(names, word)
            if definition is not None and definition.type == "preproc_def":
                bodies[tree.text(tree.field(definition, "name"))] = _code(node)
        elif node.type == "static_assert_declaration":
            condition = tree.field(node, "condition")
            assertions += map(tree.text, tree.conjuncts(condition)) if condition is not None else ()
        elif node.type == "template_parameter_list":
            parameters |= {tree.text(tree.field(one, "declarator")) for one in tree.children(node)}
    return DeviceUses(names, tuple(assertions), bodies, frozenset(parameters))


def _code(node: Node) -> str:
    """Return the replacement of a macro without comments, which the grammar leaves in it."""
    words = tree.text(node)
    return words.partition("//")[0].partition("/*")[0].replace("\\ ", " ").strip()


def _add(names: dict[str, Uses], node: Node) -> None:
    kind, number = _kind(node)
    if kind:
        name = tree.text(node)
        names[name].kinds.add(kind)
        if number is not None:
            names[name].compared.add(number)


def _kind(node: Node) -> tuple[str, int | None]:
    """Return the kind of use of an identifier, and the number with which a condition compares it."""
    number: int | None = None
    compared = False
    child, parent = node, node.parent
    if parent is None or _is_definition(node, parent):
        return "", None
    while parent is not None:
        operator = tree.text(tree.field(parent, "operator"))
        if parent.type == "binary_expression" and operator in _EQUALITY and child is node and number is None:
            other = tree.field(parent, "right") if tree.field(parent, "left") == node else tree.field(parent, "left")
            number = int(tree.text(other)) if other is not None and tree.text(other).isdigit() else None
            compared = True
            if number is None:
                break
        elif parent.type == "binary_expression" and operator in _ORDER:
            compared = True
            if not _in_directive(parent):
                break
        elif parent.type in ("parenthesized_expression", "condition_clause", "preproc_defined") or (
            parent.type in ("binary_expression", "unary_expression") and operator in (*_LOGIC, "!")
        ):
            pass
        else:
            break
        child, parent = parent, parent.parent
    if parent is not None and parent.type in _CONDITIONAL and tree.field(parent, "condition") == child:
        return "condition", number
    for outer in tree.above(node):
        if outer.type in ("compound_statement", "translation_unit", "declaration"):
            break
        if outer.type == "static_assert_declaration":
            return "assertion", None
        if outer.type == "launch_bounds":
            return "launch", None
        size = tree.field(outer, "size") if outer.type == "array_declarator" else None
        if size is not None and size.start_byte <= node.start_byte and node.end_byte <= size.end_byte:
            return "extent", None
    return ("bound", None) if compared else ("other", None)


def _is_definition(node: Node, parent: Node) -> bool:
    if parent.type in ("preproc_def", "preproc_function_def", "preproc_ifdef", "preproc_undef", "preproc_defined"):
        return True
    return parent.type in ("init_declarator", "enumerator") and node in (
        tree.field(parent, "declarator"), tree.field(parent, "name")
    )  # fmt: skip


def _in_directive(node: Node) -> bool:
    inner = ("binary_expression", "parenthesized_expression", "unary_expression")
    outer = next((one for one in tree.above(node) if one.type not in inner), None)
    return outer is not None and outer.type in ("preproc_if", "preproc_elif")


LARGEST_GENE = 1024
"""Maximum value of a constant that becomes a gene; larger values are problem sizes."""
GUESSED = "half and double the file's value"
"""Reason for values that the file does not list."""
_MOST_LISTED = 32
"""Maximum number of values that a comment lists."""
_ALGORITHM = re.compile(
    r"(?!.*(?:block|tile|thread|step))(?:\w*_)?(?:halo|radius|bins|channels|classes)(?:_\w*)?", re.I
)
"""Constants that are part of what a kernel computes."""
_PLATFORM = re.compile(r"__\w*|_?_?CUDA\w*|CUDART\w*|HIP\w*|NV\w*|\w*VERSION\w*|\w*_ARCH\w*|DEBUG\w*|\w*_DEBUG|NDEBUG")
"""Macros of compilers, platforms and versions."""
_SWITCH = re.compile(
    r"(?:k_?)?(?:use|enable|disable|with|without|has|do|is|no|should)_?[A-Za-z]\w*|\w+_(?:enabled|on|off)", re.I
)
_NUMBER = r"(?<![\w.+-])\d+(?![\w.]|\s*%)"
_LIST = re.compile(rf"{_NUMBER}(?:\s*(?:,\s*or\b|,\s*and\b|,|/|\||\bor\b|\band\b|\s)\s*{_NUMBER})+")
_RANGE = re.compile(r"(?<![\w.])(\d+)\s*(?:\.\.\.?|\bto\b|-|–)\s*(\d+)(?![\w.])")
_MULTIPLE = re.compile(r"\b(?:multiples?|divisible|divides)\s*(?:of|by)\s+(\d+)", re.IGNORECASE)
_POWER = re.compile(r"\bpowers?[ -]of[ -](?:two|2)\b", re.IGNORECASE)
_MOST = re.compile(r"(?:<=|≤|\bat most\b|\bup to\b|\bmax(?:imum)?(?: of| is)?:?)\s*(\d+)", re.IGNORECASE)
_LEAST = re.compile(r"(?:>=|≥|\bat least\b|\bmin(?:imum)?(?: of| is)?:?)\s*(\d+)", re.IGNORECASE)
_INTEGER_TYPES = re.compile(
    r"(?:u?int(?:8|16|32|64)?_t|(?:std::)?size_t|int|unsigned|long|short|signed|auto|bool|char)(?: (?:int|long|short))*"
)


@dataclass(frozen=True)
class Number:
    """A named number in device code."""

    name: str
    value: int
    line: int
    """Line in its file."""
    file: str = ""
    """Header that contains it; empty for the main file."""
    constant: tuple[int, int] | None = None
    """For a constant: bytes of the value in the device code; None for a macro."""
    is_bool: bool = False


@dataclass(frozen=True)
class Tunables:
    """Numbers of device code that a draft may change."""

    genes: tuple[DraftGene, ...]
    sizes: Mapping[str, int]
    """Macro or constant with the size of the problem → number in the file."""
    macros: Mapping[str, str]
    """Macro that sets such a size → its field as Python text."""
    names: Mapping[str, str]
    """C name → Python text: numbers, genes, sizes, and macros that are defined from them."""
    edits: tuple[tuple[int, int, str], ...]
    """Changes to the device code: first byte, byte after the last, new text."""

    def edited(self, text: str) -> str:
        """Return device code in which the constants that are genes have the gene's value."""
        code = text.encode()
        for first, last, new in sorted(self.edits, reverse=True):
            code = code[:first] + new.encode() + code[last:]
        added = {macro: field for macro, field in self.macros.items() if macro != field.removeprefix("p.")}
        lines = "".join(f"#ifndef {macro}\n#define {macro} {self.sizes[field.removeprefix('p.')]}\n#endif\n"
                        for macro, field in added.items())  # fmt: skip
        return behind_opening(code.decode(), lines)


def find_tunables(
    source: CudaSource, text: str, uses: DeviceUses, *, has_sizes: bool, launch_words: Set[str], block_words: Set[str]
) -> Tunables:
    """Classify the named numbers of device code.

    Args:
        source: the file.
        text: device code of one kernel.
        uses: uses of names in it.
        has_sizes: whether the kernel has integer parameters, so that its numbers need not be the problem's size.
        launch_words: identifiers in grid, block and shared memory of the launch.
        block_words: identifiers in the block and shared memory alone.
    """
    macros = _macros(source, text, uses)
    numbers = {number.name: number for number in (*constants(text), *macros)}
    allocated = _allocated_words(source)
    launch, block = (_with_bodies(words, uses.bodies) for words in (launch_words, block_words))
    genes, sizes, settings, edits = [], {}, {}, []
    for number in numbers.values():
        used = uses.names.get(number.name)
        if used is None or not used.kinds or _is_fixed(number, used, launch):
            continue
        if number.value > LARGEST_GENE or (number.name in allocated and number.name not in block):
            if not has_sizes and (number.constant is None or number.name in allocated):
                sizes[number.name] = number.value
                macro = number.name if number.constant is None else f"PROBLEM_{number.name}"
                settings[macro] = f"p.{number.name}"
                if number.constant is not None:
                    edits.append((*number.constant, macro))
            continue
        gene = _gene(number, used, comments_on(source, number.name, number.line, number.file))
        if gene.as_ == "constexpr" and number.constant is not None:
            edits.append((*number.constant, f"{NAMESPACE}::{number.name}"))
        genes.append(gene)
    unknown = "the file contains no value; list the possible values"
    needed = [macro.name for macro in source.macros if macro.kind == "required" and macro.name in uses.names]
    genes += [DraftGene(name, (1,), 1, unknown) for name in needed]
    names = {number.name: str(number.value) for number in numbers.values()}
    names |= {gene.name: f"c.{gene.name}" for gene in genes} | {name: f"p.{name}" for name in sizes}
    for name, body in uses.bodies.items():
        if name not in names and (made := translated(body, names, uses.bodies)):
            names[name] = f"({made})" if re.search(r"\W", made.strip("()").replace(".", "")) else made
    return Tunables(tuple(genes), sizes, settings, names, tuple(edits))


def _macros(source: CudaSource, text: str, uses: DeviceUses) -> Iterator[Number]:
    """Yield the macros of the device code whose value is a number, except those with a value for each platform.

    A macro on the command line would also replace a template parameter of the same name.
    """
    defined = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", text, re.MULTILINE)
    for macro in source.macros:
        if macro.function_like or macro.kind not in ("defined", "default") or macro.name in uses.template_parameters:
            continue
        number = macro.number if macro.number is not None else _constant_value(macro.value or "")
        masked = re.match(r"\(?\s*0[xX]", macro.value or "")
        known = macro.kind == "default" or defined.count(macro.name) <= 1
        if number is not None and number >= 0 and not masked and known:
            yield Number(macro.name, number, macro.line, macro.file)


def _constant_value(text: str) -> int | None:
    """Return the value of an expression of numbers, such as `(1 << 5)`; None for other text."""
    if not re.search(r"\d", text) or re.search(r"[A-Za-z_.]", re.sub(r"\b\d+[uUlL]+\b", "0", text)):
        return None
    return number_of(expression(text))


def constants(text: str) -> Iterator[Number]:
    """Yield the integer constants of device code: of files, namespaces, structures and functions, and enumerators."""
    found: dict[str, list[Number]] = {}
    for node in tree.walk(tree.parse(text)):
        for number in _declared(node):
            found.setdefault(number.name, []).append(number)
    yield from (numbers[0] for numbers in found.values() if len(numbers) == 1)


def _declared(node: Node) -> Iterator[Number]:
    if node.type in ("declaration", "field_declaration"):
        marks = ("type_qualifier", "storage_class_specifier")
        words = {tree.text(child) for child in node.children if child.type in marks}
        if not ("constexpr" in words or "const" in words) or "extern" in words:
            return
        if (
            "constexpr" not in words
            and "static" not in words
            and any(one.type == "function_definition" for one in tree.above(node))
        ):
            return
        kind = tree.text(tree.field(node, "type"))
        if not _INTEGER_TYPES.fullmatch(kind):
            return
        if node.type == "field_declaration":
            yield from _valued(tree.field(node, "declarator"), tree.field(node, "default_value"), kind == "bool")
            return
        for child in node.named_children:
            if child.type == "init_declarator":
                yield from _valued(tree.field(child, "declarator"), tree.field(child, "value"), kind == "bool")
    elif node.type == "enumerator":
        owner = node.parent.parent if node.parent is not None else None
        if owner is not None and tree.field(owner, "name") is None:
            yield from _valued(tree.field(node, "name"), tree.field(node, "value"), False)


def _valued(name: Node | None, value: Node | None, is_bool: bool) -> Iterator[Number]:
    if name is None or value is None or name.type not in ("identifier", "field_identifier"):
        return
    written = tree.text(value)
    number = {"true": 1, "false": 0}.get(written)
    number = _constant_value(written.strip("{}")) if number is None else number
    if number is not None and number >= 0 and not written.lower().startswith("0x"):
        place = (value.start_byte, value.end_byte)
        yield Number(tree.text(name), number, tree.line(name), constant=place, is_bool=is_bool)


def _allocated_words(source: CudaSource) -> frozenset[str]:
    """Return the identifiers in the sizes of allocated buffers."""
    buffers = [one.buffer for view in source.launches for one in view.arguments if isinstance(one, Pointer)]
    sizes = [size for one in buffers for size in (one.elements, one.bytes, *(one.shape or ()))]
    return frozenset(name.text for size in sizes for name in names_in(size))


def _with_bodies(words: Set[str], bodies: Mapping[str, str]) -> set[str]:
    """Return identifiers with those in the replacements of macros among them."""
    return closure(words, lambda word: re.findall(r"[A-Za-z_]\w*", bodies.get(word, "")))


def _is_fixed(number: Number, used: Uses, launch: Set[str]) -> bool:
    """Return whether a number belongs to the hardware, the platform or the algorithm."""
    if any(pattern.fullmatch(number.name) for pattern in (_PLATFORM, WARP, _ALGORITHM)):
        return True
    # An array's capacity: other code only compares with it, so that another value changes nothing else.
    return used.kinds <= {"extent", "bound", "assertion"} and "extent" in used.kinds and number.name not in launch


def _gene(number: Number, used: Uses, comments: Sequence[str]) -> DraftGene:
    form: Form = "macro" if number.constant is None else "constexpr"
    made = DraftGene(number.name, (), number.value, as_=form)
    conditions = used.kinds <= {"condition", "assertion"} and "condition" in used.kinds
    named = number.is_bool or _SWITCH.fullmatch(number.name) is not None
    if number.value <= 1 and (named or (conditions and used.compared <= {0, 1})):
        return replace(made, values=(0, 1), doc="switch")
    if conditions and used.compared:
        lowest = min(0, number.value) if len(used.compared) > 1 or 0 in used.compared else number.value
        return replace(made, values=tuple(sorted({*used.compared, number.value, lowest})), doc="choice of code")
    values, why = values_of(number.value, comments)
    return replace(made, values=values, why=why)


def comments_on(source: CudaSource, name: str, line: int, file: str) -> list[str]:
    """Return the comments that describe a name: on its line, in the lines above, and those that begin with it."""
    text = source.headers.get(file, "") if file else source.text
    lines = text.split("\n")
    found = []
    if 0 < line <= len(lines) and re.search(rf"\b{re.escape(name)}\b", lines[line - 1]):
        found += _comments(lines[line - 1])
        above = line - 2
        while above >= 0 and re.match(r"\s*(//|#\s*ifndef\b)", lines[above]):
            found += _comments(lines[above])
            above -= 1
    word = re.compile(rf"\b{re.escape(name)}\b\W{{0,4}}(?:(?:is|can|may|must|be|one|of|in|from|should)\b\W*)*(.*)")
    for comment in _comments(text):
        found += [match[1] for each in comment.split("\n") if (match := word.search(each))]
    return found


def _comments(text: str) -> list[str]:
    return [one or other for one, other in re.findall(r"//([^\n]*)|/\*(.*?)\*/", text, re.DOTALL)]


def values_of(default: int, comments: Iterable[str]) -> tuple[tuple[int, ...], str]:
    """Return the values to try for a number, and why they are guesses; empty if a comment lists them.

    Args:
        default: value in the file.
        comments: comments on the number.
    """
    text = "\n".join(comments)
    for match in _LIST.finditer(text):
        listed = {int(word) for word in re.findall(r"\d+", match[0])}
        if default in listed and 1 < len(listed) <= _MOST_LISTED:
            return tuple(sorted(listed)), ""
    for match in _RANGE.finditer(text):
        first, last = int(match[1]), int(match[2])
        if first <= default <= last and first < last:
            values = {value for shift in range(16) if first <= (value := 1 << shift) <= last} | {default}
            return tuple(sorted(values)), "powers of two of the range in the comment"
    unit = int(found[1]) if (found := _MULTIPLE.search(text)) else 1
    most = min((int(word) for word in _MOST.findall(text)), default=1 << 30)
    least = max((int(word) for word in _LEAST.findall(text)), default=0)
    power = _POWER.search(text) is not None
    values = {
        value
        for value in neighbours(default)
        if value == default
        or (value % max(1, unit) == 0 and least <= value <= most and not (power and value & (value - 1)))
    }
    return tuple(sorted(values)), GUESSED
