// Copies by the copy engine of compute capability 9.0 between global and shared memory: one thread starts a copy of
// a whole tile (PTX ISA, "Data Movement and Conversion Instructions: Bulk copy" and "Tensor copy").
#pragma once

#include "../common/types.cuh"

/// Description of a tensor and its tiles, as the host encodes it: a kernel parameter `const __grid_constant__ TensorMap`.
/// Layout of CUtensorMap; cuda.h would lengthen each compile.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

/// Loads the map to the cache for maps ("prefetch", .tensormap).
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Loads contiguous bytes, a multiple of 16, and completes them at the barrier ("cp.async.bulk").
__device__ __forceinline__ void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}
/// Stores contiguous bytes, a multiple of 16, as part of the thread's next group ("cp.async.bulk").
__device__ __forceinline__ void bulk_store(void* global, u32 shared, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes) : "memory");
}

#define TILE_LOAD "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
#define TILE_STORE "d.global.shared::cta.tile.bulk_group"
/// Defines for a rank, with coordinates from the contiguous axis on ("cp.async.bulk.tensor"): tile_load() loads the tile
/// at these coordinates and completes its bytes at the barrier; tile_load_multicast() loads it to the same place in
/// all blocks of `blocks`, a bit for each rank of the cluster, and completes it at the barrier in the same place there; and
/// tile_store() stores a tile as part of the thread's next group.
#define TILE_FUNCTIONS(RANK, WHERE, NAMES, PLACES, ...)                                                               \
  __device__ __forceinline__ void tile_load(u32 shared, const TensorMap& map, u32 barrier, NAMES) {                   \
    asm volatile("cp.async.bulk.tensor." RANK TILE_LOAD " [%0], [%1, {" WHERE "}], [%2];" ::"r"(shared), "l"(&map),   \
                 "r"(barrier), __VA_ARGS__                                                                            \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  __device__ __forceinline__ void tile_load_multicast(u32 shared, const TensorMap& map, u32 barrier, Half blocks, NAMES) { \
    asm volatile("cp.async.bulk.tensor." RANK TILE_LOAD ".multicast::cluster [%0], [%1, {" WHERE "}], [%2], " PLACES ";" \
                 ::"r"(shared), "l"(&map), "r"(barrier), __VA_ARGS__, "h"(blocks)                                     \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  __device__ __forceinline__ void tile_store(const TensorMap& map, u32 shared, NAMES) {                               \
    asm volatile("cp.async.bulk.tensor." RANK TILE_STORE " [%1, {" WHERE "}], [%0];" ::"r"(shared), "l"(&map), "r"(0), \
                 __VA_ARGS__                                                                                          \
                 : "memory");                                                                                         \
  }
#define COORDINATES_2 int x, int y
#define COORDINATES_3 COORDINATES_2, int z
#define COORDINATES_4 COORDINATES_3, int w
TILE_FUNCTIONS("2", "%3,%4", COORDINATES_2, "%5", "r"(x), "r"(y))
TILE_FUNCTIONS("3", "%3,%4,%5", COORDINATES_3, "%6", "r"(x), "r"(y), "r"(z))
TILE_FUNCTIONS("4", "%3,%4,%5,%6", COORDINATES_4, "%7", "r"(x), "r"(y), "r"(z), "r"(w))

/// Closes a group of this thread's stores ("cp.async.bulk.commit_group").
__device__ __forceinline__ void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until at most PENDING groups still read shared memory ("cp.async.bulk.wait_group", .read).
template <int PENDING>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
/// Waits until at most PENDING groups are incomplete; their writes are then visible to this thread.
template <int PENDING>
__device__ __forceinline__ void bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}
