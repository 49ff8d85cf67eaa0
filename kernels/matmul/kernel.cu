// Matrix product: C[m][n] = sum_k A[m][k] * B[k][n], or A[m][k] * B[n][k] with B stored as a linear layer's weights
//
//   A [M, K], B [K, N] or [N, K], C [M, N]: 16-bit floats, row-major, contiguous; any M, N, K if VECTOR divides K and N
//   tensor cores with mma.sync m16n8k16, or on sm_90a with wgmma; accumulation in fp32, or for fp16 also in fp16
//
// With PATH=tiled, a block computes a BLOCK_M x BLOCK_N tile of C, in steps of BLOCK_K through a ring of shared-memory
// stages. PATH=skinny is for M up to 128, bound by reading B (skinny.cuh). PATH=bulk is for the copy engine of compute
// capability 9.0 (bulk.cuh). kernel.py describes the genes; the generated header defines them, and asserts the constraints.
//
// Problem macros: BF16 (1 if A, B and C are bfloat16, 0 if they are fp16); NT (1 if B is [N, K], with tiles like those of A;
// 0 if B is [K, N]); ROWS_A, COLUMNS_B, DEPTH_A (M, N and K if they are compile-time constants, as always on the skinny path;
// otherwise 0). kernel.py has the rules, and computes the sizes that are macros: THREADS that multiply, PRODUCER_THREADS and
// STORE_THREADS in addition, ALL_THREADS, LOADERS that load tiles, steps IN_FLIGHT while one is multiplied, PITCH of a row in
// elements and STAGE of a tile in bytes, and the sizes of skinny.cuh and bulk.cuh.

#include <stdint.h>

#include "evokern_genes.h"

constexpr bool SKINNY = PATH == PATH_SKINNY, BULK = PATH == PATH_BULK;
constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;  // tile of one warp
constexpr int TILES_M = WARP_M / 16, TILES_N = WARP_N / 8;             // mma tiles of one warp
constexpr int CHUNK = 8;                                               // elements per 16-byte chunk
constexpr bool PRODUCERS = LOAD == LOAD_PRODUCER_WARPS, ASYNC = LOAD == LOAD_CP_ASYNC || PRODUCERS;
constexpr bool AHEAD = FRAGMENTS == FRAGMENTS_AHEAD;
constexpr bool WGMMA = !SKINNY && !BULK && TENSOR_CORES == TENSOR_CORES_WGMMA;
constexpr int TILE_STRIDE = WGMMA ? 64 : 16;                           // rows from a warp's mma tile to the next
constexpr bool ROW_RING = SKINNY && LANES == LANES_ROW && PRODUCTS == PRODUCTS_MMA;  // lanes exchange rows for mma (row_ring.cuh)
constexpr bool FP16_SUM = ACCUMULATOR == ACCUMULATOR_FP16;
constexpr bool STORE_WARPS = !SKINNY && EPILOGUE == EPILOGUE_STORE_WARPS;
constexpr bool STAGED_STORE = EPILOGUE != EPILOGUE_DIRECT && SPLIT_K == 1;
constexpr unsigned FIRST_LOADER = PRODUCERS ? THREADS : 0;
constexpr int STAGE = A_STAGE + B_STAGE;
constexpr int DEPTHS = BLOCK_K / 16;                                   // mma tiles along K per step
constexpr int TICKETS = 4096;                                          // most tiles of C that one launch can merge

#include "../common/barrier.cuh"
#include "../common/cp_async.cuh"
#include "../common/half.cuh"
#include "../common/memory.cuh"
#include "../common/mma.cuh"
#include "split_k.cuh"

// Named barriers for additional warps (id 0 is __syncthreads()): two for a tile of C, two for each stage of the ring.
constexpr int COMPUTE_BARRIER = 1, C_FREE = 2, C_FULL = 3, STAGE_FULL = 4, STAGE_FREE = STAGE_FULL + STAGES;
__device__ __forceinline__ void sync_compute_warps() {
  if constexpr (STORE_WARPS || PRODUCERS)
    named_barrier_sync<THREADS>(COMPUTE_BARRIER);
  else
    __syncthreads();
}
// Rows and columns of C that one block, or with PATH=bulk one cluster, computes at a time.
constexpr int RASTER_M = BULK ? TILE_M * CLUSTER_M : BLOCK_M;
constexpr int RASTER_N = BULK ? TILE_N * CLUSTER_N : BLOCK_N;

// Returns the origin of a tile of C in the order given by RASTER.
struct TileOrigin {
  int row, column;

