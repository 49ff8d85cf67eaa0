// Asynchronous copies from global to shared memory (compute capability 8.0 and above): no registers on the way. 16 bytes
// go by .cg, which keeps them out of L1: it shares its memory with the tiles.
#pragma once

#include "../common/types.cuh"

template <typename T>
__device__ __forceinline__ void copy_async(u32 shared, const T* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
/// Copies 4, 8 or 16 bytes if they are inside; otherwise the target is filled with zeros, and nothing is read.
template <int BYTES>
__device__ __forceinline__ void copy_async_or_zero(u32 shared, const void* global, bool inside) {
  const int size = inside ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(size) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(shared), "l"(global), "n"(BYTES), "r"(size) : "memory");
}
/// Makes a group of the copies since the last one; it may be empty.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the last PENDING groups of this thread are there; other threads see them after a barrier.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
