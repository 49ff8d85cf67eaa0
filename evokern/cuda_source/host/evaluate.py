"""Launches of a CUDA program, from a symbolic evaluation of its host functions.

Each launch is recorded in the names of the function where it starts.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from evokern.cuda_source.c_types import type_size
from evokern.cuda_source.host import tree
from evokern.cuda_source.host.calls import CallEvaluator
from evokern.cuda_source.host.frames import (
    STEPS,
    Frame,
    HostBuffer,
    HostLaunch,
    ListValue,
    Pointer,
    StepsError,
    Value,
    as_expr,
    is_opaque,
    literal_in,
    merge,
)
from evokern.cuda_source.host.known_functions import CONTAINER, ENDS, TENSOR, base_real
from evokern.cuda_source.host.program import FunctionNode, HostProgram, declared_name, itself, read_program
from evokern.cuda_source.host.tree import Node
from evokern.cuda_source.host.values import (
    Arithmetic,
    Expr,
    Name,
    TypeName,
    is_long,
    names_in,
    number,
    operation,
    to_python,
    whole,
)

_BLOCKS = ("compound_statement", "ERROR", "else_clause", "labeled_statement", "try_statement", "translation_unit")
_NUMBER_TYPE = re.compile(r"[\w: ]*(?:int|size|long|unsigned|bool|float|double|char|short)\w*[\w: ]*")


class HostEvaluator(CallEvaluator):
    """HostEvaluator of one host function and of the functions that it calls."""

    def run(self) -> tuple[HostLaunch, ...]:
        """Evaluate the function, and return its launches."""
        frame = Frame(self.root.name, templates={
            one.name: self._templates.get(one.name, itself(one, self.root.name)) for one in self.root.template
        })  # fmt: skip
        if self.root.structure in self.program.structures:
            frame.structure = TypeName(self.root.structure)
        for one in self.root.parameters:
            frame.variables[one.name] = self._parameter(one, frame)
        frame.given = dict(frame.variables)
        with contextlib.suppress(StepsError, RecursionError):
            self._block(self.root.body, frame)
        return tuple(self.launches)

    def value(self, node: Node) -> Value:
        """Return the value of an expression at file scope."""
        return self._evaluate(node, Frame(""))

    def arguments(self, node: Node) -> tuple[Value, ...]:
        """Return template arguments at file scope."""
        return self._template_arguments(node, Frame(""))

    # ---- statements; each returns whether control leaves the block

    def _block(self, node: Node, frame: Frame) -> bool:
        return self._sequence(tree.children(node), frame)

    def _sequence(self, nodes: Iterator[Node], frame: Frame) -> bool:
        return any(self._statement(node, frame) for node in nodes)

    def _statement(self, node: Node, frame: Frame) -> bool:
        self._steps += 1
        if self._steps > STEPS:
            raise StepsError
        kind = node.type
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None:
            return bool(handler(node, frame))
        if kind in _BLOCKS:
            return self._block(node, frame)
        if kind == "expression_statement":
            for child in tree.children(node):
                self._evaluate(child, frame)
                if child.type == "call_expression" and ENDS.fullmatch(tree.text(tree.field(child, "function"))):
                    return True
            return False
        if kind in ("break_statement", "continue_statement", "throw_statement", "goto_statement"):
            return True
        if kind.endswith(("_expression", "identifier")):
            self._evaluate(node, frame)
        return False

    def _on_return_statement(self, node: Node, frame: Frame) -> bool:
        value = next((self._evaluate(child, frame) for child in tree.children(node)), None)
        frame.returned.append((tuple(self._conditions), value))
        return True

    def _on_declaration(self, node: Node, frame: Frame) -> bool:
        kind = tree.text(tree.field(node, "type"))
        for one in node.children_by_field_name("declarator"):
            self._declare(one, kind, node, frame)
        return False

    def _declare(self, one: Node, kind: str, node: Node, frame: Frame) -> None:
        name = declared_name(one)
        value_node = tree.field(one, "value") if one.type == "init_declarator" else None
        inner = tree.field(one, "declarator") if one.type == "init_declarator" else one
        form, listed = inner.type if inner is not None else "", value_node.type if value_node is not None else ""
        marks = "".join(c for c in tree.text(inner).partition(name)[0] if c in "*&")
        arguments: tuple[Node, ...] = ()
        if inner is not None and form == "function_declarator":  # `dim3 grid(N, M)` looks like a function
            arguments = tree.expressions(tree.text(tree.field(inner, "parameters"))[1:-1])
            if name.isupper() and value_node is None and not arguments:
                return
        elif value_node is not None and listed in ("argument_list", "initializer_list"):
            arguments = tuple(tree.children(value_node))
        base = self._type_text(kind, frame)
        given = [] if listed == "initializer_list" and "*" in marks else arguments
        value: Value
        if marks.startswith("*") and value_node is None:
            value = Pointer(HostBuffer(name, "allocation", tree.line(one), dtype=base), base)
        elif base == "dim3" and "*" not in marks and (arguments or value_node is None):
            value = self._dim3([self._evaluate(each, frame) for each in arguments])
        elif "array" in form:
            value = self._evaluate(value_node, frame)
        elif value_node is None and not arguments and TENSOR.search(kind):
            value = HostBuffer(name, "tensor", tree.line(one))
        elif value_node is None or given:
            value = self._made(kind, name, [self._evaluate(each, frame) for each in given], one, frame)
        else:
            value = self._evaluate(value_node, frame)
        if marks.startswith("*") and isinstance(value, Pointer) and kind != "auto":
            value = replace(value, type=base)
        if inner is not None and "array" in form and not isinstance(value, ListValue):
            extent = tree.field(inner, "size")
            elements = self._expr(extent, frame) if extent is not None else None
            value = Pointer(HostBuffer(name, "host", tree.line(one), elements=elements, dtype=base), base)
        frame.variables[name] = self._named(name, value, kind, frame)

    def _named(self, name: str, value: Value, kind: str, frame: Frame) -> Value:
        """Return the value of a new variable: literals and values that cannot be computed keep the variable's name."""
        if base_real(kind) and isinstance(value, int | Name | Arithmetic):
            return operation("real", value) if not isinstance(value, int) else float(value)
        if isinstance(value, float) and not base_real(kind) and kind not in ("auto", "const auto"):
            value = int(value)
        if isinstance(value, Arithmetic):
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
        if isinstance(value, Arithmetic) and (is_long(value) or self._counts_rows(value)):
            return Name(name, "local", None, frame.function)
        if isinstance(value, Arithmetic) and is_opaque(value):
            return Name(name, "local", literal_in(value), frame.function)
        if value is None:
            return Name(name, "local", None, frame.function)
        return value

    def _counts_rows(self, value: Arithmetic) -> bool:
        """Return whether a value is a product or quotient of extents, such as a number of rows, but no whole size."""
        names = list(names_in(value))
        if value.operator not in ("*", "/") or not names or any(name.kind != "extent" for name in names):
            return False
        buffer = self._extents.get(names[0].text)
        return value.operator == "/" or buffer is None or buffer.shape is None or set(names) != set(buffer.shape)

    def _made(self, kind: str, name: str, given: list[Value], node: Node, frame: Frame) -> Value:
        """Return a new object of a type that is initialised with arguments."""
        base = kind.partition("<")[0].strip()
        inner = kind.partition("<")[2].rpartition(">")[0]
        if CONTAINER.search(base.rpartition("::")[2]) and inner:
            first = given[0] if given else 0
            if isinstance(first, ListValue) or (len(given) > 2):
                return ListValue(given)
            device = "device" in base.lower() or "cuda" in base.lower()
            elements = as_expr(first) if given else None
            place = "allocation" if device else "host"
            return HostBuffer(name, place, tree.line(node), elements, dtype=self._type_text(inner, frame))
        plain = type_size(base) is not None or base == "auto" or _NUMBER_TYPE.fullmatch(base)
        if len(given) == 1 and (plain or not isinstance(given[0], Name | Arithmetic | int)):
            return given[0]
        if TENSOR.search(kind):
            return given[0] if given else HostBuffer(name, "tensor", tree.line(node))
        return ListValue(given) if len(given) > 1 else Name(name, "local", None, frame.function)

    def _on_type_definition(self, node: Node, frame: Frame) -> bool:
        kind = tree.field(node, "type")
        for one in node.children_by_field_name("declarator"):
            if kind is not None:
                frame.templates[declared_name(one)] = self._type(kind, frame)
        return False

    def _on_alias_declaration(self, node: Node, frame: Frame) -> bool:
        kind = tree.field(node, "type")
        if kind is not None:
            frame.templates[tree.text(tree.field(node, "name"))] = self._type(kind, frame)
        return False

    def _on_if_statement(self, node: Node, frame: Frame) -> bool:
        clause = tree.field(node, "condition")
        if clause is not None and (first := tree.field(clause, "initializer")) is not None:
            self._statement(first, frame)
        value_node = tree.field(clause, "value") if clause is not None and clause.type == "condition_clause" else clause
        condition = self._expr(value_node, frame)
        then, other = tree.field(node, "consequence"), tree.field(node, "alternative")
        if isinstance(condition, int | float):
            chosen = then if condition else other
            return self._statement(chosen, frame) if chosen is not None else False
        return self._branches([(condition, then), (operation("!", condition), other)], frame)

    def _branches(self, branches: Sequence[tuple[Expr, Node | None]], frame: Frame) -> bool:
        """Evaluate alternatives, and merge the variables of those that continue."""
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
                made[name] = merge(condition, first, second)
        return made

    def _on_switch_statement(self, node: Node, frame: Frame) -> bool:
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
            condition = pending[0] if pending else Name("default", "unknown")
            condition = Arithmetic("||", tuple(pending)) if len(pending) > 1 else condition
            pending = []
            if condition == 0:
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

    def _on_for_statement(self, node: Node, frame: Frame) -> bool:
        if (first := tree.field(node, "initializer")) is not None:
            self._statement(first, frame)
        return self._loop(node, frame)

    def _on_for_range_loop(self, node: Node, frame: Frame) -> bool:
        name = declared_name(tree.field(node, "declarator"))
        frame.variables[name] = Name(name, "local", None, frame.function)
        return self._loop(node, frame)

    def _loop(self, node: Node, frame: Frame) -> bool:
        """Evaluate a loop's body once, with the variables that it changes as unknown numbers."""
        for one in tree.walk(node):
            part = {"assignment_expression": "left", "update_expression": "argument"}.get(one.type)
            target = tree.field(one, part) if part else None
            name = tree.text(target) if target is not None and target.type == "identifier" else ""
            old = frame.variables.get(name)
            if isinstance(old, int | float | Name | Arithmetic):
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
            if isinstance(frame.variables.get(name), Name | Arithmetic | int)
        }
        return False

    _on_while_statement = _on_do_statement = _loop