  __device__ __forceinline__ TileOrigin(int tile, int M, int N) {
    const int tiles_m = (M + RASTER_M - 1) / RASTER_M, tiles_n = (N + RASTER_N - 1) / RASTER_N;
    int tile_m, tile_n;
    if constexpr (RASTER == RASTER_ROWS) {
      tile_m = tile / tiles_n, tile_n = tile % tiles_n;
    } else if constexpr (RASTER == RASTER_COLUMNS) {
      tile_m = tile % tiles_m, tile_n = tile / tiles_m;
    } else {
      const int group = tile / (GROUP * tiles_n), first = group * GROUP;
      const int height = min(GROUP, tiles_m - first), within = tile - group * GROUP * tiles_n;
      tile_m = first + within % height, tile_n = within / height;
    }
    row = tile_m * RASTER_M, column = tile_n * RASTER_N;
  }
};

#if PATH == PATH_SKINNY
#include "../common/warp.cuh"
#include "skinny.cuh"
#elif PATH == PATH_BULK
#include "../common/bulk_copy.cuh"
#include "../common/cluster.cuh"
#include "../common/mbarrier.cuh"
#include "../common/wgmma.cuh"
#include "bulk.cuh"
#else
#if TENSOR_CORES == TENSOR_CORES_WGMMA
#include "../common/wgmma.cuh"
#endif
#include "tiles.cuh"

// Accumulators of one 16x8 tile of C, and a lane's two neighbouring elements in the upper (half 0) or lower rows.
using Sum = Accumulator<FP16_SUM ? 16 : 32>::type;
__device__ __forceinline__ float low_element(const float (&c)[4], int half) { return c[2 * half]; }
__device__ __forceinline__ float high_element(const float (&c)[4], int half) { return c[2 * half + 1]; }
__device__ __forceinline__ float low_element(const uint32_t (&c)[2], int half) { return low2float(c[half]); }
__device__ __forceinline__ float high_element(const uint32_t (&c)[2], int half) { return low2float(c[half] >> 16); }

// The steps of one block in the ring of stages.
struct Pipeline {
  const uint16_t *matrix_a, *matrix_b;
  int M, N, K;
  TileLoader<BLOCK_M, BLOCK_K, A_PITCH, true> a;
  TileLoader<NT ? BLOCK_N : BLOCK_K, NT ? BLOCK_K : BLOCK_N, B_PITCH, NT> b;
  uint32_t shared;  // address of the ring
  int to_load;      // steps that are not yet started
  uint32_t filled;  // offset of the stage that is filled next
  int tile, tile_left;  // tile of C that is being loaded, and its steps that are not yet started
  int awaited, released, to_release;  // next stage to wait for, next stage to release, and releases that are still awaited

  __device__ __forceinline__ Pipeline(const uint16_t* matrix_a, const uint16_t* matrix_b, int M, int N, int K, TileOrigin at,
                                      int depth0, uint32_t shared, int steps, int tiles)
      : matrix_a(matrix_a), matrix_b(matrix_b), M(M), N(N), K(K), a(matrix_a, at.row, depth0, M, K),
        b(matrix_b, NT ? at.column : depth0, NT ? depth0 : at.column, NT ? N : K, NT ? K : N),
        shared(shared), to_load(steps * tiles), filled(0), tile(blockIdx.x), tile_left(steps), awaited(0), released(0),
        to_release(steps * tiles - STAGES) {}

  // Continues with the block's next tile of C when all steps of the current tile are started.
  __device__ __forceinline__ void next_tile() {
    if (tile_left > 0) return;
    tile += gridDim.x, tile_left = (K + BLOCK_K - 1) / BLOCK_K;
    const TileOrigin at(tile, M, N);
    a = {matrix_a, at.row, 0, M, K};
    b = {matrix_b, NT ? at.column : 0, NT ? 0 : at.column, NT ? N : K, NT ? K : N};
  }

  __device__ __forceinline__ static uint32_t next_stage(uint32_t stage) {
    return stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
  }

