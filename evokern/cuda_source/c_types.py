"""C types of a kernel's parameters and of host code: evokern's type names, elements of vectors, and sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from evokern.declaration.kernel import DTYPE_BYTES

_VECTORS = {
    "float": "f32", "double": "f64", "char": "i8", "uchar": "u8", "short": "i16", "int": "i32", "uint": "u32",
    "long": "i64", "ulong": "u64", "longlong": "i64", "ulonglong": "u64",
}  # fmt: skip
"""Element type of a vector → evokern's name."""
WHOLE: Mapping[str, str] = {
    "int": "i32", "signed": "i32", "int32_t": "i32", "unsigned": "u32", "unsigned int": "u32", "uint32_t": "u32",
    "uint": "u32", "size_t": "u64", "std::size_t": "u64", "long": "i64", "long int": "i64", "long long": "i64",
    "long long int": "i64", "int64_t": "i64", "std::int64_t": "i64", "uint64_t": "u64", "unsigned long long": "u64",
    "unsigned long": "u64", "ptrdiff_t": "i64",
}  # fmt: skip
"""Integer type of a possible problem size → evokern's name."""
REAL: Mapping[str, str] = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16",
}  # fmt: skip
"""Floating-point type → evokern's name."""
NUMBERS: Mapping[str, str] = {**WHOLE, **REAL, "bool": "bool"}
"""Type of a number that a drafted kernel takes → evokern's name."""
ELEMENT_TYPES: Mapping[str, str] = {
    **WHOLE, **REAL, **{f"{base}{count}": dtype for base, dtype in _VECTORS.items() for count in (1, 2, 3, 4)},
    "bool": "u8", "char": "i8", "signed char": "i8", "int8_t": "i8", "unsigned char": "u8", "uchar": "u8",
    "uint8_t": "u8", "short": "i16", "int16_t": "i16", "half2": "f16", "__half2": "f16", "bfloat16": "bf16",
    "__nv_bfloat162": "bf16", "nv_bfloat162": "bf16", "__nv_fp8_e4m3": "e4m3", "__nv_fp8x2_e4m3": "e4m3",
    "__nv_fp8x4_e4m3": "e4m3", "__nv_fp8_e5m2": "e5m2", "__nv_fp8x2_e5m2": "e5m2", "__nv_fp8x4_e5m2": "e5m2",
}  # fmt: skip
"""Type of a pointer's elements, without qualifiers → evokern's name; a vector type maps to that of its elements."""
_LANES = re.compile(rf"(?:{'|'.join(_VECTORS)}|ushort|(?:__)?half|(?:__)?nv_bfloat16)([1234])|__nv_fp8x([24])_\w+")
_SIZES = {"unsigned short": 2, "uint16_t": 2, "ushort": 2, "Half": 2, "BFloat16": 2}
"""Size in bytes of a type that a kernel's buffers do not have; `Half` and `BFloat16` are torch's."""

UNSUPPORTED_TYPES = ("cudaTextureObject_t", "cudaSurfaceObject_t")
"""Types of parameters for which evokern has no buffers."""
UNSUPPORTED = "textures and surfaces are not supported; read from a pointer instead"
"""Reason and remedy for a parameter of `UNSUPPORTED_TYPES`."""


def lanes_of(name: str) -> int:
    """Return the number of elements of a vector type such as `float4`; 1 for other types."""
    found = _LANES.fullmatch(name)
    return int(found[1] or found[2]) if found else 1


def type_size(name: str) -> int | None:
    """Return the size of a type in bytes; None if it is not known."""
    dtype = ELEMENT_TYPES.get(name)
    return lanes_of(name) * DTYPE_BYTES[dtype] if dtype else _SIZES.get(name)
