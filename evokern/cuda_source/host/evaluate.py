"""Symbolic evaluation of host functions: each launch is recorded in the names of the function where it starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from evokern.cuda_source.host import tree
from evokern.cuda_source.host.program import Function, ParameterNode, Program, declared_name, function_parameters
from evokern.cuda_source.host.records import HostBuffer, HostLaunch, Pointer
from evokern.cuda_source.host.tree import Node
from evokern.cuda_source.host.values import Dim3, Expr, Name, Operation, TypeName, number, operation, text_of, whole
from evokern.cuda_source.preprocessor import integer

Value: TypeAlias = Any
_STEPS = 30_000
"""Maximum number of evaluated nodes of one function with the functions that it calls."""
_DEEPEST = 12
"""Maximum number of nested calls."""
SIZES = {
    "float": 4, "double": 8, "half": 2, "__half": 2, "int": 4, "char": 1, "__nv_bfloat16": 2, "nv_bfloat16": 2,
    "unsigned": 4, "unsigned int": 4, "bool": 1, "short": 2, "long long": 8, "long": 8, "size_t": 8, "int64_t": 8,
    "uint64_t": 8, "int32_t": 4, "uint32_t": 4, "uint": 4, "int16_t": 2, "uint16_t": 2, "int8_t": 1, "uint8_t": 1,
    "unsigned char": 1, "signed char": 1, "uchar": 1, "unsigned short": 2, "unsigned long long": 8, "unsigned long": 8,
    "half2": 4, "__half2": 4, "__nv_bfloat162": 4, "Half": 2, "BFloat16": 2,
}  # fmt: skip
"""C type → its size in bytes; vector types such as `float4` follow from their elements."""
_VECTOR = re.compile(r"(u?)(char|short|int|long|longlong|float|double)([1234])")
_REAL_TYPES = frozenset(("float", "double"))
_TENSOR = re.compile(r"\bTensor\b")
_CONTAINER = re.compile(
    r"(?:^|_|\b)(?:vector|array|buffer|buf|unique_ptr|shared_ptr)(?:_|\b|$)|Vector|Array|Buffer|Vec\b|Mem", re.I
)
_SAME_TENSOR = frozenset(("contiguous", "cuda", "detach", "clone", "to", "toType", "value", "data", "data_ptr", "half",
                          "mutable_data_ptr", "const_data_ptr", "get", "begin", "packed_accessor", "packed_accessor32",
                          "packed_accessor64", "is_contiguous", "requires_grad_", "zero_", "fill_", "set_requires_grad"))  # fmt: skip
_CHECKS = re.compile(
    r"TORCH_CHECK\w*|AT_ASSERT\w*|AT_CHECK|C10_CHECK\w*|assert|CHECK_(?:EQ|NE|LT|GT|LE|GE)|ASSERT\w*|TORCH_INTERNAL_ASSERT|TVM_FFI_\w*CHECK\w*|CHECK"
)
_ENDS = re.compile(r"exit|abort|_exit|std::exit|std::abort|quick_exit")
_CEIL_DIV = frozenset(("cdiv", "ceildiv", "divup", "idivup", "ceil_div", "div_up", "div_ceil", "divceil", "ceil_divide",
                       "ceildivide", "divroundup", "div_round_up", "iceildiv", "cuda_ceil_div", "dividerup"))  # fmt: skip
_KEPT = frozenset(("static_cast", "reinterpret_cast", "const_cast", "dynamic_cast", "bit_cast"))
_DISPATCH = {
    "FLOATING_TYPES": ("float", "double"), "ALL_TYPES": ("float", "double", "int32_t", "int64_t"),
    "INTEGRAL_TYPES": ("int32_t", "int64_t"), "INDEX_TYPES": ("int32_t", "int64_t"),
}  # fmt: skip
_TORCH_TYPES = {"Half": "at::Half", "BFloat16": "at::BFloat16", "Float": "float", "Double": "double", "Int": "int32_t",
                "Long": "int64_t", "Byte": "uint8_t", "Char": "int8_t", "Bool": "bool", "Short": "int16_t"}  # fmt: skip


@dataclass
class Function_:
    """A reference to a function, with its template arguments."""

    name: str
    template: tuple[Value, ...] = ()


@dataclass
class _Closure:
    node: Node
    frame: _Frame


@dataclass
class _Reference:
    """Address of a variable."""

    frame: _Frame
    name: str


@dataclass
class _List:
    items: list[Value]


@dataclass
class _Frame:
    """Variables of a running function."""

    function: str
    variables: dict[str, Value] = field(default_factory=dict)
    templates: dict[str, Value] = field(default_factory=dict)
    structure: TypeName | None = None
    given: dict[str, Value] = field(default_factory=dict)
    parent: _Frame | None = None
    returned: list[tuple[tuple[Expr, ...], Value]] = field(default_factory=list)


class OutOfSteps(Exception):
    """The function takes too many steps."""


class Evaluator:
    """Evaluator of one host function and of the functions that it calls.

    Args:
        program: declarations.
        root: the function.
        templates: template parameter → value; parameters without one stand for themselves.
    """

    def __init__(self, program: Program, root: Function, templates: dict[str, Value] | None = None) -> None:
        self.program = program
        self.root = root
        self.launches: list[HostLaunch] = []
        self._templates = templates or {}
        self._steps = 0
        self._depth = 0
        self._file = root.file
        self._conditions: list[Expr] = []
        self._guards: list[Expr] = []
        self._checks: list[Expr] = []
        self._types: dict[str, tuple[str, ...]] = {}
        self._busy: list[Function] = []

    # ---- functions

    def run(self) -> tuple[HostLaunch, ...]:
        """Evaluate the function, and return its launches."""
        frame = _Frame(self.root.name, templates={
            one.name: self._templates.get(one.name, TypeName(one.name) if one.type == "typename"
                                          else Name(one.name, "template", scope=self.root.name))
            for one in self.root.template
        })  # fmt: skip
        if self.root.structure in self.program.structures:
            frame.structure = TypeName(self.root.structure)
        for one in self.root.parameters:
            frame.variables[one.name] = self._parameter(one, frame)
        frame.given = dict(frame.variables)
        try:
            self._block(self.root.body, frame)
        except (OutOfSteps, RecursionError):
            pass
        return tuple(self.launches)

    def value(self, node: Node) -> Value:
        """Return the value of an expression at file scope."""
        return self._evaluate(node, _Frame(""))

    def arguments(self, node: Node) -> tuple[Value, ...]:
        """Return template arguments at file scope."""
        return self._template_arguments(node, _Frame(""))

    def _parameter(self, one: ParameterNode, frame: _Frame) -> Value:
        bare = one.type.removeprefix("const ").rstrip("&")
        if _TENSOR.search(bare):
            return HostBuffer(one.name, "tensor")
        if bare.endswith("*"):
            return Pointer(
                HostBuffer(one.name, "parameter", dtype=bare.rstrip("*")), self._type_text(bare.rstrip("*"), frame)
            )
        if bare == "dim3":
            parts = [Name(f"{one.name}.{axis}", "parameter", scope=frame.function) for axis in "xyz"]
            return Dim3(*parts)
        if _CONTAINER.search(bare.partition("<")[0]):
            inner = bare.partition("<")[2].rpartition(">")[0]
            if not _TENSOR.search(inner):
                return HostBuffer(
                    one.name,
                    "host",
                    elements=Name(f"{one.name}.size()", "parameter", scope=frame.function),
                    dtype=inner,
                )
        default = integer(tree.text(one.default)) if one.default is not None else None
        return Name(one.name, "parameter", default, scope=frame.function)

    def _call_function(
        self,
        function: Function,
        given: Sequence[Value],
        template: Sequence[Value],
        nodes: Sequence[Node],
        caller: _Frame,
    ) -> Value:
        frame = _Frame(function.name, parent=None)
        self._bind_templates(function, frame, template, given)
        if function.structure in self.program.structures:
            frame.structure = TypeName(function.structure)
        for at, one in enumerate(function.parameters):
            value = (
                given[at]
                if at < len(given)
                else self._evaluate(one.default, frame)
                if one.default
                else self._parameter(one, frame)
            )
            if one.type.removeprefix("const ").rstrip("&") in _REAL_TYPES and isinstance(value, int | Name | Operation):
                value = operation("real", value)
            elif isinstance(value, float) and not one.type.endswith(("float", "double")):
                value = int(value) if "int" in one.type else value
            if at < len(nodes):
                self._pass_members(caller, tree.text(nodes[at]), frame, one.name)
                self._label(value, one.name)
            frame.variables[one.name] = value
        frame.given = dict(frame.variables)
        depth = len(self._guards)
        file, self._file = self._file, function.file
        self._busy.append(function)
        try:
            self._block(function.body, frame)
        finally:
            self._file = file
            self._busy.pop()
        del self._guards[depth:]
        for at, one in enumerate(function.parameters):
            if at < len(nodes) and one.type.endswith("&") and not one.type.startswith("const"):
                self._pass_members(frame, one.name, caller, tree.text(nodes[at]))
                if nodes[at].type == "identifier" and frame.variables[one.name] is not given[at]:
                    caller.variables[tree.text(nodes[at])] = frame.variables[one.name]
        return _result(frame)

    def _bind_templates(
        self, function: Function, frame: _Frame, template: Sequence[Value], given: Sequence[Value]
    ) -> None:
        for at, one in enumerate(function.template):
            if at < len(template):
                frame.templates[one.name] = template[at]
            elif (made := self._deduced(one.name, function.parameters, given)) is not None:
                frame.templates[one.name] = made
            elif one.default is not None:
                frame.templates[one.name] = (
                    self._type(one.default, frame) if one.type == "typename" else self._evaluate(one.default, frame)
                )
            else:
                frame.templates[one.name] = (
                    TypeName(one.name) if one.type == "typename" else Name(one.name, "template", scope=function.name)
                )

    def _deduced(self, name: str, parameters: Sequence[ParameterNode], given: Sequence[Value]) -> Value:
        """Return the template argument that the compiler deduces from the arguments; None if it cannot be told."""
        for one, value in zip(parameters, given, strict=False):
            if re.fullmatch(rf"(?:const )?{re.escape(name)}\**&*", one.type):
                if isinstance(value, Pointer) and "*" in one.type and value.type:
                    return _type_name(value.type)
                if isinstance(value, TypeName):
                    return value
        return None

    def _pass_members(self, source: _Frame, prefix: str, target: _Frame, name: str) -> None:
        """Copy the members of a structure that is passed to or from a function."""
        prefix = prefix.removeprefix("&").removeprefix("*")
        for path, value in list(source.variables.items()):
            if path.startswith((f"{prefix}.", f"{prefix}[")):
                target.variables[name + path[len(prefix) :]] = value

    def _label(self, value: Value, name: str) -> None:
        """Remember the variable's name for an extent of a tensor."""
        if (
            isinstance(value, Name)
            and value.kind == "extent"
            and (match := re.search(r"\.size\((-?\d+)\)$", value.text))
        ):
            buffer = self._extents.get(value.text)
            if buffer is not None:
                buffer.labels.setdefault(int(match[1]), name)

    @property
    def _extents(self) -> dict[str, HostBuffer]:
        if not hasattr(self, "_extent_owners"):
            self._extent_owners: dict[str, HostBuffer] = {}
        return self._extent_owners

    # ---- statements; each returns whether control leaves the block

    def _block(self, node: Node, frame: _Frame) -> bool:
        return (
            any([self._statement(child, frame) for child in tree.children(node)][-1:])
            if False
            else self._sequence(tree.children(node), frame)
        )

    def _sequence(self, nodes: Iterator[Node], frame: _Frame) -> bool:
        return any(self._statement(node, frame) for node in nodes)

    def _statement(self, node: Node, frame: _Frame) -> bool:
        self._steps += 1
        if self._steps > _STEPS:
            raise OutOfSteps
        kind = node.type
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None:
            return bool(handler(node, frame))
        if kind in (
            "compound_statement",
            "ERROR",
            "else_clause",
            "labeled_statement",
            "try_statement",
            "translation_unit",
        ):
            return self._block(node, frame)
        if kind == "expression_statement":
            for child in tree.children(node):
                self._evaluate(child, frame)
                if child.type == "call_expression" and _ENDS.fullmatch(tree.text(tree.field(child, "function"))):
                    return True
            return False
        if kind in ("break_statement", "continue_statement", "throw_statement", "goto_statement"):
            return True
        if kind.endswith(("_expression", "identifier")):
            self._evaluate(node, frame)
        return False

    def _on_return_statement(self, node: Node, frame: _Frame) -> bool:
        value = next((self._evaluate(child, frame) for child in tree.children(node)), None)
        frame.returned.append((tuple(self._conditions), value))
        return True

    def _on_declaration(self, node: Node, frame: _Frame) -> bool:
        kind = tree.text(tree.field(node, "type"))
        for one in node.children_by_field_name("declarator"):
            self._declare(one, kind, node, frame)
        return False

    def _declare(self, one: Node, kind: str, node: Node, frame: _Frame) -> None:
        name = declared_name(one)
        value_node = tree.field(one, "value") if one.type == "init_declarator" else None
        inner = tree.field(one, "declarator") if one.type == "init_declarator" else one
        marks = "".join(c for c in tree.text(inner).partition(name)[0] if c in "*&") if inner is not None else ""
        arguments: tuple[Node, ...] = ()
        if inner is not None and inner.type == "function_declarator":  # `dim3 grid(N, M)` looks like a function
            arguments = tree.expressions(tree.text(tree.field(inner, "parameters"))[1:-1])
        elif value_node is not None and value_node.type in ("argument_list", "initializer_list"):
            arguments = tuple(tree.children(value_node))
        if (
            name.isupper()
            and value_node is None
            and not arguments
            and inner is not None
            and inner.type == "function_declarator"
        ):
            return
        base = self._type_text(kind, frame)
        if marks.startswith("*") and value_node is None:
            value: Value = Pointer(HostBuffer(name, "allocation", tree.line(one), dtype=base), base)
        elif base == "dim3" and "*" not in marks and (arguments or value_node is None):
            value = self._dim3([self._evaluate(each, frame) for each in arguments])
        elif value_node is None and not arguments:
            value = (
                HostBuffer(name, "tensor", tree.line(one))
                if _TENSOR.search(kind)
                else self._made(kind, name, [], one, frame)
            )
            if "array" in (inner.type if inner is not None else ""):
                value = None
        elif (
            arguments
            and not (value_node is not None and value_node.type == "initializer_list" and "*" in marks)
            and inner is not None
            and "array" not in inner.type
        ):
            given = [self._evaluate(each, frame) for each in arguments]
            value = self._made(kind, name, given, one, frame)
        else:
            value = self._evaluate(value_node, frame)
        if marks.startswith("*") and isinstance(value, Pointer) and kind != "auto":
            value = replace(value, type=base)
        if inner is not None and "array" in inner.type and not isinstance(value, _List):
            extent = tree.field(inner, "size")
            elements = self._expr(extent, frame) if extent is not None else None
            value = Pointer(HostBuffer(name, "host", tree.line(one), elements=elements, dtype=base), base)
        frame.variables[name] = self._named(name, value, kind, frame)

    def _named(self, name: str, value: Value, kind: str, frame: _Frame) -> Value:
        """Return the value of a new variable: literals and values that cannot be computed keep the variable's name."""
        if base_real(kind) and isinstance(value, int | Name | Operation):
            return operation("real", value) if not isinstance(value, int) else float(value)
        if isinstance(value, float) and kind not in ("auto", "const auto"):
            value = int(value)
        if isinstance(value, Operation):
            value = whole(value) if kind != "auto" else value
        if isinstance(value, bool | int):
            return Name(name, "constant", int(value), frame.function)
        if isinstance(value, HostBuffer) and value.kind in ("allocation", "host", "tensor") and not value.name:
            value.name = name
        if isinstance(value, Pointer) and not value.buffer.name:
            value.buffer.name = name
        if isinstance(value, Name):
            self._label(value, name)
            if value.kind == "unknown":
                return Name(name, "local", value.value, frame.function)
        if isinstance(value, Operation) and _opaque(value):
            return Name(name, "local", _literal_in(value), frame.function)
        if value is None:
            return Name(name, "local", None, frame.function)
        return value

    def _made(self, kind: str, name: str, given: list[Value], node: Node, frame: _Frame) -> Value:
        """Return a new object of a type that is initialised with arguments."""
        base = kind.partition("<")[0].strip()
        inner = kind.partition("<")[2].rpartition(">")[0]
        if _CONTAINER.search(base.rpartition("::")[2]) and inner:
            first = given[0] if given else 0
            if isinstance(first, _List) or (len(given) > 2):
                return _List(given)
            device = "device" in base.lower() or "cuda" in base.lower()
            return HostBuffer(name, "allocation" if device else "host", tree.line(node), elements=_as_expr(first) if given else None,
                              dtype=self._type_text(inner, frame))  # fmt: skip
        if len(given) == 1 and (
            base in SIZES or base in ("auto", "unsigned", "int") or not isinstance(given[0], Name | Operation | int)
        ):
            return given[0]
        if len(given) == 1 and re.fullmatch(
            r"[\w: ]*(?:int|size|long|unsigned|bool|float|double|char|short)\w*(?:_t)?[\w: ]*", base
        ):
            return given[0]
        if _TENSOR.search(kind):
            return given[0] if given else HostBuffer(name, "tensor", tree.line(node))
        return _List(given) if len(given) > 1 else Name(name, "local", None, frame.function)

    def _on_type_definition(self, node: Node, frame: _Frame) -> bool:
        kind = tree.field(node, "type")
        for one in node.children_by_field_name("declarator"):
            if kind is not None:
                frame.templates[declared_name(one)] = self._type(kind, frame)
        return False

    def _on_alias_declaration(self, node: Node, frame: _Frame) -> bool:
        kind = tree.field(node, "type")
        if kind is not None:
            frame.templates[tree.text(tree.field(node, "name"))] = self._type(kind, frame)
        return False

    def _on_if_statement(self, node: Node, frame: _Frame) -> bool:
        clause = tree.field(node, "condition")
        if clause is not None and (first := tree.field(clause, "initializer")) is not None:
            self._statement(first, frame)
        value_node = tree.field(clause, "value") if clause is not None and clause.type == "condition_clause" else clause
        condition = self._condition(value_node, frame)
        then, other = tree.field(node, "consequence"), tree.field(node, "alternative")
        if isinstance(condition, int | float):
            chosen = then if condition else other
            return self._statement(chosen, frame) if chosen is not None else False
        return self._branches([(condition, then), (operation("!", condition), other)], frame)

    def _branches(self, branches: Sequence[tuple[Expr, Node | None]], frame: _Frame) -> bool:
        """Evaluate alternatives, and merge the variables of those that go on."""
        before = dict(frame.variables)
        results: list[tuple[Expr, dict[str, Value]]] = []
        for condition, body in branches:
            frame.variables = dict(before)
            self._conditions.append(condition)
            guards = len(self._guards)
            left = self._statement(body, frame) if body is not None else False
            self._conditions.pop()
            del self._guards[guards:]
            if left:
                self._guards.append(operation("!", condition))
            else:
                results.append((condition, frame.variables))
        frame.variables = self._merged(before, results)
        return not results

    def _merged(self, before: dict[str, Value], results: Sequence[tuple[Expr, dict[str, Value]]]) -> dict[str, Value]:
        if not results:
            return before
        made = dict(results[-1][1])
        for condition, variables in reversed(results[:-1]):
            for name in {**made, **variables}:
                first, second = variables.get(name), made.get(name)
                if first is second or first == second:
                    continue
                made[name] = _merge(condition, first, second)
        return made

    def _on_switch_statement(self, node: Node, frame: _Frame) -> bool:
        clause, body = tree.field(node, "condition"), tree.field(node, "body")
        value = tree.field(clause, "value") if clause is not None else None
        subject = self._expr(value, frame) if value is not None else Name("?", "unknown")
        before, results = dict(frame.variables), []
        pending: list[Expr] = []
        for case in tree.children(body) if body is not None else ():
            if case.type != "case_statement":
                self._statement(case, frame)
                continue
            label = tree.field(case, "value")
            if label is not None:
                pending.append(operation("==", subject, self._expr(label, frame)))
            statements = [one for one in tree.children(case) if one != label]
            if not statements:
                continue
            condition = (
                pending[0]
                if len(pending) == 1
                else Operation("||", tuple(pending))
                if pending
                else Name("default", "unknown")
            )
            pending = []
            if isinstance(condition, int):
                if not condition:
                    continue
            frame.variables = dict(before)
            if not isinstance(condition, int):
                self._conditions.append(condition)
            ended = self._sequence(iter(statements), frame)
            if not isinstance(condition, int):
                self._conditions.pop()
            breaks = any(one.type == "break_statement" for one in tree.walk(case))
            if breaks or not ended:
                results.append((condition, frame.variables))
        results.append((Name("default", "unknown"), before)) if not results else None
        frame.variables = self._merged(before, results)
        return False

    def _on_for_statement(self, node: Node, frame: _Frame) -> bool:
        if (first := tree.field(node, "initializer")) is not None:
            self._statement(first, frame)
        return self._loop(node, frame)

    def _on_while_statement(self, node: Node, frame: _Frame) -> bool:
        return self._loop(node, frame)

    def _on_do_statement(self, node: Node, frame: _Frame) -> bool:
        return self._loop(node, frame)

    def _on_for_range_loop(self, node: Node, frame: _Frame) -> bool:
        name = declared_name(tree.field(node, "declarator"))
        frame.variables[name] = Name(name, "local", None, frame.function)
        return self._loop(node, frame)

    def _loop(self, node: Node, frame: _Frame) -> bool:
        """Evaluate a loop's body once, with the variables that it changes as unknown numbers."""
        for one in tree.walk(node):
            target = None
            if one.type == "assignment_expression":
                target = tree.field(one, "left")
            elif one.type == "update_expression":
                target = tree.field(one, "argument")
            name = tree.text(target)
            if (
                target is not None
                and target.type == "identifier"
                and isinstance(frame.variables.get(name), int | float | Name | Operation)
            ):
                old = frame.variables[name]
                frame.variables[name] = Name(name, "local", number(old), frame.function)
        names = {
            name: value for name, value in frame.variables.items() if isinstance(value, Name) and value.kind == "local"
        }
        body = tree.field(node, "body")
        if body is not None:
            self._statement(body, frame)
        frame.variables |= {
            name: value
            for name, value in names.items()
            if isinstance(frame.variables.get(name), Name | Operation | int)
        }
        return False

    # ---- expressions

    def _expr(self, node: Node | None, frame: _Frame) -> Expr:
        return _as_expr(self._evaluate(node, frame), tree.text(node))

    def _condition(self, node: Node | None, frame: _Frame) -> Expr:
        return self._expr(node, frame)

    def _evaluate(self, node: Node | None, frame: _Frame) -> Value:
        if node is None:
            return None
        self._steps += 1
        if self._steps > _STEPS:
            raise OutOfSteps
        handler = getattr(self, f"_of_{node.type}", None)
        if handler is not None:
            return handler(node, frame)
        return Name(tree.text(node), "unknown")

    def _of_number_literal(self, node: Node, frame: _Frame) -> Value:
        text = tree.text(node)
        value = integer(text)
        if value is not None:
            return value
        try:
            return float(text.rstrip("fFlL"))
        except ValueError:
            return Name(text, "unknown")

    def _of_true(self, node: Node, frame: _Frame) -> Value:
        return 1

    def _of_false(self, node: Node, frame: _Frame) -> Value:
        return 0

    def _of_parenthesized_expression(self, node: Node, frame: _Frame) -> Value:
        return self._evaluate(next(iter(tree.children(node)), None), frame)

    def _of_condition_clause(self, node: Node, frame: _Frame) -> Value:
        return self._evaluate(tree.field(node, "value"), frame)

    def _of_comma_expression(self, node: Node, frame: _Frame) -> Value:
        self._evaluate(tree.field(node, "left"), frame)
        return self._evaluate(tree.field(node, "right"), frame)

    def _of_identifier(self, node: Node, frame: _Frame) -> Value:
        return self._lookup(tree.text(node), frame)

    _of_type_identifier = _of_identifier
    _of_field_identifier = _of_identifier
    _of_namespace_identifier = _of_identifier

    def _of_type_descriptor(self, node: Node, frame: _Frame) -> Value:
        return self._type_or_value(node, frame)

    def _lookup(self, name: str, frame: _Frame) -> Value:
        scope: _Frame | None = frame
        while scope is not None:
            if name in scope.variables:
                return scope.variables[name]
            if name in scope.templates:
                return scope.templates[name]
            if scope.structure is not None and (made := self._member(scope.structure, name)) is not None:
                return made
            scope = scope.parent
        if name in self.program.macros:
            return self._macro(name)
        if name in self.program.constants:
            node = self.program.constants[name]
            value = None if self._depth > _DEEPEST else self._deeper(lambda: self._evaluate(node, _Frame("")))
            if isinstance(value, int | float | Name | Operation):
                return Name(name, "constant", value)
            return value
        if name in self.program.functions:
            return Function_(name)
        if name in self.program.structures or name in self.program.types:
            return self._type_of_name(name, frame)
        return Name(name, "unknown")

    def _deeper(self, action: Callable[[], Value]) -> Value:
        self._depth += 1
        try:
            return action()
        finally:
            self._depth -= 1

    def _macro(self, name: str) -> Value:
        if self._depth > _DEEPEST:
            return Name(name, "macro")
        nodes = tree.expressions(self.program.macros[name].body)
        value = self._deeper(lambda: self._evaluate(nodes[0], _Frame(""))) if len(nodes) == 1 else None
        return Name(name, "macro", value if isinstance(value, int | float | Name | Operation) else None)

    def _of_qualified_identifier(self, node: Node, frame: _Frame) -> Value:
        scope, name = tree.field(node, "scope"), tree.field(node, "name")
        if name is not None and name.type in ("template_function", "qualified_identifier", "template_type"):
            return self._evaluate(name, frame) if name.type != "template_type" else self._type(name, frame)
        word = tree.text(name)
        if scope is not None:
            owner = self._type(scope, frame)
            if isinstance(owner, TypeName):
                made = self._member(owner, word)
                if made is not None:
                    return made
                if owner.name in frame.templates or owner.name not in self.program.structures:
                    known = frame.templates.get(owner.name)
                    if isinstance(known, TypeName) and known.name == owner.name:
                        return Name(f"{owner}::{word}", "template", scope=frame.function)
        return self._lookup(word, frame)

    def _member(self, owner: TypeName, name: str) -> Value:
        """Return a static member or a type member of a structure; None if it has none."""
        structure = self.program.structures.get(owner.name)
        if structure is None or self._depth > _DEEPEST:
            return None
        inner = _Frame(owner.name, structure=owner)
        for at, one in enumerate(structure.template):
            if at < len(owner.arguments):
                inner.templates[one.name] = owner.arguments[at]
            elif one.default is not None:
                default = one.default
                inner.templates[one.name] = self._deeper(
                    lambda d=default, k=one.type: self._type(d, inner) if k == "typename" else self._evaluate(d, inner)  # type: ignore[misc]
                )
            else:
                inner.templates[one.name] = (
                    TypeName(one.name) if one.type == "typename" else Name(one.name, "template", scope=owner.name)
                )
        if name in inner.templates:
            return inner.templates[name]
        if name in structure.members:
            node = structure.members[name]
            value = (
                self._deeper(lambda: self._evaluate(node, inner))
                if node is not None
                else Name(f"{owner}::{name}", "constant")
            )
            return (
                Name(f"{owner.name}::{name}", "constant", value)
                if isinstance(value, int) and not owner.arguments
                else value
            )
        if name in structure.types:
            return self._deeper(lambda: self._type(structure.types[name], inner))
        for base in structure.bases:
            made = self._deeper(lambda b=base: self._member(self._type(b, inner), name))  # type: ignore[misc]
            if made is not None:
                return made
        return None

    def _of_template_function(self, node: Node, frame: _Frame) -> Value:
        name, arguments = tree.text(tree.field(node, "name")), tree.field(node, "arguments")
        return Function_(name.rpartition("::")[2], self._template_arguments(arguments, frame))

    def _of_template_type(self, node: Node, frame: _Frame) -> Value:
        return self._type(node, frame)

    def _template_arguments(self, node: Node | None, frame: _Frame) -> tuple[Value, ...]:
        return tuple(self._type_or_value(one, frame) for one in tree.children(node)) if node is not None else ()

    def _type_or_value(self, node: Node, frame: _Frame) -> Value:
        """Return a template argument: a type, or a number that the grammar may take for a type."""
        if node.type == "type_descriptor":
            kind = tree.field(node, "type")
            marks = "".join(c for c in tree.text(tree.field(node, "declarator")) if c in "*&")
            if kind is None:
                return Name(tree.text(node), "unknown")
            value = self._type_or_value(kind, frame)
            if isinstance(value, TypeName):
                const = "const " if tree.text(node).startswith("const ") else ""
                return TypeName(f"{const}{value}{marks}") if marks or const else value
            return value
        if node.type in ("type_identifier", "identifier"):
            value = self._lookup(tree.text(node), frame)
            return TypeName(value.text) if isinstance(value, Name) and value.kind == "unknown" else value
        if node.type in ("primitive_type", "sized_type_specifier", "template_type"):
            return self._type(node, frame)
        if node.type == "qualified_identifier":
            value = self._evaluate(node, frame)
            if isinstance(value, Name) and value.kind == "unknown":
                return TypeName(tree.text(node))
            return value
        if node.type == "dependent_type":
            return self._type(node, frame)
        return self._evaluate(node, frame)

    def _type(self, node: Node, frame: _Frame) -> Value:
        kind = node.type
        if kind == "type_descriptor":
            return self._type_or_value(node, frame)
        if kind in ("type_identifier", "identifier", "namespace_identifier"):
            return self._type_of_name(tree.text(node), frame)
        if kind == "template_type":
            name = tree.text(tree.field(node, "name"))
            return TypeName(name, self._template_arguments(tree.field(node, "arguments"), frame))
        if kind == "qualified_identifier":
            name_node, scope = tree.field(node, "name"), tree.field(node, "scope")
            owner = self._type(scope, frame) if scope is not None else None
            if isinstance(owner, TypeName) and name_node is not None:
                made = self._member(owner, tree.text(name_node))
                if isinstance(made, TypeName):
                    return made
            if name_node is not None and name_node.type in ("template_type", "qualified_identifier"):
                inner = self._type(name_node, frame)
                return (
                    replace(inner, name=f"{tree.text(scope)}::{inner.name}")
                    if isinstance(inner, TypeName) and inner.name not in self.program.structures
                    else inner
                )
            if name_node is not None and tree.text(name_node) in self.program.structures:
                return TypeName(tree.text(name_node))
            return TypeName(tree.text(node))
        if kind == "dependent_type":
            return self._type(next(iter(tree.children(node))), frame)
        if kind == "decltype":
            value = self._evaluate(next(iter(tree.children(node)), None), frame)
            return TypeName(value.type) if isinstance(value, Pointer) else TypeName(tree.text(node))
        return TypeName(tree.text(node))

    def _type_of_name(self, name: str, frame: _Frame) -> TypeName:
        scope: _Frame | None = frame
        while scope is not None:
            value = scope.templates.get(name)
            if isinstance(value, TypeName):
                return value
            if scope.structure is not None and scope.structure.name != name:
                made = self._member(scope.structure, name)
                if isinstance(made, TypeName):
                    return made
            scope = scope.parent
        if name in self.program.types and name not in self.program.structures and self._depth <= _DEEPEST:
            made = self._deeper(lambda: self._type(self.program.types[name], _Frame("")))
            return made if isinstance(made, TypeName) else TypeName(name)
        return TypeName(name)

    def _type_text(self, written: str, frame: _Frame) -> str:
        """Return the name of a type that is given as text."""
        bare = re.sub(r"\b(?:const|static|constexpr|struct|typename|volatile)\b|__restrict__|&", " ", written)
        bare = " ".join(bare.split())
        if re.fullmatch(r"\w+", bare):
            return str(self._type_of_name(bare, frame))
        if re.fullmatch(r"\w+::\w+", bare):
            made = self._member(self._type_of_name(bare.partition("::")[0], frame), bare.partition("::")[2])
            return str(made) if isinstance(made, TypeName) else bare
        return bare

    def _of_sizeof_expression(self, node: Node, frame: _Frame) -> Value:
        kind, value = tree.field(node, "type"), tree.field(node, "value")
        text = tree.text(kind)
        if kind is None and value is not None:
            inner = value
            while inner.type == "parenthesized_expression":
                inner = next(iter(tree.children(inner)))
            made = self._evaluate(inner, frame)
            if isinstance(made, TypeName):
                text = str(made)
            elif isinstance(made, Pointer) and inner.type in ("pointer_expression", "subscript_expression"):
                text = made.type
            elif inner.type in ("identifier", "type_identifier"):
                text = tree.text(inner)
            elif isinstance(made, Pointer):
                text = made.type
        elif kind is not None:
            made = self._type_or_value(kind, frame)
            text = str(made) if isinstance(made, TypeName) else text
        return self.size_of(text, frame)

    def size_of(self, text: str, frame: _Frame | None = None) -> Expr:
        """Return the size of a type in bytes, or a name such as `sizeof(T)` if it is not known."""
        bare = self._type_text(text, frame) if frame is not None else text
        bare = bare.rpartition("::")[2] if bare.rpartition("::")[2] in SIZES else bare
        if bare.endswith("*"):
            return 8
        known = type_size(bare)
        return (
            known if known is not None else Name(f"sizeof({bare})", "template", scope=frame.function if frame else "")
        )

    def _of_cast_expression(self, node: Node, frame: _Frame) -> Value:
        kind = tree.text(tree.field(node, "type"))
        return self._converted(kind, self._evaluate(tree.field(node, "value"), frame), frame)

    def _converted(self, kind: str, value: Value, frame: _Frame) -> Value:
        bare = self._type_text(kind, frame)
        if isinstance(value, Pointer) and "*" in kind:
            base = self._type_text(kind.replace("*", " "), frame)
            return value if base in ("void", "") or kind.count("*") > 1 else replace(value, type=base)
        if bare in _REAL_TYPES and isinstance(value, int | float | Name | Operation):
            return operation("real", value) if not isinstance(value, int) else float(value)
        if isinstance(value, int | float | Name | Operation) and "*" not in kind:
            return whole(value)
        return value

    def _of_binary_expression(self, node: Node, frame: _Frame) -> Value:
        symbol = tree.text(tree.field(node, "operator"))
        left, right = self._evaluate(tree.field(node, "left"), frame), self._evaluate(tree.field(node, "right"), frame)
        return self._binary(symbol, left, right, node)

    def _binary(self, symbol: str, left: Value, right: Value, node: Node) -> Value:
        if isinstance(left, Pointer) and symbol in "+-" and isinstance(right, int | Name | Operation):
            return replace(left, offset=operation(symbol, left.offset, right))
        if isinstance(left, HostBuffer | Pointer | TypeName | Function_) and symbol in ("==", "!=", "&&", "||"):
            return Operation(symbol, (_as_expr(left), _as_expr(right)))
        return operation(
            symbol,
            _as_expr(left, tree.text(tree.field(node, "left"))),
            _as_expr(right, tree.text(tree.field(node, "right"))),
        )

    def _of_unary_expression(self, node: Node, frame: _Frame) -> Value:
        symbol = tree.text(tree.field(node, "operator"))
        return operation({"not": "!"}.get(symbol, symbol), self._expr(tree.field(node, "argument"), frame))

    def _of_conditional_expression(self, node: Node, frame: _Frame) -> Value:
        condition = self._condition(tree.field(node, "condition"), frame)
        first = self._evaluate(tree.field(node, "consequence"), frame)
        second = self._evaluate(tree.field(node, "alternative"), frame)
        if isinstance(condition, int | float):
            return first if condition else second
        return _merge(condition, first, second)

    def _of_pointer_expression(self, node: Node, frame: _Frame) -> Value:
        argument = tree.field(node, "argument")
        if tree.text(tree.field(node, "operator")) == "&":
            if argument is not None and argument.type == "identifier":
                name = tree.text(argument)
                value = self._lookup(name, frame)
                return value if isinstance(value, Function_) else _Reference(_owner(frame, name), name)
            if argument is not None and argument.type == "field_expression":
                return _Reference(frame, self._path(argument))
            return self._evaluate(argument, frame)
        value = self._evaluate(argument, frame)
        if isinstance(value, _Reference):
            return value.frame.variables.get(value.name)
        return value

    def _path(self, node: Node) -> str:
        return tree.text(node).replace("->", ".").replace(" ", "").removeprefix("this.")

    def _of_subscript_expression(self, node: Node, frame: _Frame) -> Value:
        if (known := frame.variables.get(self._path(node))) is not None:
            return known
        base = self._evaluate(tree.field(node, "argument"), frame)
        indices = tree.field(node, "indices")
        index = [self._evaluate(one, frame) for one in tree.children(indices)] if indices is not None else []
        if isinstance(base, _Sizes) and len(index) == 1 and isinstance(number(index[0]), int):
            return self._extent(base.buffer, number(index[0]) or 0)
        if isinstance(base, _List) and len(index) == 1 and isinstance(index[0], int | Name):
            at = number(index[0])
            return base.items[at] if at is not None and -1 < at < len(base.items) else Name(tree.text(node), "unknown")
        if isinstance(base, HostBuffer | Pointer):
            return base
        return Name(tree.text(node), "unknown")

    def _of_field_expression(self, node: Node, frame: _Frame) -> Value:
        path = self._path(node)
        scope: _Frame | None = frame
        while scope is not None:
            if path in scope.variables:
                return scope.variables[path]
            scope = scope.parent
        base = self._evaluate(tree.field(node, "argument"), frame)
        word = tree.text(tree.field(node, "field"))
        if isinstance(base, Dim3) and word in ("x", "y", "z"):
            return getattr(base, word)
        if isinstance(base, Name) and base.kind in ("parameter", "local", "unknown"):
            return Name(f"{base.text}.{word}", "parameter" if base.kind == "parameter" else "unknown", scope=base.scope)
        if tree.text(tree.field(node, "argument")) == "this":
            return self._lookup(word, frame)
        return Name(path, "unknown")

    def _of_assignment_expression(self, node: Node, frame: _Frame) -> Value:
        left, symbol = tree.field(node, "left"), tree.text(tree.field(node, "operator"))
        value = self._evaluate(tree.field(node, "right"), frame)
        if left is None:
            return value
        if symbol != "=":
            value = self._binary(symbol.removesuffix("="), self._evaluate(left, frame), value, node)
        self._assign(left, value, frame)
        return value

    def _assign(self, left: Node, value: Value, frame: _Frame) -> None:
        if left.type == "identifier":
            name = tree.text(left)
            owner = _owner(frame, name)
            old = owner.variables.get(name)
            if isinstance(value, _List) and isinstance(old, Dim3):
                value = self._dim3(value.items)
            if isinstance(value, HostBuffer) and value.kind != "tensor" and isinstance(old, HostBuffer):
                value.name = value.name or name
            kind = (
                "dim3"
                if isinstance(old, Dim3)
                else "double"
                if isinstance(old, Operation) and old.operator.startswith("real")
                else "int"
            )
            if isinstance(value, Pointer) and isinstance(old, Pointer) and old.type:
                value = replace(value, type=old.type)
            owner.variables[name] = self._named(name, value, kind, owner) if not isinstance(value, Dim3) else value
        elif left.type == "field_expression":
            base, word = tree.field(left, "argument"), tree.text(tree.field(left, "field"))
            name = tree.text(base)
            owner = _owner(frame, name)
            if isinstance(owner.variables.get(name), Dim3) and word in ("x", "y", "z"):
                owner.variables[name] = replace(owner.variables[name], **{word: _as_expr(value)})
            else:
                owner.variables[self._path(left)] = value
        elif left.type == "pointer_expression":
            target = self._evaluate(tree.field(left, "argument"), frame)
            target = (
                target
                if isinstance(target, _Reference)
                else frame.variables.get(tree.text(tree.field(left, "argument")))
            )
            if isinstance(target, _Reference):
                target.frame.variables[target.name] = value
        elif left.type == "subscript_expression":
            base = self._evaluate(tree.field(left, "argument"), frame)
            if isinstance(base, _List):
                frame.variables[self._path(left)] = value

    def _of_update_expression(self, node: Node, frame: _Frame) -> Value:
        argument = tree.field(node, "argument")
        if argument is not None and argument.type == "identifier":
            old = self._evaluate(argument, frame)
            symbol = "+" if "++" in tree.text(node) else "-"
            if isinstance(old, int | Name | Operation):
                self._assign(argument, operation(symbol, old, 1), frame)
            return old
        return None

    def _of_initializer_list(self, node: Node, frame: _Frame) -> Value:
        return _List([self._evaluate(one, frame) for one in tree.children(node)])

    def _of_compound_literal_expression(self, node: Node, frame: _Frame) -> Value:
        kind = tree.text(tree.field(node, "type"))
        value = self._evaluate(tree.field(node, "value"), frame)
        if kind == "dim3" and isinstance(value, _List):
            return self._dim3(value.items)
        if isinstance(value, _List) and len(value.items) == 1 and kind:
            return self._converted(kind, value.items[0], frame)
        return value

    def _of_lambda_expression(self, node: Node, frame: _Frame) -> Value:
        return _Closure(node, frame)

    def _of_new_expression(self, node: Node, frame: _Frame) -> Value:
        kind = self._type_text(tree.text(tree.field(node, "type")), frame)
        length = next((tree.field(c, "length") for c in tree.children(node) if c.type == "new_declarator"), None)
        elements = self._expr(length, frame) if length is not None else None
        return Pointer(HostBuffer("", "host", tree.line(node), elements=elements, dtype=kind), kind)

    def _dim3(self, given: Sequence[Value]) -> Dim3:
        if len(given) == 1 and isinstance(given[0], Dim3):
            return given[0]
        if len(given) == 1 and isinstance(given[0], _List):
            given = given[0].items
        return Dim3(*(whole(_as_expr(one)) for one in given[:3]))

    # ---- calls

    def _of_call_expression(self, node: Node, frame: _Frame) -> Value:
        syntax = next((c for c in tree.children(node) if c.type == "kernel_call_syntax"), None)
        function = tree.field(node, "function")
        arguments = tree.field(node, "arguments")
        nodes = [one for one in tree.children(arguments)] if arguments is not None else []
        if syntax is not None:
            return self._kernel_call(node, function, syntax, nodes, frame)
        if function is None:
            return None
        if (
            function.type in ("template_function", "qualified_identifier")
            and function.type == "template_function"
            and tree.text(tree.field(function, "name")) in _KEPT
        ):
            inner = tree.field(function, "arguments")
            value = self._evaluate(nodes[0], frame) if nodes else None
            return self._converted(tree.text(inner)[1:-1], value, frame)
        if function.type == "primitive_type" or function.type == "sized_type_specifier":
            return self._converted(tree.text(function), self._evaluate(nodes[0], frame) if nodes else 0, frame)
        if function.type == "field_expression":
            return self._method(function, nodes, node, frame)
        name = tree.text(function)
        target = (
            self._evaluate(function, frame) if function.type != "call_expression" else self._evaluate(function, frame)
        )
        return self._call(name, target, nodes, node, frame)

    def _call(self, name: str, target: Value, nodes: list[Node], node: Node, frame: _Frame) -> Value:
        bare = re.sub(r"<.*", "", name).rpartition("::")[2]
        if bare in ("CHECK", "assert") and len(nodes) == 1 and nodes[0].type == "call_expression":
            pass
        elif _CHECKS.fullmatch(bare) and nodes:
            self._check(bare, nodes, frame)
            return None
        given = [self._evaluate(one, frame) for one in nodes]
        if isinstance(target, _Closure):
            return self._call_closure(target, given, nodes, frame)
        if isinstance(target, TypeName) and len(given) <= 1:
            return self._converted(str(target), given[0] if given else 0, frame) if given else 0
        known = _known_call(bare, given)
        function = self._function(bare, len(given))
        if known is not None and (function is None or bare.lower() in _CEIL_DIV):
            return known
        if bare in ("dim3", "make_uint3"):
            return self._dim3(given)
        effect = self._runtime(bare, given, nodes, node, frame)
        if effect is not _NOTHING:
            return effect
        if bare.startswith(("AT_DISPATCH", "AT_PRIVATE_CASE")) or (
            "DISPATCH" in bare.upper() and any(isinstance(one, _Closure) for one in given)
        ):
            return self._dispatch(name, given, nodes, frame)
        if function is not None and not function.kernel and function not in self._busy and len(self._busy) < _DEEPEST:
            template = target.template if isinstance(target, Function_) else ()
            if function.structure in self.program.structures or True:
                return self._call_function(function, given, template, nodes, frame)
        for one in given:
            if isinstance(one, _Closure):
                self._call_closure(one, [], [], frame)
        made = _tensor_call(bare, name, given, node)
        if made is not None:
            return made
        return Operation(f"call {name}", tuple(_as_expr(one) for one in given))

    def _function(self, name: str, count: int) -> Function | None:
        """Return the function with a name that takes a number of arguments."""
        for one in self.program.functions.get(name, ()):
            least = sum(1 for p in one.parameters if p.default is None)
            if least <= count <= len(one.parameters):
                return one
        return None

    def _call_closure(self, closure: _Closure, given: Sequence[Value], nodes: Sequence[Node], caller: _Frame) -> Value:
        if self._depth > _DEEPEST:
            return None
        frame = _Frame(closure.frame.function, parent=closure.frame, given=closure.frame.given)
        declarator = tree.field(closure.node, "declarator")
        listed = tree.field(declarator, "parameters") if declarator is not None else None
        for at, one in enumerate(function_parameters(listed)):
            frame.variables[one.name] = given[at] if at < len(given) else self._parameter(one, frame)
        body = tree.field(closure.node, "body")
        if body is not None:
            depth = len(self._guards)
            self._deeper(lambda: self._block(body, frame))
            del self._guards[depth:]
        return _result(frame)

    def _dispatch(self, name: str, given: Sequence[Value], nodes: Sequence[Node], frame: _Frame) -> Value:
        """Evaluate the lambda functions that a dispatch macro calls for one of several types."""
        types = next((list(types) for key, types in _DISPATCH.items() if key in name), [])
        text = " ".join(
            tree.text(one) for one, value in zip(nodes, given, strict=True) if not isinstance(value, _Closure)
        )
        named = re.findall(r"(?:ScalarType::|\bk)(\w+)", text) + re.findall(r"(?<=_)(HALF|BFLOAT16)", name)
        types += [
            _TORCH_TYPES[{"HALF": "Half", "BFLOAT16": "BFloat16"}.get(one, one)]
            for one in named
            if {"HALF": "Half", "BFLOAT16": "BFloat16"}.get(one, one) in _TORCH_TYPES
        ]
        for one in given:
            if isinstance(one, _Closure):
                self._types = {**self._types, "scalar_t": tuple(dict.fromkeys(types or ["float"]))}
                one.frame.templates.setdefault("scalar_t", TypeName("scalar_t"))
                self._call_closure(one, [], [], frame)
        return None

    def _check(self, name: str, nodes: list[Node], frame: _Frame) -> None:
        symbol = {"EQ": "==", "NE": "!=", "LT": "<", "GT": ">", "LE": "<=", "GE": ">="}.get(name.rpartition("_")[2])
        if symbol and len(nodes) > 1:
            self._checks.append(operation(symbol, self._expr(nodes[0], frame), self._expr(nodes[1], frame)))
            return
        for part in _conjuncts(nodes[0]):
            value = self._expr(part, frame)
            if isinstance(value, Name | Operation):
                self._learn(value)
                self._checks.append(value)

    def _learn(self, check: Expr) -> None:
        """Note the number of dimensions that a check states."""
        if isinstance(check, Operation) and check.operator == "==" and isinstance(check.operands[0], Name):
            name, count = check.operands[0].text, number(check.operands[1])
            owner = self._ranks.get(name)
            if owner is not None and count is not None and owner.shape is None and 0 <= count <= 8:
                owner.shape = tuple(self._extent(owner, axis) for axis in range(count))

    @property
    def _ranks(self) -> dict[str, HostBuffer]:
        if not hasattr(self, "_rank_owners"):
            self._rank_owners: dict[str, HostBuffer] = {}
        return self._rank_owners

    def _extent(self, buffer: HostBuffer, axis: int) -> Expr:
        if buffer.shape is not None and -len(buffer.shape) <= axis < len(buffer.shape):
            return buffer.shape[axis]
        text = f"{buffer.name}.size({axis})"
        self._extents[text] = buffer
        return Name(text, "extent")

    def _method(self, function: Node, nodes: list[Node], node: Node, frame: _Frame) -> Value:
        word_node = tree.field(function, "field")
        word = re.sub(r"^template ", "", tree.text(word_node))
        word, _, template = word.partition("<")
        word = word.strip()
        base_node = tree.field(function, "argument")
        base = self._evaluate(base_node, frame)
        given = [self._evaluate(one, frame) for one in nodes]
        if isinstance(base, HostBuffer):
            made = self._buffer_method(base, word, template.rstrip("> "), given, node, frame)
            if made is not _NOTHING:
                return made
        if isinstance(base, Pointer) and word in ("data", "get", "data_ptr"):
            return base
        if isinstance(base, _List) and word == "size":
            return len(base.items)
        if isinstance(base, _Sizes) and word == "size":
            return self._rank(base.buffer)
        for one in given:
            if isinstance(one, _Closure):
                self._call_closure(one, [], [], frame)
        candidates = [f for f in self.program.functions.get(word, ()) if f.structure and "<<<" in f.words]
        target = candidates[0] if len(candidates) == 1 else None
        if target is not None and target not in self._busy and len(self._busy) < _DEEPEST:
            return self._call_function(target, given, (), nodes, frame)
        return Name(tree.text(node), "unknown")

    def _rank(self, buffer: HostBuffer) -> Expr:
        if buffer.shape is not None:
            return len(buffer.shape)
        self._ranks[f"{buffer.name}.dim()"] = buffer
        return Name(f"{buffer.name}.dim()", "extent")

    def _buffer_method(
        self, buffer: HostBuffer, word: str, template: str, given: list[Value], node: Node, frame: _Frame
    ) -> Value:
        if word in ("size", "length") and given and isinstance(number(given[0]), int):
            return self._extent(buffer, number(given[0]) or 0)
        if word in ("dim", "ndimension"):
            return self._rank(buffer)
        if word in ("sizes", "shape", "size") and buffer.kind == "tensor":
            return _Sizes(buffer)
        if word in ("size", "length", "count", "num_elements"):
            return buffer.elements if buffer.elements is not None else Name(f"{buffer.name}.size()", "unknown")
        if word in ("numel", "nelement"):
            if buffer.shape is not None:
                total: Expr = 1
                for one in buffer.shape:
                    total = operation("*", total, one)
                return total
            return Name(f"{buffer.name}.numel()", "extent")
        if word == "stride":
            return Name(f"{buffer.name}.stride({', '.join(map(text_of, map(_as_expr, given)))})", "extent")
        if word in ("scalar_type", "dtype", "type"):
            return Name(f"{buffer.name}.dtype", "unknown")
        if word in ("data_ptr", "data", "mutable_data_ptr", "const_data_ptr", "get") or word.startswith(
            "packed_accessor"
        ):
            kind = self._type_text(template.partition(",")[0], frame) if template else buffer.dtype
            return Pointer(buffer, kind)
        if word in ("resize", "assign", "reserve") and given and buffer.kind != "tensor":
            buffer.elements = _as_expr(given[0])
            return None
        if word in ("zero_", "zeros_"):
            buffer.zeroed = True
        if word in ("view", "reshape", "view_as", "flatten", "expand") and buffer.kind == "tensor":
            shape = given[0].items if len(given) == 1 and isinstance(given[0], _List) else given
            exprs = tuple(_as_expr(one) for one in shape)
            if word in ("view", "reshape") and -1 not in exprs and exprs:
                return replace_buffer(buffer, shape=exprs)
            return replace_buffer(buffer, shape=None)
        if word in ("transpose", "permute", "t", "unsqueeze", "squeeze", "select", "slice", "narrow", "index_select"):
            return replace_buffer(buffer, shape=None, name=f"{buffer.name}.{word}")
        if word in _SAME_TENSOR:
            return buffer
        if word in ("new_empty", "new_zeros", "new_full", "new_ones") and given and isinstance(given[0], _List):
            return HostBuffer(
                "",
                "tensor",
                tree.line(node),
                shape=tuple(map(_as_expr, given[0].items)),
                dtype=buffer.dtype,
                zeroed=word == "new_zeros",
            )
        return _NOTHING

    def _runtime(self, name: str, given: list[Value], nodes: list[Node], node: Node, frame: _Frame) -> Value:
        """Evaluate a call of the CUDA runtime or of the C library."""
        if name.startswith("cudaMalloc") and len(given) > 1 and isinstance(given[0], _Reference):
            reference = given[0]
            old = reference.frame.variables.get(reference.name)
            kind = old.type if isinstance(old, Pointer) else ""
            size = given[1] if name not in ("cudaMallocPitch",) else None
            buffer = HostBuffer(reference.name.rpartition(".")[2], "host" if name == "cudaMallocHost" else "allocation", tree.line(node),
                                bytes=_as_expr(size) if size is not None else None, dtype=kind)  # fmt: skip
            reference.frame.variables[reference.name] = Pointer(buffer, kind)
            return None
        if name in ("malloc", "calloc", "aligned_alloc"):
            size = (
                given[-1]
                if name != "calloc" or len(given) < 2
                else operation("*", _as_expr(given[0]), _as_expr(given[1]))
            )
            return Pointer(HostBuffer("", "host", tree.line(node), bytes=_as_expr(size)), "")
        if name.startswith("cudaMemcpy") and len(given) > 2:
            kind = " ".join(tree.text(one) for one in nodes[3:])
            if "HostToDevice" in kind and isinstance(given[0], Pointer):
                given[0].buffer.copied_in = True
            if "DeviceToHost" in kind and isinstance(given[1], Pointer):
                given[1].buffer.copied_out = True
            return None
        if name.startswith("cudaMemset") and len(given) > 1:
            if isinstance(given[0], Pointer) and number(given[1]) == 0:
                given[0].buffer.zeroed = True
            return None
        if name in ("cudaLaunchKernel", "cudaLaunchCooperativeKernel") and len(given) > 3:
            self._record(given[0], [given[1], given[2], *given[4:5]], _argument_list(given[3]), node, frame)
            return None
        if name.startswith("cudaLaunchKernelEx") and len(given) > 1 and isinstance(given[0], _Reference):
            config, variables = given[0].name, given[0].frame.variables
            setting = [variables.get(f"{config}.{part}") for part in ("gridDim", "blockDim", "dynamicSmemBytes")]
            rest = given[2:] if not name.endswith("ExC") else _argument_list(given[2])
            self._record(given[1], [s for s in setting if s is not None], rest, node, frame)
            return None
        if name in ("raw_pointer_cast", "move", "forward", "ref", "ptr", "to_string", "abs") and len(given) == 1:
            return given[0]
        if name in ("atoi", "atol", "strtol", "stoi", "atoll", "stol", "stoll"):
            return Operation(f"call {name}", ())
        return _NOTHING

    def _kernel_call(self, node: Node, function: Node | None, syntax: Node, nodes: list[Node], frame: _Frame) -> Value:
        lost = next((c for c in node.children if c.type == "ERROR"), None)
        if function is not None and function.type == "call_expression" and lost is not None:
            self._evaluate(function, frame)
            function = next(iter(tree.children(lost)), function)
        setting = [self._evaluate(one, frame) for one in tree.children(syntax)]
        self._record(
            self._evaluate(function, frame), setting, [self._evaluate(one, frame) for one in nodes], node, frame
        )
        return None

    def _record(
        self, target: Value, setting: list[Value], arguments: Sequence[Value], node: Node, frame: _Frame
    ) -> None:
        if isinstance(target, Name):
            target = Function_(target.text)
        if isinstance(target, TypeName):
            target = Function_(target.name, target.arguments)
        if not isinstance(target, Function_) or not setting:
            return
        extents = [
            one if isinstance(one, Dim3) else self._dim3(one.items if isinstance(one, _List) else [one])
            for one in setting[:2]
        ]
        extents += [Dim3()] * (2 - len(extents))
        name = target.name.rpartition("::")[2]
        kernel = next(
            (f for f in self.program.functions.get(name, ()) if f.kernel and len(f.parameters) == len(arguments)), None
        )
        template = list(target.template)
        if kernel is not None:
            for one in kernel.template[len(template) :]:
                made = self._deduced(one.name, kernel.parameters, arguments)
                if made is None:
                    break
                template.append(made)
        shared = whole(_as_expr(setting[2])) if len(setting) > 2 else 0
        self.launches.append(HostLaunch(
            kernel=name, template=tuple(template), grid=extents[0], block=extents[1],
            shared=0 if isinstance(shared, Name) and shared.text in ("nullptr", "NULL") else shared,
            cluster=_cluster(frame), arguments=tuple(arguments), function=self._owner_name(frame), root=self.root.name,
            line=tree.line(node), file=self._file, conditions=tuple(self._conditions),
            requirements=(*self._checks, *self._guards), bindings=self._bindings(frame), given=dict(frame.given),
            types=dict(self._types),
        ))  # fmt: skip

    def _owner_name(self, frame: _Frame) -> str:
        while frame.parent is not None:
            frame = frame.parent
        return frame.function

    def _bindings(self, frame: _Frame) -> dict[str, Any]:
        while frame.parent is not None:
            frame = frame.parent
        found: dict[str, Any] = {}
        for name, value in frame.templates.items():
            found[name] = value
            if isinstance(value, TypeName) and (structure := self.program.structures.get(value.name)):
                found |= {p.name: v for p, v in zip(structure.template, value.arguments, strict=False)}
        return found


