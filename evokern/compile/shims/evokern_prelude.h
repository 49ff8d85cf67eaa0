// Names that nvcc provides in every file through cuda_runtime.h, and NVRTC does not: INFINITY, NAN, integer limits,
// fixed-width integers, std::sqrt, std::min, std::pair. Also std::numeric_limits, which every torch header provides.
// evokern passes this file to NVRTC with --pre-include, so line numbers do not change.
#pragma once
#include "stddef.h"
#include "cstdint"
#include "limits.h"
#include "cmath"
#include "algorithm"
#include "limits"
#include "utility"
#include "evokern_types.h"

// Names of host streams; the Thrust header for complex numbers declares operators on them.
namespace std {
template <class Char> struct char_traits;
template <class Char, class Traits> class basic_istream;
template <class Char, class Traits> class basic_ostream;
}  // namespace std

// Programmatic dependent launch: nvcc provides these functions through cuda_device_runtime_api.h, which cuda_runtime.h
// does not include under NVRTC. They are templates, so the functions of that header take precedence if it is included.
template <class... None>
static __device__ __forceinline__ void cudaGridDependencySynchronize(None...) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
template <class... None>
static __device__ __forceinline__ void cudaTriggerProgrammaticLaunchCompletion(None...) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
