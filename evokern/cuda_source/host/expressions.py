"""Expressions of host code."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from evokern.cuda_source.c_types import type_size
from evokern.cuda_source.host import tree
from evokern.cuda_source.host.frames import (
    STEPS,
    Closure,
    Frame,
    FunctionValue,
    HostBuffer,
    ListValue,
    Pointer,
    Sizes,
    StepsError,
    Value,
    VariableReference,
    as_expr,
    merge,
    owner_of,
)
from evokern.cuda_source.host.known_functions import REAL_TYPES
from evokern.cuda_source.host.tree import Node
from evokern.cuda_source.host.types import TypeEvaluator
from evokern.cuda_source.host.values import Arithmetic, Dim3, Expr, Name, TypeName, number, operation, whole
from evokern.cuda_source.preprocessor import integer


class ExpressionEvaluator(TypeEvaluator):
    """Evaluator of expressions."""

    @abstractmethod
    def _named(self, name: str, value: Value, kind: str, frame: Frame) -> Value: ...

    @abstractmethod
    def _extent(self, buffer: HostBuffer, axis: int) -> Expr: ...

    # ---- expressions

    def _expr(self, node: Node | None, frame: Frame) -> Expr:
        return as_expr(self._evaluate(node, frame), tree.text(node))

    def _evaluate(self, node: Node | None, frame: Frame) -> Value:
        if node is None:
            return None
        self._steps += 1
        if self._steps > STEPS:
            raise StepsError
        handler = getattr(self, f"_of_{node.type}", None)
        if handler is not None:
            return handler(node, frame)
        return Name(tree.text(node), "unknown")

    def _of_number_literal(self, node: Node, frame: Frame) -> Value:
        text = tree.text(node)
        value = integer(text)
        if value is not None:
            return value
        try:
            return float(text.rstrip("fFlL"))
        except ValueError:
            return Name(text, "unknown")

    def _of_true(self, node: Node, frame: Frame) -> Value:
        return 1

    def _of_false(self, node: Node, frame: Frame) -> Value:
        return 0

    def _of_parenthesized_expression(self, node: Node, frame: Frame) -> Value:
        return self._evaluate(next(iter(tree.children(node)), None), frame)

    def _of_condition_clause(self, node: Node, frame: Frame) -> Value:
        return self._evaluate(tree.field(node, "value"), frame)

    def _of_comma_expression(self, node: Node, frame: Frame) -> Value:
        self._evaluate(tree.field(node, "left"), frame)
        return self._evaluate(tree.field(node, "right"), frame)

    def _of_identifier(self, node: Node, frame: Frame) -> Value:
        return self._lookup(tree.text(node), frame)

    _of_type_identifier = _of_identifier
    _of_field_identifier = _of_identifier
    _of_namespace_identifier = _of_identifier

    _of_type_descriptor = TypeEvaluator._type_or_value

    def _of_sizeof_expression(self, node: Node, frame: Frame) -> Value:
        kind, value = tree.field(node, "type"), tree.field(node, "value")
        text = tree.text(kind)
        if kind is None and value is not None:
            inner = value
            while inner.type == "parenthesized_expression":
                inner = next(iter(tree.children(inner)))
            made = self._evaluate(inner, frame)
            if isinstance(made, TypeName):
                text = str(made)
            elif inner.type in ("identifier", "type_identifier"):
                text = tree.text(inner)
            elif isinstance(made, Pointer):
                text = made.type
        elif kind is not None:
            made = self._type_or_value(kind, frame)
            text = str(made) if isinstance(made, TypeName) else text
        bare = self._type_text(text, frame)
        known = 8 if bare.endswith("*") else type_size(bare.rpartition("::")[2])
        return known if known is not None else Name(f"sizeof({bare})", "template", scope=frame.function)

    def _of_cast_expression(self, node: Node, frame: Frame) -> Value:
        kind = tree.text(tree.field(node, "type"))
        return self._converted(kind, self._evaluate(tree.field(node, "value"), frame), frame)

    def _converted(self, kind: str, value: Value, frame: Frame) -> Value:
        bare = self._type_text(kind, frame)
        if isinstance(value, Pointer) and "*" in kind:
            base = self._type_text(kind.replace("*", " "), frame)
            return value if base in ("void", "") or kind.count("*") > 1 else replace(value, type=base)
        if bare in REAL_TYPES and isinstance(value, int | float | Name | Arithmetic):
            return operation("real", value) if not isinstance(value, int) else float(value)
        if isinstance(value, int | float | Name | Arithmetic) and "*" not in kind:
            return whole(value)
        return value

    def _of_binary_expression(self, node: Node, frame: Frame) -> Value:
        symbol = tree.text(tree.field(node, "operator"))
        left, right = self._evaluate(tree.field(node, "left"), frame), self._evaluate(tree.field(node, "right"), frame)
        return self._binary(symbol, left, right, node)

    def _binary(self, symbol: str, left: Value, right: Value, node: Node) -> Value:
        if isinstance(left, Pointer) and symbol in "+-" and isinstance(right, int | Name | Arithmetic):
            return replace(left, offset=operation(symbol, left.offset, right))
        if isinstance(left, HostBuffer | Pointer | TypeName | FunctionValue) and symbol in ("==", "!=", "&&", "||"):
            return Arithmetic(symbol, (as_expr(left), as_expr(right)))
        return operation(
            symbol,
            as_expr(left, tree.text(tree.field(node, "left"))),
            as_expr(right, tree.text(tree.field(node, "right"))),
        )

    def _of_unary_expression(self, node: Node, frame: Frame) -> Value:
        symbol = tree.text(tree.field(node, "operator"))
        return operation({"not": "!"}.get(symbol, symbol), self._expr(tree.field(node, "argument"), frame))

    def _of_conditional_expression(self, node: Node, frame: Frame) -> Value:
        condition = self._expr(tree.field(node, "condition"), frame)
        first = self._evaluate(tree.field(node, "consequence"), frame)
        second = self._evaluate(tree.field(node, "alternative"), frame)
        if isinstance(condition, int | float):
            return first if condition else second
        return merge(condition, first, second)

    def _of_pointer_expression(self, node: Node, frame: Frame) -> Value:
        argument = tree.field(node, "argument")
        if tree.text(tree.field(node, "operator")) == "&":
            if argument is not None and argument.type == "identifier":
                name = tree.text(argument)
                value = self._lookup(name, frame)
                return value if isinstance(value, FunctionValue) else VariableReference(owner_of(frame, name), name)
            if argument is not None and argument.type == "field_expression":
                return VariableReference(frame, self._path(argument))
            return self._evaluate(argument, frame)
        value = self._evaluate(argument, frame)
        if isinstance(value, VariableReference):
            return value.frame.variables.get(value.name)
        return value

    def _path(self, node: Node) -> str:
        return tree.text(node).replace("->", ".").replace(" ", "").removeprefix("this.")

    def _of_subscript_expression(self, node: Node, frame: Frame) -> Value:
        if (known := frame.variables.get(self._path(node))) is not None:
            return known
        base = self._evaluate(tree.field(node, "argument"), frame)
        indices = tree.field(node, "indices")
        index = [self._evaluate(one, frame) for one in tree.children(indices)] if indices is not None else []
        if isinstance(base, Sizes) and len(index) == 1 and isinstance(number(index[0]), int):
            return self._extent(base.buffer, number(index[0]) or 0)
        if isinstance(base, ListValue) and len(index) == 1 and isinstance(index[0], int | Name):
            at = number(index[0])
            return base.items[at] if at is not None and -1 < at < len(base.items) else Name(tree.text(node), "unknown")
        if isinstance(base, HostBuffer | Pointer):
            return base
        return Name(tree.text(node), "unknown")

    def _of_field_expression(self, node: Node, frame: Frame) -> Value:
        path = self._path(node)
        owner = owner_of(frame, path)
        if path in owner.variables:
            return owner.variables[path]
        base = self._evaluate(tree.field(node, "argument"), frame)
        word = tree.text(tree.field(node, "field"))
        if isinstance(base, Dim3) and word in ("x", "y", "z"):
            return getattr(base, word)
        if isinstance(base, Name) and base.kind in ("parameter", "local", "unknown"):
            return Name(f"{base.text}.{word}", "parameter" if base.kind == "parameter" else "unknown", scope=base.scope)
        if tree.text(tree.field(node, "argument")) == "this":
            return self._lookup(word, frame)
        return Name(path, "unknown")

    def _of_assignment_expression(self, node: Node, frame: Frame) -> Value:
        left, symbol = tree.field(node, "left"), tree.text(tree.field(node, "operator"))
        value = self._evaluate(tree.field(node, "right"), frame)
        if left is None:
            return value
        if symbol != "=":
            value = self._binary(symbol.removesuffix("="), self._evaluate(left, frame), value, node)
        self._assign(left, value, frame)
        return value

    def _assign(self, left: Node, value: Value, frame: Frame) -> None:
        if left.type == "identifier":
            name = tree.text(left)
            owner = owner_of(frame, name)
            old = owner.variables.get(name)
            if isinstance(value, ListValue) and isinstance(old, Dim3):
                value = self._dim3(value.items)
            if isinstance(value, HostBuffer) and value.kind != "tensor" and isinstance(old, HostBuffer):
                value.name = value.name or name
            real = isinstance(old, Arithmetic) and old.operator.startswith("real")
            kind = "dim3" if isinstance(old, Dim3) else "double" if real else "int"
            if isinstance(value, Pointer) and isinstance(old, Pointer) and old.type:
                value = replace(value, type=old.type)
            owner.variables[name] = self._named(name, value, kind, owner) if not isinstance(value, Dim3) else value
        elif left.type == "field_expression":
            base, word = tree.field(left, "argument"), tree.text(tree.field(left, "field"))
            name = tree.text(base)
            owner = owner_of(frame, name)
            if isinstance(owner.variables.get(name), Dim3) and word in ("x", "y", "z"):
                owner.variables[name] = replace(owner.variables[name], **{word: as_expr(value)})
            else:
                owner.variables[self._path(left)] = value
        elif left.type == "pointer_expression":
            pointer = tree.field(left, "argument")
            target = self._evaluate(pointer, frame)
            if not isinstance(target, VariableReference):
                target = frame.variables.get(tree.text(pointer))
            if isinstance(target, VariableReference):
                target.frame.variables[target.name] = value
        elif left.type == "subscript_expression":
            base = self._evaluate(tree.field(left, "argument"), frame)
            if isinstance(base, ListValue):
                frame.variables[self._path(left)] = value

    def _of_update_expression(self, node: Node, frame: Frame) -> Value:
        argument = tree.field(node, "argument")
        if argument is not None and argument.type == "identifier":
            old = self._evaluate(argument, frame)
            symbol = "+" if "++" in tree.text(node) else "-"
            if isinstance(old, int | Name | Arithmetic):
                self._assign(argument, operation(symbol, old, 1), frame)
            return old
        return None

    def _of_initializer_list(self, node: Node, frame: Frame) -> Value:
        return ListValue([self._evaluate(one, frame) for one in tree.children(node)])

    def _of_compound_literal_expression(self, node: Node, frame: Frame) -> Value:
        kind = tree.text(tree.field(node, "type"))
        value = self._evaluate(tree.field(node, "value"), frame)
        if kind == "dim3" and isinstance(value, ListValue):
            return self._dim3(value.items)
        if isinstance(value, ListValue) and len(value.items) == 1 and kind:
            return self._converted(kind, value.items[0], frame)
        return value

    def _of_lambda_expression(self, node: Node, frame: Frame) -> Value:
        return Closure(node, frame)

    def _of_new_expression(self, node: Node, frame: Frame) -> Value:
        kind = self._type_text(tree.text(tree.field(node, "type")), frame)
        length = next((tree.field(c, "length") for c in tree.children(node) if c.type == "new_declarator"), None)
        elements = self._expr(length, frame) if length is not None else None
        return Pointer(HostBuffer("", "host", tree.line(node), elements=elements, dtype=kind), kind)

    def _dim3(self, given: Sequence[Value]) -> Dim3:
        if len(given) == 1 and isinstance(given[0], Dim3):
            return given[0]
        if len(given) == 1 and isinstance(given[0], ListValue):
            given = given[0].items
        return Dim3(*(whole(as_expr(one)) for one in given[:3]))