  // Starts loading the next step. After the last step, an empty group keeps the number of groups correct.
  __device__ __forceinline__ void load_next() {
    if (to_load > 0) {
      if constexpr (TILES > 1) next_tile();
      a.start(shared + filled);
      b.start(shared + filled + A_STAGE);
      tile_left--;
    }
    if constexpr (ASYNC) {
      filled = next_stage(filled);
      to_load--;
      cp_async_commit_group();
    }
  }
  // Waits until the oldest step in flight is visible to every thread. Then every thread has also read the stage that
  // load_next() fills.
  __device__ __forceinline__ void wait() {
    if constexpr (PRODUCERS) {
      named_barrier_sync<THREADS + PRODUCER_THREADS>(STAGE_FULL + awaited);
      return;
    } else if constexpr (ASYNC) {
      cp_async_wait_group<IN_FLIGHT - 1>();
    } else if (to_load > 0) {
      a.finish(shared + filled);
      b.finish(shared + filled + A_STAGE);
      filled = next_stage(filled);
      to_load--;
    }
    if constexpr (WGMMA) fence_proxy_async();
    sync_compute_warps();
  }
  // Releases the oldest awaited stage if it will be filled again: all reads of it are done.
  __device__ __forceinline__ void release() {
    if (to_release > 0) named_barrier_arrive<THREADS + PRODUCER_THREADS>(STAGE_FREE + released);
    to_release--;
    released = released == STAGES - 1 ? 0 : released + 1;
  }
  // Loop of the producer warps: a step is announced after LAG further steps have been started.
  __device__ __forceinline__ void load_all() {
    constexpr int LAG = STAGES - 2;
    const int all = to_load;
    int stage = 0, announced = 0;
#pragma unroll 1
    for (int step = 0; step < all + LAG; step++) {
      if (step >= STAGES && step < all) named_barrier_sync<THREADS + PRODUCER_THREADS>(STAGE_FREE + stage);
      load_next();
      stage = stage == STAGES - 1 ? 0 : stage + 1;
      if (step < LAG) continue;
      cp_async_wait_group<LAG>();
      fence_proxy_async();
      named_barrier_arrive<THREADS + PRODUCER_THREADS>(STAGE_FULL + announced);
      announced = announced == STAGES - 1 ? 0 : announced + 1;
    }
  }
};

#if TENSOR_CORES == TENSOR_CORES_WGMMA
#include "wgmma_loop.cuh"
#else
#include "mma_loop.cuh"
#endif

// Staging of a tile of C in shared memory.
struct StagedTile {
  static constexpr int PITCH = 2 * (BLOCK_N + CHUNK);  // bytes per row; the padding spreads rows over the banks
  static constexpr int AT = TILES == 1 ? 0 : STAGES * STAGE;  // it reuses the ring's memory if no step follows

