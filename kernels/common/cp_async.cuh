// Asynchronous copies from global to shared memory without registers (compute capability 8.0 and above). Copies of 16
// bytes use .cg, which bypasses L1, because L1 and shared memory share their capacity.
#pragma once

#include "../common/types.cuh"

template <typename T>
__device__ __forceinline__ void cp_async(u32 shared, const T* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
/// Defines NAME<BYTES>(shared, global, inside), which copies 4, 8 or 16 bytes if `inside`, and otherwise zero-fills the
/// target without reading. The last arguments are the rest of the instruction, and its operand.
#define COPY_FUNCTION(NAME, HINTS, PARAMETERS, REST, ...)                                                             \
  template <int BYTES>                                                                                                \
  __device__ __forceinline__ void NAME PARAMETERS {                                                                   \
    const int size = inside ? BYTES : 0;                                                                              \
    if constexpr (BYTES == 16)                                                                                        \
      asm volatile("cp.async.cg.shared.global" HINTS " [%0], [%1], %2, %3" REST ";"                                   \
                   ::"r"(shared), "l"(global), "n"(BYTES), "r"(size) __VA_ARGS__ : "memory");                         \
    else                                                                                                              \
      asm volatile("cp.async.ca.shared.global" HINTS " [%0], [%1], %2, %3" REST ";"                                   \
                   ::"r"(shared), "l"(global), "n"(BYTES), "r"(size) __VA_ARGS__ : "memory");                         \
  }
COPY_FUNCTION(cp_async_zfill, "", (u32 shared, const void* global, bool inside), "")
/// The same with a prefetch of the surrounding 256 bytes to L2; then also with an L2 cache policy (memory.cuh).
COPY_FUNCTION(cp_async_zfill_256, ".L2::256B", (u32 shared, const void* global, bool inside), "")
COPY_FUNCTION(cp_async_zfill_policy, ".L2::cache_hint.L2::256B",
              (u32 shared, const void* global, bool inside, u64 policy), ", %4", , "l"(policy))
/// Closes a group of the copies since the last group; the group may be empty.
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most the last PENDING groups of this thread are in flight. Other threads see the completed copies
/// after a barrier.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
