"""Calls in host code: helper functions, the CUDA runtime, torch, and kernel launches."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evokern.cuda_source.host import tree
from evokern.cuda_source.host.expressions import ExpressionEvaluator
from evokern.cuda_source.host.frames import (
    DEEPEST,
    NOTHING,
    Closure,
    Frame,
    FunctionValue,
    HostBuffer,
    HostLaunch,
    ListValue,
    Pointer,
    Sizes,
    Value,
    VariableReference,
    argument_list,
    as_expr,
    cluster_of,
    result_of,
)
from evokern.cuda_source.host.known_functions import (
    CEIL_DIV,
    CHECKS,
    CONTAINER,
    DISPATCH,
    KEPT,
    REAL_TYPES,
    SAME_TENSOR,
    TENSOR,
    TORCH_TYPES,
    known_call,
    tensor_call,
)
from evokern.cuda_source.host.program import FunctionNode, ParameterNode, function_parameters, itself
from evokern.cuda_source.host.tree import Node
from evokern.cuda_source.host.values import (
    Arithmetic,
    Dim3,
    Expr,
    Name,
    TypeName,
    is_long,
    number,
    operation,
    product_of,
    text_of,
    whole,
)
from evokern.cuda_source.preprocessor import integer


class CallEvaluator(ExpressionEvaluator):
    """Evaluator of calls."""

    @abstractmethod
    def _block(self, node: Node, frame: Frame) -> bool: ...

    def _parameter(self, one: ParameterNode, frame: Frame) -> Value:
        bare = one.type.removeprefix("const ").rstrip("&")
        if TENSOR.search(bare):
            return HostBuffer(one.name, "tensor")
        if bare.endswith("*"):
            kind = bare.rstrip("*")
            return Pointer(HostBuffer(one.name, "parameter", dtype=kind), self._type_text(kind, frame))
        if bare == "dim3":
            return Dim3(*(Name(f"{one.name}.{axis}", "parameter", scope=frame.function) for axis in "xyz"))
        if CONTAINER.search(bare.partition("<")[0]):
            inner = bare.partition("<")[2].rpartition(">")[0]
            if not TENSOR.search(inner):
                elements = Name(f"{one.name}.size()", "parameter", scope=frame.function)
                return HostBuffer(one.name, "host", elements=elements, dtype=inner)
        default = integer(tree.text(one.default)) if one.default is not None else None
        return Name(one.name, "parameter", default, scope=frame.function)

    def _call_function(
        self,
        function: FunctionNode,
        given: Sequence[Value],
        template: Sequence[Value],
        nodes: Sequence[Node],
        caller: Frame,
    ) -> Value:
        frame = Frame(function.name, parent=None)
        self._bind_templates(function, frame, template, given)
        if function.structure in self.program.structures:
            frame.structure = TypeName(function.structure)
        for at, one in enumerate(function.parameters):
            if at < len(given):
                value = given[at]
            else:
                value = self._evaluate(one.default, frame) if one.default else self._parameter(one, frame)
            if one.type.removeprefix("const ").rstrip("&") in REAL_TYPES and isinstance(value, int | Name | Arithmetic):
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
        value = result_of(frame)
        if isinstance(value, Arithmetic) and is_long(value):
            return Name(f"{function.name}()", "unknown")
        return value

    def _bind_templates(
        self, function: FunctionNode, frame: Frame, template: Sequence[Value], given: Sequence[Value]
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
                frame.templates[one.name] = itself(one, function.name)

    def _deduced(self, name: str, parameters: Sequence[ParameterNode], given: Sequence[Value]) -> Value:
        """Return the template argument that the compiler deduces from the arguments; None if it is unknown."""
        for one, value in zip(parameters, given, strict=False):
            if re.fullmatch(rf"(?:const )?{re.escape(name)}\**&*", one.type):
                if isinstance(value, Pointer) and "*" in one.type and value.type:
                    return TypeName(value.type)
                if isinstance(value, TypeName):
                    return value
        return None

    def _pass_members(self, source: Frame, prefix: str, target: Frame, name: str) -> None:
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

    # ---- calls

    def _of_call_expression(self, node: Node, frame: Frame) -> Value:
        syntax = next((c for c in tree.children(node) if c.type == "kernel_call_syntax"), None)
        function = tree.field(node, "function")
        arguments = tree.field(node, "arguments")
        nodes = list(tree.children(arguments)) if arguments is not None else []
        if syntax is not None:
            return self._kernel_call(node, function, syntax, nodes, frame)
        if function is None:
            return None
        if function.type == "template_function" and tree.text(tree.field(function, "name")) in KEPT:
            inner = tree.field(function, "arguments")
            value = self._evaluate(nodes[0], frame) if nodes else None
            return self._converted(tree.text(inner)[1:-1], value, frame)
        if function.type == "primitive_type" or function.type == "sized_type_specifier":
            return self._converted(tree.text(function), self._evaluate(nodes[0], frame) if nodes else 0, frame)
        if function.type == "field_expression":
            return self._method(function, nodes, node, frame)
        name = tree.text(function)
        return self._call(name, self._evaluate(function, frame), nodes, node, frame)

    def _call(self, name: str, target: Value, nodes: list[Node], node: Node, frame: Frame) -> Value:
        bare = re.sub(r"<.*", "", name).rpartition("::")[2]
        wraps = bare in ("CHECK", "assert") and len(nodes) == 1 and nodes[0].type == "call_expression"
        if CHECKS.fullmatch(bare) and nodes and not wraps:
            self._check(bare, nodes, frame)
            return None
        given = [self._evaluate(one, frame) for one in nodes]
        if isinstance(target, Closure):
            return self._call_closure(target, given, nodes, frame)
        if isinstance(target, TypeName) and len(given) <= 1:
            return self._converted(str(target), given[0] if given else 0, frame) if given else 0
        known = known_call(bare, given)
        function = self._function(bare, len(given))
        if known is not None and (function is None or CEIL_DIV.fullmatch(bare)):
            return known
        if bare in ("dim3", "make_uint3"):
            return self._dim3(given)
        effect = self._runtime(bare, given, nodes, node, frame)
        if effect is not NOTHING:
            return effect
        if bare.startswith(("AT_DISPATCH", "AT_PRIVATE_CASE")) or (
            "DISPATCH" in bare.upper() and any(isinstance(one, Closure) for one in given)
        ):
            return self._dispatch(name, given, nodes, frame)
        if function is not None and not function.kernel and function not in self._busy and len(self._busy) < DEEPEST:
            template = target.template if isinstance(target, FunctionValue) else ()
            return self._call_function(function, given, template, nodes, frame)
        self._call_closures(given, frame)
        made = tensor_call(bare, name, given, node)
        return made if made is not None else Arithmetic(f"call {name}", tuple(map(as_expr, given)))

    def _call_closures(self, given: Sequence[Value], frame: Frame) -> None:
        for one in given:
            if isinstance(one, Closure):
                self._call_closure(one, [], [], frame)

    def _function(self, name: str, count: int) -> FunctionNode | None:
        """Return the function with a name that takes a number of arguments."""
        for one in self.program.functions.get(name, ()):
            least = sum(1 for p in one.parameters if p.default is None)
            if least <= count <= len(one.parameters):
                return one
        return None

    def _call_closure(self, closure: Closure, given: Sequence[Value], nodes: Sequence[Node], caller: Frame) -> Value:
        if self._depth > DEEPEST:
            return None
        frame = Frame(closure.frame.function, parent=closure.frame, given=closure.frame.given)
        declarator = tree.field(closure.node, "declarator")
        listed = tree.field(declarator, "parameters") if declarator is not None else None
        for at, one in enumerate(function_parameters(listed)):
            frame.variables[one.name] = given[at] if at < len(given) else self._parameter(one, frame)
        body = tree.field(closure.node, "body")
        if body is not None:
            depth = len(self._guards)
            self._deeper(lambda: self._block(body, frame))
            del self._guards[depth:]
        return result_of(frame)

    def _dispatch(self, name: str, given: Sequence[Value], nodes: Sequence[Node], frame: Frame) -> Value:
        """Evaluate the lambda functions that a dispatch macro calls for one of several types."""
        types = next((list(types) for key, types in DISPATCH.items() if key in name), [])
        text = " ".join(
            tree.text(one) for one, value in zip(nodes, given, strict=True) if not isinstance(value, Closure)
        )
        named = re.findall(r"(?:ScalarType::|\bk)(\w+)|(?<=_)(HALF|BFLOAT16)", f"{text} {name}")
        types += [TORCH_TYPES[one or other] for one, other in named if (one or other) in TORCH_TYPES]
        for one in given:
            if isinstance(one, Closure):
                self._types = {**self._types, "scalar_t": tuple(dict.fromkeys(types or ["float"]))}
                one.frame.templates.setdefault("scalar_t", TypeName("scalar_t"))
                self._call_closure(one, [], [], frame)
        return None

    def _check(self, name: str, nodes: list[Node], frame: Frame) -> None:
        symbol = {"EQ": "==", "NE": "!=", "LT": "<", "GT": ">", "LE": "<=", "GE": ">="}.get(name.rpartition("_")[2])
        if symbol and len(nodes) > 1:
            self._checks.append(operation(symbol, self._expr(nodes[0], frame), self._expr(nodes[1], frame)))
            return
        for part in tree.conjuncts(nodes[0]):
            value = self._expr(part, frame)
            if isinstance(value, Name | Arithmetic):
                self._learn(value)
                self._checks.append(value)

    def _learn(self, check: Expr) -> None:
        """Note the number of dimensions that a check states."""
        if isinstance(check, Arithmetic) and check.operator == "==" and isinstance(check.operands[0], Name):
            name, count = check.operands[0].text, number(check.operands[1])
            owner = self._ranks.get(name)
            if owner is not None and count is not None and owner.shape is None and 0 <= count <= 8:
                owner.shape = tuple(self._extent(owner, axis) for axis in range(count))

    def _extent(self, buffer: HostBuffer, axis: int) -> Expr:
        if buffer.shape is not None and -len(buffer.shape) <= axis < len(buffer.shape):
            return buffer.shape[axis]
        text = f"{buffer.name}.size({axis})"
        buffer.asked.add(axis)
        self._extents[text] = buffer
        return Name(text, "extent")

    def _method(self, function: Node, nodes: list[Node], node: Node, frame: Frame) -> Value:
        word_node = tree.field(function, "field")
        word = re.sub(r"^template ", "", tree.text(word_node))
        word, _, template = word.partition("<")
        word = word.strip()
        base_node = tree.field(function, "argument")
        base = self._evaluate(base_node, frame)
        given = [self._evaluate(one, frame) for one in nodes]
        if isinstance(base, HostBuffer):
            made = self._buffer_method(base, word, template.rstrip("> "), given, node, frame)
            if made is not NOTHING:
                return made
        if isinstance(base, Pointer) and word in ("data", "get", "data_ptr"):
            return base
        if isinstance(base, ListValue) and word == "size":
            return len(base.items)
        if isinstance(base, Sizes) and word == "size":
            return self._rank(base.buffer)
        self._call_closures(given, frame)
        candidates = [f for f in self.program.functions.get(word, ()) if f.structure and "<<<" in f.words]
        target = candidates[0] if len(candidates) == 1 else None
        if target is not None and target not in self._busy and len(self._busy) < DEEPEST:
            return self._call_function(target, given, (), nodes, frame)
        return Name(tree.text(node), "unknown")

    def _rank(self, buffer: HostBuffer) -> Expr:
        if buffer.shape is not None:
            return len(buffer.shape)
        self._ranks[f"{buffer.name}.dim()"] = buffer
        return Name(f"{buffer.name}.dim()", "extent")

    def _buffer_method(
        self, buffer: HostBuffer, word: str, template: str, given: list[Value], node: Node, frame: Frame
    ) -> Value:
        if word in ("size", "length") and given and isinstance(number(given[0]), int):
            return self._extent(buffer, number(given[0]) or 0)
        if word in ("dim", "ndimension"):
            return self._rank(buffer)
        if word in ("sizes", "shape", "size") and buffer.kind == "tensor":
            return Sizes(buffer)
        if word in ("size", "length", "count", "num_elements"):
            return buffer.elements if buffer.elements is not None else Name(f"{buffer.name}.size()", "unknown")
        if word in ("numel", "nelement"):
            if buffer.shape is not None:
                return product_of(buffer.shape)
            return Name(f"{buffer.name}.numel()", "extent")
        if word == "stride":
            return Name(f"{buffer.name}.stride({', '.join(map(text_of, map(as_expr, given)))})", "extent")
        if word in ("scalar_type", "dtype", "type"):
            return Name(f"{buffer.name}.dtype", "unknown")
        if word in ("data_ptr", "data", "mutable_data_ptr", "const_data_ptr", "get") or word.startswith(
            "packed_accessor"
        ):
            kind = self._type_text(template.partition(",")[0], frame) if template else buffer.dtype
            return Pointer(buffer, kind)
        if word in ("resize", "assign", "reserve") and given and buffer.kind != "tensor":
            buffer.elements = as_expr(given[0])
            return None
        if word in ("view", "reshape", "view_as", "flatten", "expand") and buffer.kind == "tensor":
            listed = given[0].items if len(given) == 1 and isinstance(given[0], ListValue) else given
            exprs = tuple(map(as_expr, listed))
            whole = word in ("view", "reshape") and -1 not in exprs and exprs
            return replace(buffer, shape=exprs if whole else None)
        if word in ("transpose", "permute", "t", "unsqueeze", "squeeze", "select", "slice", "narrow", "index_select"):
            return replace(buffer, shape=None, name=f"{buffer.name}.{word}")
        if word in SAME_TENSOR:
            return buffer
        if word in ("new_empty", "new_zeros", "new_full", "new_ones") and given and isinstance(given[0], ListValue):
            shape = tuple(map(as_expr, given[0].items))
            return HostBuffer("", "tensor", tree.line(node), shape=shape, dtype=buffer.dtype)
        return NOTHING

    def _runtime(self, name: str, given: list[Value], nodes: list[Node], node: Node, frame: Frame) -> Value:
        """Evaluate a call of the CUDA runtime or of the C library."""
        if name.startswith("cudaMalloc") and len(given) > 1 and isinstance(given[0], VariableReference):
            reference = given[0]
            old = reference.frame.variables.get(reference.name)
            kind = old.type if isinstance(old, Pointer) else ""
            size = given[1] if name != "cudaMallocPitch" else None
            place = "host" if name == "cudaMallocHost" else "allocation"
            size_in_bytes = as_expr(size) if size is not None else None
            variable = reference.name.rpartition(".")[2]
            buffer = HostBuffer(variable, place, tree.line(node), bytes=size_in_bytes, dtype=kind)
            reference.frame.variables[reference.name] = Pointer(buffer, kind)
            return None
        if name in ("malloc", "calloc", "aligned_alloc"):
            several = name == "calloc" and len(given) > 1
            size = operation("*", as_expr(given[0]), as_expr(given[1])) if several else given[-1]
            return Pointer(HostBuffer("", "host", tree.line(node), bytes=as_expr(size)), "")
        if name.startswith("cudaMemcpy") and len(given) > 2:
            kind = " ".join(tree.text(one) for one in nodes[3:])
            if "HostToDevice" in kind and isinstance(given[0], Pointer):
                given[0].buffer.copied_in = True
            if "DeviceToHost" in kind and isinstance(given[1], Pointer):
                given[1].buffer.copied_out = True
            return None
        if name in ("cudaLaunchKernel", "cudaLaunchCooperativeKernel") and len(given) > 3:
            self._record(given[0], [given[1], given[2], *given[4:5]], argument_list(given[3]), node, frame)
            return None
        if name.startswith("cudaLaunchKernelEx") and len(given) > 1 and isinstance(given[0], VariableReference):
            config, variables = given[0].name, given[0].frame.variables
            setting = [variables.get(f"{config}.{part}") for part in ("gridDim", "blockDim", "dynamicSmemBytes")]
            rest = given[2:] if not name.endswith("ExC") else argument_list(given[2])
            self._record(given[1], [s for s in setting if s is not None], rest, node, frame)
            return None
        if name in ("raw_pointer_cast", "move", "forward", "ref", "ptr", "to_string", "abs") and len(given) == 1:
            return given[0]
        if name in ("atoi", "atol", "strtol", "stoi", "atoll", "stol", "stoll"):
            return Arithmetic(f"call {name}", ())
        return NOTHING

    def _kernel_call(self, node: Node, function: Node | None, syntax: Node, nodes: list[Node], frame: Frame) -> Value:
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
        self, target: Value, setting: list[Value], arguments: Sequence[Value], node: Node, frame: Frame
    ) -> None:
        if isinstance(target, Name):
            target = FunctionValue(target.text)
        if isinstance(target, TypeName):
            target = FunctionValue(target.name, target.arguments)
        if not isinstance(target, FunctionValue) or not setting:
            return
        extents = [
            one if isinstance(one, Dim3) else self._dim3(one.items if isinstance(one, ListValue) else [one])
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
        shared = whole(as_expr(setting[2])) if len(setting) > 2 else 0
        self.launches.append(HostLaunch(
            kernel=name, template=tuple(template), grid=extents[0], block=extents[1],
            shared=0 if isinstance(shared, Name) and shared.text in ("nullptr", "NULL") else shared,
            cluster=cluster_of(frame), arguments=tuple(arguments), function=frame.outermost.function,
            root=self.root.name, line=tree.line(node), file=self._file, conditions=tuple(self._conditions),
            requirements=(*self._checks, *self._guards), bindings=self._bindings(frame), given=dict(frame.given),
            types=dict(self._types),
        ))  # fmt: skip

    def _bindings(self, frame: Frame) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in frame.outermost.templates.items():
            found[name] = value
            if isinstance(value, TypeName) and (structure := self.program.structures.get(value.name)):
                found |= {p.name: v for p, v in zip(structure.template, value.arguments, strict=False)}
        return found
