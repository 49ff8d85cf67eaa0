// Named barriers for some warps of a block (PTX ISA, "bar"; id 0 is __syncthreads()), and the proxy fence.
#pragma once

/// Waits until COUNT threads have arrived at this id, by this function or named_barrier_arrive().
template <int COUNT>
__device__ __forceinline__ void named_barrier_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(COUNT) : "memory");
}
/// Arrives without waiting, for signals between producers and consumers.
template <int COUNT>
__device__ __forceinline__ void named_barrier_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(COUNT) : "memory");
}

/// Makes this thread's writes to shared memory visible to the asynchronous proxy, which wgmma uses. wgmma of other
/// threads also need a barrier.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