_NOTHING = object()


@dataclass
class _Sizes:
    buffer: HostBuffer


def type_size(name: str) -> int | None:
    """Return the size of a type in bytes; None if it is not known."""
    if name in SIZES:
        return SIZES[name]
    if match := _VECTOR.fullmatch(name):
        base = {"long": 8, "longlong": 8}.get(match[2]) or SIZES[match[2]]
        return base * (4 if match[3] == "3" and False else int(match[3]))
    return None


def base_real(kind: str) -> bool:
    """Return whether a type is a floating-point type."""
    return kind.removeprefix("const ").strip() in _REAL_TYPES


def replace_buffer(buffer: HostBuffer, **changes: Any) -> HostBuffer:
    """Return another view of a tensor."""
    return replace(buffer, **changes)


def _type_name(text: str) -> TypeName:
    return TypeName(text)


def _conjuncts(node: Node) -> Iterator[Node]:
    if node.type == "parenthesized_expression":
        for child in tree.children(node):
            yield from _conjuncts(child)
    elif node.type == "binary_expression" and tree.text(tree.field(node, "operator")) in ("&&", "and"):
        for side in ("left", "right"):
            if (child := tree.field(node, side)) is not None:
                yield from _conjuncts(child)
    else:
        yield node


def _result(frame: _Frame) -> Value:
    """Return the value that a function returns, as a choice between the values of its return statements."""
    if not frame.returned:
        return None
    shared = min(len(conditions) for conditions, _ in frame.returned)
    made = frame.returned[-1][1]
    for conditions, value in reversed(frame.returned[:-1]):
        own = conditions[shared:] or conditions[-1:]
        if not own:
            made = value
            continue
        condition = own[0]
        for one in own[1:]:
            condition = operation("&&", condition, one)
        made = _merge(condition, value, made)
    return made


