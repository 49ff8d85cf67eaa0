// Barriers in shared memory that also count the bytes of asynchronous copies (PTX ISA, "Parallel Synchronization and
// Communication Instructions: mbarrier"). A barrier is 8 bytes at a 32-bit address. Its phases alternate between parity 0
// and 1; a phase ends when all its arrivals and announced bytes have come.
#pragma once

#include "../common/types.cuh"

/// Prepares a barrier for phases of `arrivals` ("mbarrier.init").
__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to the asynchronous proxy and the cluster ("membar / fence", .mbarrier_init). Other
/// threads also need a barrier of the block or the cluster.
__device__ __forceinline__ void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
/// Arrives, and announces bytes of copies in this phase ("mbarrier.arrive", .expect_tx).
__device__ __forceinline__ void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Arrives ("mbarrier.arrive"). The release orders this thread's earlier accesses before the end of the phase.
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives at the barrier of a block of the cluster, whose address cluster_address() returns ("mbarrier.arrive",
/// .shared::cluster). The scope is that of the block: this releases reads, such as those of a stage. A release at the scope
/// of the cluster would wait for all earlier accesses (a matmul took twice as long).
__device__ __forceinline__ void mbarrier_arrive_remote(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Waits until the phase of this parity has ended ("mbarrier.test_wait / mbarrier.try_wait", .parity). A new barrier counts
/// as if its phase of parity 1 had ended.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{ .reg .pred P; WAIT: mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1; @!P bra WAIT; }" ::"r"(barrier), "r"(parity)
      : "memory");
}
