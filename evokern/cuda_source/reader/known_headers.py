"""Known headers, library namespaces and names, classified for device and host code."""

from __future__ import annotations

import re


def _name_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# words: the sets below are lists of names
SHIMMED = _name_set("""
    algorithm array assert.h cassert cfloat climits cmath cstddef cstdint cstdio cstdlib cstring float.h
    inttypes.h cinttypes initializer_list limits limits.h math.h numeric stdbool.h stddef.h stdint.h stdio.h
    stdlib.h string.h tuple type_traits utility
""")
"""Host headers for which evokern provides a shim (``evokern/compile/shims``); a test compares the two lists."""

# words: a list of names
CUDA = _name_set("""
    cooperative_groups.h cuComplex.h cuda.h cuda_awbarrier.h cuda_awbarrier_primitives.h cuda_bf16.h
    cuda_bf16.hpp cuda_fp16.h cuda_fp16.hpp cuda_fp4.h cuda_fp6.h cuda_fp8.h cuda_pipeline.h
    cuda_pipeline_primitives.h cuda_runtime.h cuda_runtime_api.h cuda_device_runtime_api.h cuda_tf32.h
    curand_kernel.h device_atomic_functions.h device_double_functions.h device_functions.h
    device_launch_parameters.h device_types.h driver_types.h math_constants.h math_functions.h mma.h
    sm_20_atomic_functions.h sm_30_intrinsics.h sm_32_intrinsics.h sm_35_intrinsics.h sm_60_atomic_functions.h
    sm_61_intrinsics.h surface_types.h texture_types.h texture_indirect_functions.h vector_functions.h
    vector_types.h channel_descriptor.h builtin_types.h common_functions.h host_defines.h
""")
"""CUDA toolkit headers that NVRTC can compile."""

LIBRARIES = _name_set("""
    cooperative_groups cub cuda cute cutlass nv thrust crt
""")
"""Top-level folders of header libraries that support device compilers; only the compiler reads these headers."""

HALF_TYPES = {
    "cuda_fp16.h": r"(?:__)?half2?|__half\w*|__\w+2half\w*",
    "cuda_bf16.h": r"(?:__)?nv_bfloat16\w*|__\w*bfloat16\w*",
}
"""Header → pattern of its half types; host headers (cuBLAS, torch, NCCL) include these headers indirectly."""

TORCH_DEVICE = "torch_device.cuh"
"""Header in ``evokern/cuda_source`` with the parts of PyTorch's headers that device code uses."""

# words: a list of names
TORCH_NAMES = _name_set("""
    Half BFloat16 TensorAccessor GenericPackedTensorAccessor PackedTensorAccessor PackedTensorAccessor32
    PackedTensorAccessor64 RestrictPtrTraits DefaultPtrTraits acc_type opmath_type
""")
"""Names in the namespaces of PyTorch that `TORCH_DEVICE` declares."""

TORCH_GLOBALS = frozenset({"gpuAtomicAdd", "CUDA_KERNEL_LOOP", "CUDA_KERNEL_LOOP_TYPE"})
"""Functions and macros that `TORCH_DEVICE` declares outside namespaces."""

_TORCH_NAMESPACES = frozenset({"torch", "at", "c10"})

_DECLARED_BY = HALF_TYPES | {
    "mma.h": r"wmma",
    "cooperative_groups.h": r"cooperative_groups",
    "curand_kernel.h": r"curand_init|curandState\w*",
    "cuda_pipeline.h": r"__pipeline_\w+",
}
"""Toolkit header → pattern of the names that it declares."""

BOTH_HALF_TYPES = "cuda_fp8.h"
"""Toolkit header that includes both headers of half types."""

HOST_NAMESPACES = _name_set("""
    torch at c10 caffe2 pybind11 py boost cv nvinfer1 absl fmt spdlog xla tensorflow ffi tvm
""")
"""Namespaces of host-only libraries."""

THRUST_HOST = _name_set("""
    device_ptr device_vector host_vector universal_vector device_malloc device_free raw_pointer_cast device_pointer_cast
    copy sort reduce transform fill sequence device host
""")
"""Names in ``thrust`` whose headers NVRTC rejects."""