def _merge(condition: Expr, first: Value, second: Value) -> Value:
    """Return the value of a variable that two branches set differently."""
    if isinstance(first, Dim3) and isinstance(second, Dim3):
        return Dim3(*(operation("?:", condition, a, b) for a, b in
                      zip((first.x, first.y, first.z), (second.x, second.y, second.z), strict=True)))  # fmt: skip
    if isinstance(first, int | float | Name | Operation) and isinstance(second, int | float | Name | Operation):
        return operation("?:", condition, first, second)
    return first if first is not None else second


def _owner(frame: _Frame, name: str) -> _Frame:
    """Return the frame that declares a variable."""
    scope: _Frame | None = frame
    while scope is not None:
        if name in scope.variables:
            return scope
        scope = scope.parent
    return frame


def _as_expr(value: Value, text: str = "") -> Expr:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float | Name | Operation):
        return value
    if isinstance(value, _List) and len(value.items) == 1:
        return _as_expr(value.items[0], text)
    if isinstance(value, Pointer):
        return Name(value.buffer.name, "unknown")
    if isinstance(value, HostBuffer):
        return Name(value.name, "unknown")
    if isinstance(value, Dim3):
        return value.x
    if isinstance(value, TypeName):
        return Name(str(value), "unknown")
    return Name(text or "?", "unknown")


