"""C++ code for the launcher of an exported program: shape checks, launches and launch attributes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from evokern.declaration.genes import Config
from evokern.declaration.kernel import DTYPE_BYTES, Kernel, Launch, Problem, ProblemField, Scalar, Tensor, TileMap
from evokern.escaping import c_string, in_comment
from evokern.export.declared_state import RestoredVariable
from evokern.export.formula import Formula, ShapeGuard, cpp, cpp_names, member, simplified
from evokern.export.sections import entry_function
from evokern.export.trace import Traces
from evokern.export.traced import formula_of
from evokern.hardware.profiles import PORTABLE_CLUSTER_BLOCKS
from evokern.hardware.tensor_map import DTYPE_BYTES as MAP_TYPES
from evokern.hardware.tensor_map import TensorMap

_SCALARS = {"i32": "int", "u32": "unsigned", "i64": "long long", "u64": "unsigned long long", "f32": "float",
            "f64": "double", "f16": "__half", "bf16": "__nv_bfloat16", "bool": "bool"}  # fmt: skip
_STATIC_LIMIT = 48 * 1024
"""Bytes of dynamic shared memory above which `cudaFuncSetAttribute` is required (CUDA Programming Guide)."""


def number(value: int) -> str:
    """Return a plain or traced number as C++."""
    return cpp(simplified(formula_of(value), {}))


def elements(tensor: Tensor) -> str:
    """Return the number of elements of a buffer as C++."""
    product: Formula = ("number", 1)
    for extent in tensor.shape:
        product = ("*", product, formula_of(extent))
    return cpp(simplified(product, {}))


def pointer_alignment(kernel: Kernel, config: Config, problem: Problem) -> int:
    """Return the required alignment of pointers in bytes: that of the widest declared access, at least 16."""
    return max([16, *(access.width_bytes for access in kernel.vector_accesses(config, problem))])


def shape_checks(kernel: Kernel, problem: Problem, traces: Traces) -> str:
    """Return the C++ body of `refusal`, which checks first the range of each field, then the traced conditions."""
    lines = [f"  if (!({condition})) return {c_string(reason)};" for condition, _, reason in conditions(kernel, traces)]
    return "\n".join(lines)


def conditions(kernel: Kernel, traces: Traces) -> Iterator[tuple[str, str, str]]:
    """Yield each condition on the shape as C++ and as Python, with its reason: ranges first, then traced conditions."""
    for entry in kernel.fields:
        if entry.name in traces.fields:
            condition = _range(entry)
            yield condition, condition.replace("||", "or").replace("&&", "and"), _range_reason(entry)
    for guard, reason in traces.guards.items():
        yield guard.cpp(), guard.python(), _sentence(guard, reason)


def _range(entry: ProblemField) -> str:
    value = f"shape.{member(entry.name)}"
    if entry.choices:
        return " || ".join(f"{value} == {choice}" for choice in entry.choices)
    condition = f"{value} >= {entry.least} && {value} <= {entry.most}"
    return condition + (f" && {value} % {entry.multiple_of} == 0" if entry.multiple_of > 1 else "")


def field_holds(entry: ProblemField, value: int) -> bool:
    """Return whether a field can have a value."""
    if entry.choices:
        return value in entry.choices
    return entry.least <= value <= entry.most and value % entry.multiple_of == 0


def _range_reason(entry: ProblemField) -> str:
    if entry.choices:
        return f"{entry.name} must be {' or '.join(map(str, entry.choices))}"
    multiple = f", a multiple of {entry.multiple_of}" if entry.multiple_of > 1 else ""
    return f"{entry.name} must be {entry.least} to {entry.most}{multiple}"


def _sentence(guard: ShapeGuard, reason: str) -> str:
    holds = " || ".join(one.own_cpp() for one in (guard, *guard.others))
    when = f" if {' && '.join(one.own_cpp() for one in guard.when)}" if guard.when else ""
    return f"{holds} must hold{when}: {reason}".replace("shape.", "")


def launch_body(
    traces: Traces, restored: Sequence[RestoredVariable] = (), cooperative: frozenset[str] = frozenset()
) -> str:
    """Return the statements of one call, which prepare workspaces and variables and launch the kernels.

    Args:
        traces: the launches.
        restored: variables to restore before the launches.
        cooperative: entry points that need a cooperative launch.
    """
    lines: list[str] = []
    names = cpp_names(traces.tensors)
    for name, tensor in traces.tensors.items():
        if tensor.role == "workspace" and tensor.initial == "zero":
            lines.append(
                f"  if (cudaMemsetAsync({names[name]}, 0, {_bytes(tensor)}, stream) != cudaSuccess) return CUDA_ERROR;"
            )
    constants = [name for name, tensor in traces.tensors.items() if tensor.role == "constant"]
    for index, name in enumerate(constants):
        copied = f"::evokern_copy_{index}({names[name]}, {_bytes(traces.tensors[name])}, stream)"
        lines.append(f"  if ({copied} != cudaSuccess) return CUDA_ERROR;  {in_comment('// ' + name)}")
    for index, variable in enumerate(restored):
        name = in_comment(f"// {variable.name}")
        lines.append(f"  if (::evokern_restore_{index}(stream) != cudaSuccess) return CUDA_ERROR;  {name}")
    for launch in traces.launches:
        lines += ["  {", *(f"    {line}" for line in _launch(launch, traces, launch.entry in cooperative)), "  }"]
    return "\n".join(lines)


def _bytes(tensor: Tensor) -> str:
    """Return the size of a buffer in bytes as C++."""
    return f"static_cast<size_t>({elements(tensor)}) * {DTYPE_BYTES[tensor.dtype]}"


def _launch(launch: Launch, traces: Traces, cooperative: bool) -> Iterator[str]:
    shared, names = number(launch.shared_bytes), cpp_names(traces.tensors)
    index = list(dict.fromkeys(one.entry for one in traces.launches)).index(launch.entry)
    yield f"const void* entry = ::{entry_function(index)}();  {in_comment('// ' + launch.entry)}"
    arguments = []
    for index, argument in enumerate(launch.args):
        if isinstance(argument, Scalar):
            yield f"{_SCALARS[argument.dtype]} argument_{index} = {_scalar(argument)};"
        elif isinstance(argument, TileMap):
            yield from _tensor_map(f"argument_{index}", argument.described, names[argument.tensor])
        else:
            yield f"const void* argument_{index} = {names[argument]};"
        arguments.append(f"&argument_{index}")
    yield f"void* arguments[] = {{{', '.join(arguments)}}};"
    yield f"const int shared_bytes = static_cast<int>({shared});"
    yield f"if (shared_bytes > {_STATIC_LIMIT} &&"
    yield "    cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes) != cudaSuccess)"
    yield "  return CUDA_ERROR;"
    yield "cudaLaunchConfig_t config = {};"
    yield f"config.gridDim = dim3({', '.join(number(extent) for extent in launch.grid)});"
    yield f"config.blockDim = dim3({', '.join(number(extent) for extent in launch.block)});"
    yield "config.dynamicSmemBytes = shared_bytes;"
    yield "config.stream = stream;"
    yield from _attributes(launch, traces, cooperative)
    yield "if (cudaLaunchKernelExC(&config, entry, arguments) != cudaSuccess) return CUDA_ERROR;"


MAP_ENCODER = """
#include <cuda.h>