_LAUNCHING = frozenset(
    ("<<<", "cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cudaLaunchKernelEx", "cudaLaunchKernelExC")
)
_MOST_ROOTS = 200
"""Maximum number of host functions that are evaluated."""


def host_launches(texts: Mapping[str, str]) -> tuple[HostLaunch, ...]:
    """Return the launches in the host code of a program.

    Each launch is returned once for the function that contains it, and once for each function that calls that one. In
    the first, template parameters stand for themselves; of a parameter that is a structure template in all calls, the
    structure's parameters do.

    Args:
        texts: text of each file, by the name in ``#include``; the main file's name is empty.
    """
    program = read_program(texts, lambda text: number(expression(text)))
    roots = _roots(program)
    views = {root: HostEvaluator(program, root).run() for root in roots}
    made: list[HostLaunch] = []
    for root, launches in views.items():
        symbolic = _structures(program, root, [one for others in views.values() for one in others])
        made += HostEvaluator(program, root, symbolic).run() if symbolic else launches
    return tuple(made)


def _roots(program: HostProgram) -> list[FunctionNode]:
    """Return the functions that launch a kernel, directly or through other functions."""
    functions = [one for same in program.functions.values() for one in same if not one.kernel]
    found = [one for one in functions if one.words & _LAUNCHING]
    names = {one.name for one in found}
    while more := [one for one in functions if one not in found and one.words & names]:
        found += more
        names |= {one.name for one in more}
    return found[:_MOST_ROOTS]