def _opaque(value: Operation) -> bool:
    """Return whether an expression contains something that cannot be computed."""
    for one in value.operands:
        if isinstance(one, Name) and one.kind == "unknown":
            return True
        if isinstance(one, Operation) and _opaque(one):
            return True
    return value.operator.startswith(("call ", "real +", "real -", "real *"))


def _literal_in(value: Expr) -> int | None:
    """Return the number that one branch of a choice gives, such as the default of a program's argument."""
    if isinstance(value, Operation) and value.operator == "?:":
        for one in value.operands[1:]:
            if (made := number(one)) is not None:
                return made
            if (made := _literal_in(one)) is not None:
                return made
    return None


def _argument_list(value: Value) -> list[Value]:
    """Return the arguments in the array that `cudaLaunchKernel` takes."""
    items = value.items if isinstance(value, _List) else []
    return [one.frame.variables.get(one.name) if isinstance(one, _Reference) else one for one in items]


def _cluster(frame: _Frame) -> Dim3 | None:
    scope: _Frame | None = frame
    while scope is not None:
        found = {
            path[-1]: _as_expr(value)
            for path, value in scope.variables.items()
            if re.search(r"clusterDim\.[xyz]$", path)
        }
        if found:
            return Dim3(**found)
        scope = scope.parent
    return None


