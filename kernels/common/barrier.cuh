// Barriers over some of the warps of a block (PTX ISA, "bar"; id 0 is __syncthreads()), and the fence that wgmma needs.
#pragma once

/// Waits until THREADS threads have come here or to arrive_named() with the same id.
template <int THREADS>
__device__ __forceinline__ void sync_named(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
/// Counts as come, and goes on.
template <int THREADS>
__device__ __forceinline__ void arrive_named(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

/// What this thread wrote to shared memory before is there for wgmma, which reads by another way, after a barrier.
__device__ __forceinline__ void show_to_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
