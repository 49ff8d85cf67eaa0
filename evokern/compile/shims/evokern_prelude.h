// What nvcc includes ahead of every file by way of cuda_runtime.h, and NVRTC does not: INFINITY, NAN, the limits of the
// integers, fixed-width integers, std::sqrt, std::min. evokern gives this file to NVRTC as --pre-include, so lines stay put.
#pragma once
#include "stddef.h"
#include "stdint.h"
#include "limits.h"
#include "cmath"
#include "algorithm"
#include "evokern_types.h"
