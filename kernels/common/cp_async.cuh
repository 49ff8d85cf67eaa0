// Asynchronous copies from global to shared memory without registers (compute capability 8.0 and above). Copies of 16
// bytes use .cg, which bypasses L1, because L1 and shared memory share their capacity.
#pragma once

#include "../common/types.cuh"

template <typename T>
__device__ __forceinline__ void cp_async(u32 shared, const T* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
/// Copies 4, 8 or 16 bytes if `inside`; otherwise zero-fills the target without reading. FETCH_256 also prefetches the
/// surrounding 256 bytes to L2.
template <int BYTES, bool FETCH_256 = false>
__device__ __forceinline__ void cp_async_zfill(u32 shared, const void* global, bool inside) {
  const int size = inside ? BYTES : 0;
  if constexpr (BYTES == 16 && FETCH_256)
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(size) : "memory");
  else if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(size) : "memory");
  else if constexpr (FETCH_256)
    asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], %2, %3;"
                 ::"r"(shared), "l"(global), "n"(BYTES), "r"(size) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(shared), "l"(global), "n"(BYTES), "r"(size) : "memory");
}
/// Like cp_async_zfill() with FETCH_256, with an L2 cache policy (memory.cuh).
template <int BYTES>
__device__ __forceinline__ void cp_async_zfill_policy(u32 shared, const void* global, bool inside, u64 policy) {
  const int size = inside ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2, %3;"
                 ::"r"(shared), "l"(global), "r"(size), "l"(policy) : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::cache_hint.L2::256B [%0], [%1], %2, %3, %4;"
                 ::"r"(shared), "l"(global), "n"(BYTES), "r"(size), "l"(policy) : "memory");
}
/// Closes a group of the copies since the last group; the group may be empty.
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most the last PENDING groups of this thread are in flight. Other threads see the completed copies
/// after a barrier.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