  __device__ __forceinline__ static void put(uint32_t shared, int row, int column, uint32_t pair) {
    store_shared(shared + AT + row * PITCH + column * 2, pair);
  }
  // Stores the tile with THREADS_GIVEN threads; this is the `thread`-th of them.
  template <int THREADS_GIVEN>
  __device__ __forceinline__ static void store(uint32_t shared, uint16_t* c, TileOrigin at, int M, int N, int thread) {
#pragma unroll STORE_WARPS ? 4 : 16
    for (int index = thread; index < BLOCK_M * BLOCK_N / CHUNK; index += THREADS_GIVEN) {
      const int row = index / (BLOCK_N / CHUNK), column = index % (BLOCK_N / CHUNK) * CHUNK;
      const Chunk pairs = load_shared_chunk(shared + AT + row * PITCH + column * 2);
      if constexpr (VECTOR == CHUNK) {
        if (at.row + row < M && at.column + column < N)
          store_global(c + static_cast<size_t>(at.row + row) * N + at.column + column, pairs.v);
      } else {
#pragma unroll
        for (int i = 0; i < 4; i++) store_pair(c, at.row + row, at.column + column + 2 * i, M, N, pairs.v[i]);
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS)
matmul(const uint16_t* __restrict__ a, const uint16_t* __restrict__ b, uint16_t* __restrict__ c, float* __restrict__ partial,
       int rows, int columns, int depth) {
  constexpr bool COMPILED = SHAPE == SHAPE_COMPILED;
  const int M = COMPILED ? ROWS_A : rows, N = COMPILED ? COLUMNS_B : columns, K = COMPILED ? DEPTH_A : depth;
  extern __shared__ __align__(1024) unsigned char memory[];  // wgmma's swizzle repeats after 1024 bytes
  const uint32_t shared = shared_address(memory);
  // wgmma needs matrix descriptors in uniform registers; a shuffle makes the value uniform for the compiler.
  const int lane = threadIdx.x % 32, warp = WGMMA ? __shfl_sync(~0u, threadIdx.x / 32, 0) : threadIdx.x / 32;
  // First row and column of this warp. The warps of a warpgroup interleave by 16 rows.
  const int warp_m = WGMMA ? warp % WARPS_M / 4 * (4 * WARP_M) + warp % 4 * 16 : warp / WARPS_N * WARP_M;
  const int warp_n = (WGMMA ? warp / WARPS_M : warp % WARPS_N) * WARP_N;
  const int all_steps = (K + BLOCK_K - 1) / BLOCK_K, share = (all_steps + SPLIT_K - 1) / SPLIT_K;
  const int first_step = blockIdx.y * share, steps = min(share, all_steps - first_step);

  // Tiles of this block: its index plus multiples of the number of blocks, so that concurrent tiles are neighbours.
  const int tiles = ((M + BLOCK_M - 1) / BLOCK_M) * ((N + BLOCK_N - 1) / BLOCK_N);
  const int own_tiles = TILES == 1 ? 1 : (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
  if constexpr (STORE_WARPS) {
    if (threadIdx.x >= THREADS + PRODUCER_THREADS) {
#pragma unroll 1
      for (int own = 0; own < own_tiles; own++) {
        named_barrier_arrive<THREADS + STORE_THREADS>(C_FREE);
        named_barrier_sync<THREADS + STORE_THREADS>(C_FULL);
        const TileOrigin at(blockIdx.x + own * gridDim.x, M, N);
        StagedTile::store<STORE_THREADS>(shared, c, at, M, N, threadIdx.x - THREADS - PRODUCER_THREADS);
      }
      return;
    }
  }
  Pipeline pipeline(a, b, M, N, K, TileOrigin(blockIdx.x, M, N), first_step * BLOCK_K, shared, steps, own_tiles);
  if constexpr (PRODUCERS) {
    if (threadIdx.x >= THREADS) {
      pipeline.load_all();
      return;
    }
  } else {
#pragma unroll
    for (int stage = 0; stage < (ASYNC ? IN_FLIGHT : 1); stage++) pipeline.load_next();
  }

  uint32_t stage = 0;  // offset of the current step
  auto compute = [&](int tile) {
    const TileOrigin at(tile, M, N);
    const int row0 = at.row, column0 = at.column;
    Sum sum[TILES_M][TILES_N] = {};
    accumulate(sum, pipeline, stage, steps, warp_m, warp_n);

    // Element pairs of the accumulators: row lane/4 (+8), columns 2*(lane%4) of each 16x8 tile.
    auto for_each_pair = [&](auto&& use) {
#pragma unroll
      for (int m = 0; m < TILES_M; m++)
#pragma unroll
        for (int n = 0; n < TILES_N; n++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const int row = warp_m + m * TILE_STRIDE + half * 8 + lane / 4, column = warp_n + n * 8 + lane % 4 * 2;
            use(row, column, low_element(sum[m][n], half), high_element(sum[m][n], half));
          }
    };

    if constexpr (SPLIT_K > 1 && MERGE == MERGE_TICKET) {
      for_each_pair([&](int row, int column, float low, float high) {
        store_partial_pair(partial, row0 + row, column0 + column, M, N, low, high);
      });
      if (!last_of_split(blockIdx.x)) return;
      for_each_pair([&](int row, int column, float low, float high) {
        merge_pair(c, partial, row0 + row, column0 + column, M, N, low, high);
      });
    } else if constexpr (SPLIT_K > 1) {
      float* mine = partial + static_cast<size_t>(blockIdx.y) * M * N;
      for_each_pair([&](int row, int column, float low, float high) {
        if (row0 + row >= M) return;
        float* target = mine + static_cast<size_t>(row0 + row) * N + column0 + column;
        if (column0 + column < N) target[0] = low;
        if (column0 + column + 1 < N) target[1] = high;
      });
    } else if constexpr (STAGED_STORE) {
      if constexpr (STORE_WARPS)
        named_barrier_sync<THREADS + STORE_THREADS>(C_FREE);  // the previous tile is stored
      else if constexpr (TILES == 1)
        sync_compute_warps();  // all reads of the stages are done
      for_each_pair([&](int row, int column, float low, float high) {
        StagedTile::put(shared, row, column, pack_half2(low, high));
      });
      if constexpr (STORE_WARPS) {
        named_barrier_arrive<THREADS + STORE_THREADS>(C_FULL);
      } else {
        sync_compute_warps();
        StagedTile::store<THREADS>(shared, c, at, M, N, threadIdx.x);
      }
    } else {
      for_each_pair([&](int row, int column, float low, float high) {
        store_pair(c, row0 + row, column0 + column, M, N, pack_half2(low, high));
      });
    }
  };
  if constexpr (TILES == 1) {
    compute(blockIdx.x);
  } else {
#pragma unroll 1
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) compute(tile);
  }
}
#endif