def _known_call(name: str, given: Sequence[Value]) -> Value:
    """Return the value of a call of a function of the standard library or of a common helper; None for others."""
    values = given[0].items if len(given) == 1 and isinstance(given[0], _List) else given
    if not all(isinstance(one, int | float | Name | Operation) for one in values):
        return None
    if name in ("min", "max", "fmin", "fmax", "Min", "Max", "MIN", "MAX") and len(values) >= 2:
        total = values[0]
        for one in values[1:]:
            total = operation(name.lower().removeprefix("f"), total, one)
        return total
    if len(values) == 2 and name.lower() in _CEIL_DIV:
        return operation("ceil_div", whole(values[0]), whole(values[1]))
    if len(values) == 1 and name in ("ceil", "ceilf"):
        return whole(values[0], up=True)
    if len(values) == 1 and name in ("floor", "floorf", "trunc", "int64_t", "int32_t", "uint32_t", "size_t", "uint",
                                     "uint64_t", "round", "lround"):  # fmt: skip
        return whole(values[0])
    return None


def _tensor_call(name: str, written: str, given: Sequence[Value], node: Node) -> Value:
    """Return the tensor that a call such as `torch::empty({M, N}, x.options())` creates; None for other calls."""
    if not re.match(r"(?:torch|at)::", written):
        return None
    kind = re.search(r"\bk([A-Z]\w+)", " ".join(tree.text(c) for c in tree.children(node)))
    like = next((one for one in given if isinstance(one, HostBuffer)), None)
    dtype = _TORCH_TYPES.get(kind[1], "") if kind else ""
    if name.endswith("_like") and like is not None:
        return replace_buffer(
            like, name="", line=tree.line(node), zeroed=name == "zeros_like", dtype=dtype or like.dtype, labels={}
        )
    if name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint") and given:
        shape = given[0]
        extents = tuple(map(_as_expr, shape.items)) if isinstance(shape, _List) else None
        if isinstance(shape, _Sizes):
            extents = shape.buffer.shape
        if isinstance(shape, int | Name | Operation):
            extents = (shape,)
        return HostBuffer("", "tensor", tree.line(node), shape=extents, dtype=dtype, zeroed=name == "zeros")
    return None
