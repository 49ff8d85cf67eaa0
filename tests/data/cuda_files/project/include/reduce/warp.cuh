#ifndef REDUCE_WARP_CUH
#define REDUCE_WARP_CUH

#include "reduce/ops.cuh"

#ifdef _MSC_VER
#define FORCE_INLINE __forceinline
#else
#define FORCE_INLINE __forceinline__
#endif

template <typename Op>
__device__ FORCE_INLINE float warp_all(float value) {
  for (int offset = 16; offset; offset /= 2) value = Op::apply(value, __shfl_xor_sync(~0u, value, offset));
  return value;
}

#endif