def _structures(program: HostProgram, root: FunctionNode, launches: list[HostLaunch]) -> dict[str, TypeName]:
    """Return structure templates with their own parameters, for the template parameters of a function that get them."""
    made: dict[str, TypeName] = {}
    for one in root.template:
        if one.type != "typename":
            continue
        given = [view.bindings.get(one.name) for view in launches if view.function == root.name and not view.own]
        types = {value.name for value in given if isinstance(value, TypeName)}
        structure = program.structures.get(types.pop()) if len(types) == 1 else None
        if structure is not None and structure.template:
            made[one.name] = TypeName(structure.name, tuple(itself(p, structure.name) for p in structure.template))
    return made


def expression(text: str) -> Expr | None:
    """Return the value of a C expression in which all names stand for themselves; None if the text is none."""
    nodes = tree.expressions(text)
    if len(nodes) != 1 or nodes[0].has_error:
        return None
    value = _evaluator(nodes[0]).value(nodes[0])
    return value if isinstance(value, int | float | Name | Arithmetic) else None


def _evaluator(node: tree.Node) -> HostEvaluator:
    """Return an evaluator without declarations."""
    return HostEvaluator(HostProgram(), FunctionNode("", (), (), node, "", 0, False, "", frozenset()))


def translated(
    text: str, names: Mapping[str, str], definitions: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """Return Python text of a C integer expression; None if a part is unknown.

    Args:
        text: the expression.
        names: C name → Python text.
        definitions: C name → C expression that replaces it.
    """
    made = expression(text)
    inner = {name: body for name, body in definitions.items() if body != text}

    def python(name: Name) -> str | None:
        if name.text in names:
            return names[name.text]
        if name.text in inner:
            rest = {other: body for other, body in inner.items() if other != name.text}
            found = translated(inner[name.text], names, rest)
            return found if found is None or found.isidentifier() or found.isdigit() else f"({found})"
        return None

    return None if made is None else to_python(made, python)


def template_arguments(text: str) -> tuple[Expr | TypeName, ...]:
    """Return template arguments that are written as text, such as `float, 128`."""
    found = [n for n in tree.walk(tree.parse(f"void f() {{ k<{text}>(0); }}")) if n.type == "template_argument_list"]
    values = _evaluator(found[0]).arguments(found[0]) if found else ()
    return tuple(v if isinstance(v, int | Name | Arithmetic | TypeName) else TypeName(text) for v in values)
