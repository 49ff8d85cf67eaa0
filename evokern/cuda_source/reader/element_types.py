"""Mapping of CUDA element types to evokern's type names."""

from __future__ import annotations

from collections.abc import Mapping

ELEMENT_TYPES: Mapping[str, str] = {
    "float": "f32", "float2": "f32", "float3": "f32", "float4": "f32",
    "double": "f64", "double2": "f64", "double3": "f64", "double4": "f64",
    "int2": "i32", "int3": "i32", "int4": "i32", "uint2": "u32", "uint3": "u32", "uint4": "u32", "uint": "u32",
    "char2": "i8", "char3": "i8", "char4": "i8", "uchar": "u8", "uchar2": "u8", "uchar3": "u8", "uchar4": "u8",
    "short2": "i16", "short4": "i16", "longlong2": "i64", "ulonglong2": "u64", "long": "i64", "unsigned long": "u64",
    "half": "f16", "__half": "f16", "half2": "f16",
    "__half2": "f16", "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16", "bfloat16": "bf16", "__nv_bfloat162": "bf16",
    "nv_bfloat162": "bf16", "__nv_fp8_e4m3": "e4m3", "__nv_fp8x2_e4m3": "e4m3", "__nv_fp8x4_e4m3": "e4m3",
    "__nv_fp8_e5m2": "e5m2", "__nv_fp8x2_e5m2": "e5m2", "__nv_fp8x4_e5m2": "e5m2",
    "int": "i32", "int32_t": "i32", "unsigned": "u32", "unsigned int": "u32",
    "uint32_t": "u32", "long long": "i64", "int64_t": "i64", "short": "i16", "int16_t": "i16", "char": "i8",
    "signed char": "i8", "int8_t": "i8", "unsigned char": "u8", "uint8_t": "u8", "uint64_t": "u64", "size_t": "u64",
    "std::size_t": "u64", "std::int64_t": "i64", "unsigned long long": "u64", "bool": "u8",
}  # fmt: skip
"""CUDA type without qualifiers → evokern's name; a vector type maps to the name of its element type."""

UNSUPPORTED_TYPES = ("cudaTextureObject_t", "cudaSurfaceObject_t")
"""Types of parameters for which evokern has no buffers."""
UNSUPPORTED = "textures and surfaces are not supported; read from a pointer instead"
"""Reason and remedy for a parameter of `UNSUPPORTED_TYPES`."""
