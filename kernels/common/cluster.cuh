// Thread-block clusters, and roles of warps (compute capability 9.0).
#pragma once

#include "../common/types.cuh"

/// Returns the rank of this block in its cluster (PTX ISA, "Special Registers: %cluster_ctarank").
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// Arrives at the barrier of the cluster; earlier accesses are visible to all threads that wait ("barrier.cluster").
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/// Waits for all threads of the cluster; earlier accesses are visible afterwards.
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
/// Returns the address in the cluster of the same place in another block's shared memory ("mapa").
__device__ __forceinline__ u32 cluster_address(u32 shared, u32 rank) {
  u32 address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}
/// Stores a number to another block's shared memory, at an address of cluster_address() ("st", .shared::cluster).
__device__ __forceinline__ void store_cluster(u32 address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
/// Stores 16 bytes.
__device__ __forceinline__ void store_cluster(u32 address, float a, float b, float c, float d) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
/// Returns true in one lane of a whole warp ("elect.sync").
__device__ __forceinline__ bool elect_one() {
  u32 chosen;
  asm volatile("{ .reg .pred P; elect.sync _|P, 0xffffffff; selp.u32 %0, 1, 0, P; }" : "=r"(chosen));
  return chosen != 0;
}
/// Gives registers of a warpgroup back, or takes some, so that each thread has COUNT, a multiple of 8 ("setmaxnreg"). All
/// warps of the warpgroup must execute it.
template <int COUNT>
__device__ __forceinline__ void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