/// Makes the tensor map of a tensor. The driver's function is looked up, so that the program needs no -lcuda.
static bool encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, const void* tensor,
                              const cuuint64_t* shape, const cuuint64_t* strides, const cuuint32_t* box,
                              CUtensorMapSwizzle swizzle) {
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  static void* found = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSuccess;
#if CUDART_VERSION >= 12050
  if (found == nullptr)
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status);
#else
  if (found == nullptr) cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &status);
#endif
  if (found == nullptr || status != cudaDriverEntryPointSuccess) return false;
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  return encode(map, type, rank, const_cast<void*>(tensor), shape, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
"""
"""Helper of programs whose kernels get tensor maps."""


def _tensor_map(name: str, of: TensorMap, pointer: str) -> Iterator[str]:
    """Yield the statements that declare a tensor map, and encode it for a pointer."""

    def listed(kind: str, values: Sequence[int]) -> str:
        return ", ".join(f"static_cast<{kind}>({number(value)})" for value in values)

    kinds = ("UINT8", "UINT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT16", "FLOAT32", "FLOAT64", "BFLOAT16")
    dtype = dict(zip(MAP_TYPES, kinds, strict=False))[of.dtype]
    yield f"const cuuint64_t {name}_shape[] = {{{listed('cuuint64_t', of.shape)}}};"
    yield f"const cuuint64_t {name}_strides[] = {{{listed('cuuint64_t', of.strides or (0,))}}};"
    yield f"const cuuint32_t {name}_box[] = {{{listed('cuuint32_t', of.box)}}};"
    yield f"CUtensorMap {name};"
    yield f"if (!encode_tensor_map(&{name}, CU_TENSOR_MAP_DATA_TYPE_{dtype}, {of.rank}, {pointer}, {name}_shape,"
    yield f"                       {name}_strides, {name}_box, CU_TENSOR_MAP_SWIZZLE_{of.swizzle.upper()}))"
    yield "  return CUDA_ERROR;"


def _attributes(launch: Launch, traces: Traces, cooperative: bool) -> Iterator[str]:
    count = cooperative + (launch.clustered is not None) + (launch.l2_window is not None)
    if not count:
        return
    yield f"cudaLaunchAttribute attributes[{count}] = {{}};"
    index = 0
    if cooperative:  # the blocks wait for each other
        yield f"attributes[{index}].id = cudaLaunchAttributeCooperative;"
        yield f"attributes[{index}].val.cooperative = 1;"
        index += 1
    if launch.clustered is not None:
        if math.prod(launch.clustered) > PORTABLE_CLUSTER_BLOCKS:
            yield "if (cudaFuncSetAttribute(entry, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess)"
            yield "  return CUDA_ERROR;"
        yield f"attributes[{index}].id = cudaLaunchAttributeClusterDimension;"
        for axis, extent in zip("xyz", launch.clustered, strict=True):
            yield f"attributes[{index}].val.clusterDim.{axis} = {extent};"
        index += 1
    if launch.l2_window is not None:
        tensor = traces.tensors[launch.l2_window.tensor]
        yield "int device = 0, window_limit = 0, persisting_limit = 0;"
        yield "if (cudaGetDevice(&device) != cudaSuccess) return CUDA_ERROR;"
        yield "cudaDeviceGetAttribute(&window_limit, cudaDevAttrMaxAccessPolicyWindowSize, device);"
        yield "cudaDeviceGetAttribute(&persisting_limit, cudaDevAttrMaxPersistingL2CacheSize, device);"
        yield f"const size_t window_bytes = std::min<size_t>({_bytes(tensor)}, window_limit);"
        yield "size_t persisting = 0;"
        yield "cudaDeviceGetLimit(&persisting, cudaLimitPersistingL2CacheSize);"
        yield "if (persisting == 0) cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, persisting_limit);"
        yield f"attributes[{index}].id = cudaLaunchAttributeAccessPolicyWindow;"
        yield f"cudaAccessPolicyWindow& window = attributes[{index}].val.accessPolicyWindow;"
        base = cpp_names(traces.tensors)[launch.l2_window.tensor]
        yield f"window.base_ptr = const_cast<void*>(static_cast<const void*>({base}));"
        yield "window.num_bytes = window_bytes;"
        yield f"window.hitRatio = {launch.l2_window.hit_ratio}f;"
        yield "window.hitProp = cudaAccessPropertyPersisting;"
        yield "window.missProp = cudaAccessPropertyStreaming;"
    yield "config.attrs = attributes;"
    yield f"config.numAttrs = {count};"


def _scalar(argument: Scalar) -> str:
    kind = _SCALARS[argument.dtype]
    if argument.dtype == "bool":
        return "true" if argument.value else "false"
    if argument.dtype in ("f16", "bf16"):
        return f"{kind}({_scalar(Scalar('f32', float(argument.value)))})"
    if isinstance(argument.value, int):
        return f"static_cast<{kind}>({number(argument.value)})"
    if math.isfinite(argument.value):
        return f"{kind}({argument.value!r})"
    return "INFINITY" if argument.value > 0 else "-INFINITY" if argument.value < 0 else "NAN"