# words: a list of names
DEVICE_STD = _name_set("""
    min max swap move forward numeric_limits array tuple pair get declval size_t ptrdiff_t nullptr_t byte
    initializer_list integral_constant bool_constant true_type false_type is_same is_same_v conditional
    conditional_t enable_if enable_if_t decay decay_t remove_cv remove_cv_t remove_const remove_const_t
    remove_reference remove_reference_t remove_cvref remove_cvref_t remove_pointer remove_pointer_t add_const
    add_pointer is_integral is_integral_v is_floating_point is_floating_point_v is_signed is_signed_v
    is_unsigned is_unsigned_v is_pointer is_pointer_v is_const is_void is_void_v is_arithmetic is_arithmetic_v
    is_enum is_class is_base_of is_convertible make_unsigned make_unsigned_t make_signed make_signed_t
    underlying_type underlying_type_t void_t common_type common_type_t is_trivially_copyable
    is_trivially_copyable_v is_constructible index_sequence make_index_sequence integer_sequence
    make_integer_sequence index_sequence_for tuple_size tuple_element make_tuple make_pair tie exchange as_const
    alignment_of aligned_storage aligned_storage_t clamp abs fabs sqrt exp exp2 log log2 log10 pow sin cos tan
    tanh sinh cosh floor ceil round trunc fmin fmax
    fma isnan isinf isfinite hypot erf cbrt copysign fmod lround memcpy memset int8_t int16_t int32_t int64_t
    uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t gcd lcm
""")
"""Names in ``std`` that device code may use with evokern's header shims."""

DEVICE_RUNTIME = _name_set("""
    cudaError_t cudaError cudaSuccess cudaStream_t cudaTextureObject_t cudaSurfaceObject_t
    cudaGridDependencySynchronize cudaTriggerProgrammaticLaunchCompletion cudaDataType cudaRoundMode
""")
"""Names with the prefix of the CUDA runtime that device code may use."""

_HOST_LIBRARIES = re.compile(
    r"(?:torch|ATen|c10|caffe2|pybind11|boost|absl|opencv2?|Eigen|sys|bits|unistd|omp|mpi|time|getopt|nvToolsExt|nvtx3|"
    r"cublas\w*|cudnn\w*|cusparse\w*|cusolver\w*|cufft\w*|curand|nccl|nvrtc|cuda_profiler\w*|pthread|signal|errno|"
    r"fcntl|sched|dirent|ctype|wchar|locale)(?:/.*|\.h|\.hpp)?"
)


_HOST_PARTS = re.compile(
    r"cub/(?:device/.*|util_allocator\.cuh)|thrust/(?:(?:system|async|mr|detail)/.*|(?:device|host|universal)_.*|"
    r"(?:execution_policy|sort|reduce|scan|transform|copy|fill|count|unique|gather|scatter|sequence|merge|remove|for_each|"
    r"inner_product|generate|partition|binary_search|adjacent_difference|tabulate|find|logical|replace|reverse|mismatch|"
    r"equal|extrema|uninitialized|set_operations|memory)\w*\.h)"
)
"""Headers of device libraries that only host code uses; NVRTC rejects them."""


def is_host_part(name: str) -> bool:
    """Return whether a header is the host-only part of a device library, which NVRTC rejects."""
    return _HOST_PARTS.fullmatch(name) is not None


def is_host_header(name: str) -> bool:
    """Return whether a header is host-only: a C++ standard header or a header of a known host library.

    Other names ending in ``.cuh`` count as device code.
    """
    if is_host_part(name):
        return True
    if name.endswith(".cuh"):
        return False
    return ("." not in name and "/" not in name) or _HOST_LIBRARIES.fullmatch(name) is not None


def is_device_header(name: str) -> bool:
    """Return whether the device compiler, its include directories or the shims provide a header."""
    library = "/" in name and name.split("/")[0] in LIBRARIES and not is_host_part(name)
    return name in SHIMMED or name in CUDA or library


def is_torch_type(namespace: str, name: str) -> bool:
    """Return whether `TORCH_DEVICE` declares a qualified name."""
    return namespace in _TORCH_NAMESPACES and name in TORCH_NAMES


def toolkit_header(name: str) -> str:
    """Return the toolkit header that declares a name, or an empty string."""
    return next((header for header, names in _DECLARED_BY.items() if re.fullmatch(names, name)), "")
