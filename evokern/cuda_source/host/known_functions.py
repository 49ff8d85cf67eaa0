"""Types and functions of the CUDA runtime, of the standard library and of torch, as far as host code states sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from evokern.cuda_source.c_types import type_size
from evokern.cuda_source.host import tree
from evokern.cuda_source.host.frames import HostBuffer, ListValue, Sizes, Value, as_expr
from evokern.cuda_source.host.tree import Node
from evokern.cuda_source.host.values import Arithmetic, Name, operation, whole

REAL_TYPES = frozenset(("float", "double"))
TENSOR = re.compile(r"\bTensor\b")
CONTAINER = re.compile(
    r"(?:^|_|\b)(?:vector|array|buffer|buf|unique_ptr|shared_ptr)(?:_|\b|$)|Vector|Array|Buffer|Vec\b|Mem", re.I
)
SAME_TENSOR = frozenset(("contiguous", "cuda", "detach", "clone", "to", "toType", "value", "half", "begin",
                         "requires_grad_", "zero_", "fill_", "set_requires_grad"))  # fmt: skip
CHECKS = re.compile(
    r"TORCH_CHECK\w*|AT_ASSERT\w*|AT_CHECK|C10_CHECK\w*|assert|CHECK_(?:EQ|NE|LT|GT|LE|GE)|ASSERT\w*|"
    r"TORCH_INTERNAL_ASSERT|TVM_FFI_\w*CHECK\w*|CHECK"
)
ENDS = re.compile(r"exit|abort|_exit|std::exit|std::abort|quick_exit")
CEIL_DIV = re.compile(r"\w*?_?(?:ceil_?div(?:ide)?|div_?ceil|div(?:ide)?_?(?:round_?)?up|cdiv)", re.I)
"""Name of a function that divides and rounds up, such as `THCCeilDiv`, which a file may not define."""
KEPT = frozenset(("static_cast", "reinterpret_cast", "const_cast", "dynamic_cast", "bit_cast"))
DISPATCH = {
    "FLOATING_TYPES": ("float", "double"), "ALL_TYPES": ("float", "double", "int32_t", "int64_t"),
    "INTEGRAL_TYPES": ("int32_t", "int64_t"), "INDEX_TYPES": ("int32_t", "int64_t"),
}  # fmt: skip
TORCH_TYPES = {
    "Half": "at::Half", "BFloat16": "at::BFloat16", "HALF": "at::Half", "BFLOAT16": "at::BFloat16", "Float": "float",
    "Double": "double", "Int": "int32_t", "Long": "int64_t", "Byte": "uint8_t", "Char": "int8_t", "Bool": "bool",
    "Short": "int16_t",
}  # fmt: skip


def base_real(kind: str) -> bool:
    """Return whether a type is a floating-point type."""
    return kind.removeprefix("const ").strip() in REAL_TYPES


def known_call(name: str, given: Sequence[Value]) -> Value:
    """Return the value of a call of a function of the standard library or of a common helper; None for others."""
    values = given[0].items if len(given) == 1 and isinstance(given[0], ListValue) else given
    if not all(isinstance(one, int | float | Name | Arithmetic) for one in values):
        return None
    if name in ("min", "max", "fmin", "fmax", "Min", "Max", "MIN", "MAX") and len(values) >= 2:
        total = values[0]
        for one in values[1:]:
            total = operation(name.lower().removeprefix("f"), total, one)
        return total
    if len(values) == 2 and CEIL_DIV.fullmatch(name):
        return operation("ceil_div", whole(values[0]), whole(values[1]))
    if len(values) == 1 and name in ("ceil", "ceilf"):
        return whole(values[0], up=True)
    if len(values) == 1 and name in ("log", "logf", "log2", "log2f"):
        return operation(name.removesuffix("f"), whole(values[0]))
    if len(values) == 1 and name in REAL_TYPES:
        return operation("real", values[0])
    if len(values) == 1 and (name in ("floor", "floorf", "trunc", "round", "lround") or type_size(name) is not None):
        return whole(values[0])
    return None


def tensor_call(name: str, written: str, given: Sequence[Value], node: Node) -> Value:
    """Return the tensor that a call such as `torch::empty({M, N}, x.options())` creates; None for other calls."""
    if not re.match(r"(?:torch|at)::", written):
        return None
    kind = re.search(r"\bk([A-Z]\w+)", " ".join(tree.text(c) for c in tree.children(node)))
    like = next((one for one in given if isinstance(one, HostBuffer)), None)
    dtype = TORCH_TYPES.get(kind[1], "") if kind else ""
    if name.endswith("_like") and like is not None:
        same = like.like or like.name
        return replace(like, name="", line=tree.line(node), dtype=dtype or like.dtype, labels={}, like=same)
    if name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint") and given:
        shape = given[0]
        extents = tuple(map(as_expr, shape.items)) if isinstance(shape, ListValue) else None
        if isinstance(shape, Sizes):
            extents = shape.buffer.shape
        if isinstance(shape, int | Name | Arithmetic):
            extents = (shape,)
        return HostBuffer("", "tensor", tree.line(node), shape=extents, dtype=dtype)
    return None
