// Named barriers over some of the warps of a block (PTX ISA, "bar"; id 0 is __syncthreads()), and the proxy fence.
#pragma once

/// Waits until THREADS threads have arrived at this id, here or by named_barrier_arrive().
template <int THREADS>
__device__ __forceinline__ void named_barrier_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
/// Arrives without waiting: what a producer tells consumers, or the other way round.
template <int THREADS>
__device__ __forceinline__ void named_barrier_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

/// Makes what this thread wrote to shared memory visible to the asynchronous proxy, through which wgmma reads it; other
/// threads' wgmma see it after a barrier too.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
