"""Host code of a CUDA program, parsed with tree-sitter and evaluated symbolically: launches, sizes and checks."""

from __future__ import annotations

from evokern.cuda_source.host.evaluate import expression, host_launches, template_arguments, translated
from evokern.cuda_source.host.frames import HostBuffer, HostLaunch, Pointer
from evokern.cuda_source.host.values import (
    Arithmetic,
    Dim3,
    Expr,
    Name,
    TypeName,
    names_in,
    number,
    substituted,
    text_of,
    to_python,
    to_real,
)

__all__ = [
    "Arithmetic", "Dim3", "Expr", "HostBuffer", "HostLaunch", "Name", "Pointer", "TypeName", "expression",
    "host_launches", "names_in", "number", "substituted", "template_arguments", "text_of", "to_python", "to_real",
    "translated",
]  # fmt: skip
