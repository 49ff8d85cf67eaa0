// What nvcc includes ahead of every file by way of cuda_runtime.h, and NVRTC does not: INFINITY, NAN, the limits of the
// integers, fixed-width integers, std::sqrt, std::min, std::pair; std::numeric_limits, which every torch header brings.
// evokern gives this file to NVRTC as --pre-include, so lines stay put.
#pragma once
#include "stddef.h"
#include "stdint.h"
#include "limits.h"
#include "cmath"
#include "algorithm"
#include "limits"
#include "utility"
#include "evokern_types.h"

// Names of the host streams on which the header of Thrust complex numbers declares operators.
namespace std {
template <class Char> struct char_traits;
template <class Char, class Traits> class basic_istream;
template <class Char, class Traits> class basic_ostream;
}  // namespace std

// Programmatic dependent launch: nvcc has these two of cuda_device_runtime_api.h, which NVRTC's cuda_runtime.h leaves
// out. As templates they give way to that header's where a file includes it.
template <class... None>
static __device__ __forceinline__ void cudaGridDependencySynchronize(None...) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
template <class... None>
static __device__ __forceinline__ void cudaTriggerProgrammaticLaunchCompletion(None...) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
