// Matrix product: C[m][n] = sum_k A[m][k] * B[k][n], or with B as a linear layer keeps its weights * B[n][k]
//
//   A [M, K], B [K, N] or [N, K], C [M, N]: 16-bit floats, row-major, contiguous; any M, N, K, if VECTOR divides K and N
//   tensor cores through mma.sync m16n8k16, or on sm_90a through wgmma; accumulation in fp32, or of fp16 in fp16
//
//   PATH              tiled: a block computes a BLOCK_M x BLOCK_N tile of C, walking K in steps of BLOCK_K through a ring of
//                     shared-memory stages; skinny: for M up to 128, where the bytes of B alone decide (skinny.cuh)
//
// Both paths:
//
//   LOAD              global to shared memory: cp_async (no registers on the way), registers (load early, store late), or by
//                     producer_warps, four that do nothing else (cp.async; wgmma alone); skinny: where weights in flight wait
//   FRAGMENTS         tiled: read from shared memory just before they are multiplied (in_place), or 16 elements of K ahead,
//                     across steps too (ahead: twice the registers, and the tensor cores need not wait at a barrier; with
//                     wgmma, a step is still multiplied while the next one is waited for); skinny: A's, as far as the weights
//   STAGES            steps in the ring: of tiles all but one are in flight, all but two with wgmma ahead; skinny: all
//   VECTOR            elements that a thread moves at once; must divide K and N, or addresses are misaligned
//   SPLIT_K           blocks that share a tile of C along K
//   MERGE             of a split: a second launch adds the partial sums, or the block with the last ticket does
//   MIN_BLOCKS        resident blocks promised to the compiler
//
// The tiled path:
//
//   BLOCK_M, BLOCK_N  tile of C of a block           BLOCK_K  depth of a step: longer steps, fewer barriers
//   WARPS_M, WARPS_N  warps along the tile's sides; a warp keeps (BLOCK_M/WARPS_M) x (BLOCK_N/WARPS_N) in registers
//   TENSOR_CORES      mma_sync: each warp reads fragments and multiplies them; wgmma: a warpgroup multiplies together, and
//                     its tensor cores read tiles from shared memory directly
//   SMEM_LAYOUT       xor_swizzle (16-byte chunks permuted by row), padded (16 bytes more a row) or plain (conflicts)
//   ACCUMULATOR       fp32, or fp16 (half the registers; overflows on large inputs)
//   RASTER            order of blocks: rows, columns, or grouped (GROUP rows of tiles together, for reuse in L2)
//   GROUP             rows of tiles in a group
//   TILES             tiles of C that a block computes in turn: the first steps of the next one are on their way while one
//                     is stored
//   SHAPE             M, N and K as arguments (runtime), or known to the compiler: no divisions to find a tile, no tails that
//                     are not there
//   EPILOGUE          C straight from registers, or through shared memory in 16-byte stores, by the warps that multiply or by
//                     store_warps, four that do nothing else: the next tile is multiplied meanwhile (TILES above one)
//
// The skinny path:
//
//   PRODUCTS          mma: tensor cores, weights as the operand of 16 rows; fma: plain FMAs, up to 8 rows
//   WEIGHT_POLICY     of the loads of B: normal, no_allocate (not in L1, which is A's then), prefetch (256 bytes to L2 too),
//                     evict_first (the same, and the first that L2 gives up)
//   LANES             fragments: each lane loads what it multiplies, of eight columns; row: the lanes of a warp ask for long
//                     pieces of a row of B together, for plain FMAs at NT alone
//   WARP_COLUMNS      columns of C of a warp         DEPTH    elements of K of a warp's step (with LANES=row and plain FMAs an
//                     eighth of the columns, and steps eight times as deep)
//   WARPS_ACROSS      warps of a block side by side  WARPS_K  warps of a block that share K
//
// Problem macros: BF16 (1 where A, B and C are bfloat16, 0 where they are fp16); NT (1 where B is [N, K], 0 where it is
// [K, N]: its tile then has the rows of another one of A); ROWS_A, COLUMNS_B, DEPTH_A (M, N and K where the program is compiled
// for its shape, as the skinny path always is; else 0).

#include <stdint.h>

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(WARPS_M) || !defined(WARPS_N)
#error "BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M and WARPS_N must be defined"
#endif
#if !defined(STAGES) || !defined(VECTOR) || !defined(GROUP) || !defined(TILES) || !defined(SPLIT_K) || !defined(MIN_BLOCKS)
#error "STAGES, VECTOR, GROUP, TILES, SPLIT_K and MIN_BLOCKS must be defined"
#endif
#if !defined(PATH) || !defined(TENSOR_CORES) || !defined(MERGE) || !defined(BF16) || !defined(NT) || !defined(ROWS_A)
#error "PATH, TENSOR_CORES, MERGE, BF16, NT and ROWS_A must be defined"
#endif
#if !defined(COLUMNS_B) || !defined(DEPTH_A) || !defined(SHAPE)
#error "COLUMNS_B, DEPTH_A and SHAPE must be defined"
#endif
#if !defined(PRODUCTS) || !defined(WEIGHT_POLICY) || !defined(WARP_COLUMNS) || !defined(DEPTH)
#error "PRODUCTS, WEIGHT_POLICY, WARP_COLUMNS and DEPTH must be defined"
#endif
#if !defined(WARPS_ACROSS) || !defined(WARPS_K) || !defined(LANES)
#error "WARPS_ACROSS, WARPS_K and LANES must be defined"
#endif
#if !defined(FRAGMENTS) || !defined(LOAD) || !defined(SMEM_LAYOUT) || !defined(ACCUMULATOR) || !defined(RASTER) || !defined(EPILOGUE)
#error "FRAGMENTS, LOAD, SMEM_LAYOUT, ACCUMULATOR, RASTER and EPILOGUE must be defined"
#endif

constexpr bool SKINNY = PATH == PATH_SKINNY;
constexpr int THREADS = (SKINNY ? WARPS_ACROSS * WARPS_K : WARPS_M * WARPS_N) * 32;
constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;  // tile of one warp
constexpr int TILES_M = WARP_M / 16, TILES_N = WARP_N / 8;             // mma tiles of one warp
constexpr int CHUNK = 8;                                               // elements of a 16-byte chunk
constexpr bool PRODUCERS = LOAD == LOAD_PRODUCER_WARPS, ASYNC = LOAD == LOAD_CP_ASYNC || PRODUCERS;
constexpr bool AHEAD = FRAGMENTS == FRAGMENTS_AHEAD;
constexpr bool WGMMA = !SKINNY && TENSOR_CORES == TENSOR_CORES_WGMMA;
constexpr int TILE_STRIDE = WGMMA ? 64 : 16;                           // rows from a warp's mma tile to its next
constexpr bool ROW_RING = SKINNY && LANES == LANES_ROW && PRODUCTS == PRODUCTS_MMA;  // lanes exchange rows for mma (row_ring.cuh)
constexpr bool FP16_SUM = ACCUMULATOR == ACCUMULATOR_FP16;
constexpr bool STORE_WARPS = !SKINNY && EPILOGUE == EPILOGUE_STORE_WARPS;
constexpr bool STAGED_STORE = EPILOGUE != EPILOGUE_DIRECT && SPLIT_K == 1;
constexpr int PRODUCER_THREADS = PRODUCERS ? 128 : 0, STORE_THREADS = STORE_WARPS ? 128 : 0;  // behind the THREADS that multiply
constexpr int ALL_THREADS = THREADS + PRODUCER_THREADS + STORE_THREADS, LOADERS = PRODUCERS ? PRODUCER_THREADS : THREADS;
constexpr unsigned FIRST_LOADER = PRODUCERS ? THREADS : 0;
constexpr int PAD = SMEM_LAYOUT == SMEM_LAYOUT_PADDED ? CHUNK : 0;
#if NT
constexpr int A_PITCH = BLOCK_K + PAD, B_PITCH = BLOCK_K + PAD;        // elements of a row in shared memory
constexpr int A_STAGE = BLOCK_M * A_PITCH * 2, B_STAGE = BLOCK_N * B_PITCH * 2;  // bytes
#else
constexpr int A_PITCH = BLOCK_K + PAD, B_PITCH = BLOCK_N + PAD;        // elements of a row in shared memory
constexpr int A_STAGE = BLOCK_M * A_PITCH * 2, B_STAGE = BLOCK_K * B_PITCH * 2;  // bytes
#endif
constexpr int STAGE = A_STAGE + B_STAGE;
constexpr int DEPTHS = BLOCK_K / 16;                                   // mma tiles along K of a step
constexpr int IN_FLIGHT = STAGES - (WGMMA && AHEAD ? 2 : 1);           // steps on their way while one is multiplied
constexpr int TICKETS = 4096;                                          // tiles of C that a launch can merge by itself

static_assert(SKINNY || BLOCK_M % (16 * WARPS_M) == 0, "warp_rows: a warp's rows must be whole 16-row mma tiles");
static_assert(SKINNY || BLOCK_N % (16 * WARPS_N) == 0, "warp_columns: a warp's columns must be pairs of 8-column mma tiles");
static_assert(BLOCK_K % 16 == 0, "mma_depth: an mma takes 16 elements of K");
static_assert(STAGES >= 2, "ring: one stage is computed on while another is filled");
static_assert(SKINNY || (BLOCK_M * BLOCK_K / CHUNK) % LOADERS == 0, "a_tile_split: the A tile must split evenly over the threads");
static_assert(SKINNY || (BLOCK_K * BLOCK_N / CHUNK) % LOADERS == 0, "b_tile_split: the B tile must split evenly over the threads");
static_assert(SKINNY || TILES == 1 || SPLIT_K == 1, "tiles_or_split: a tile of several is not split along K");
static_assert(SKINNY || TILES == 1 || ASYNC, "tiles_async: registers would hold the next tile while one is stored");
static_assert(!PRODUCERS || (WGMMA && STAGES >= 3 && STAGES <= 6 && SPLIT_K == 1), "producers: they serve wgmma, by two barriers a stage");
static_assert(!STORE_WARPS || TILES > 1, "store_warps: the next tile is multiplied meanwhile");
static_assert(!ASYNC || VECTOR >= 2, "async_width: cp.async moves at least 4 bytes");
static_assert(SKINNY || ASYNC || STAGES == 2, "register_ring: registers hold one step only");
static_assert(SKINNY || WGMMA || !AHEAD || DEPTHS % 2 == 0, "ahead_needs_depth: two sets of fragments take turns within a step");
static_assert(!BF16 || !FP16_SUM, "bf16_sums: tensor cores add products of bf16 in fp32 alone");
static_assert(!WGMMA || WARPS_M % 4 == 0, "wgmma_rows: four warps along the rows multiply together");
static_assert(!WGMMA || NT || WARP_N % 64 == 0, "wgmma_columns: rows of B stand in panels of 64 columns");
static_assert(!WGMMA || IN_FLIGHT > 0, "wgmma_ring: a step is multiplied, one awaited and one filled");
static_assert(!SKINNY || ROWS_A <= 128, "skinny_rows: a warp keeps the sums of all rows of A");
static_assert(!SKINNY || NT || WARP_COLUMNS % 32 == 0, "skinny_columns: eight lanes take 4 columns each of a row of B, or 8");
static_assert(!SKINNY || PRODUCTS == PRODUCTS_MMA || ROWS_A <= 8, "fma_rows: every weight is multiplied with each row of A");
static_assert(!SKINNY || NT || LANES == LANES_FRAGMENTS || ROW_RING, "row_lanes: plain FMAs add up along rows of B at NT alone");
static_assert(!ROW_RING || (ASYNC && AHEAD && DEPTH >= 64), "row_ring: lanes exchange 128 bytes or more of a row, A's too");
static_assert(!SKINNY || !ASYNC || WEIGHT_POLICY != WEIGHT_POLICY_NO_ALLOCATE, "async_policy: cp.async passes L1 by as it is");
static_assert(!SKINNY || !ASYNC || WEIGHT_POLICY != WEIGHT_POLICY_EVICT_FIRST || PRODUCTS == PRODUCTS_MMA || WARP_COLUMNS < 128,
              "policy_register: ptxas 13 puts the policy of such copies into an odd uniform register");

#include "../common/barrier.cuh"
#include "../common/cp_async.cuh"
#include "../common/half.cuh"
#include "../common/memory.cuh"
#include "../common/mma.cuh"
#include "split_k.cuh"

// Named barriers where further warps load or store (id 0 is __syncthreads()): two for a tile of C, two for each stage of the ring.
constexpr int COMPUTE_BARRIER = 1, C_FREE = 2, C_FULL = 3, STAGE_FULL = 4, STAGE_FREE = STAGE_FULL + STAGES;
__device__ __forceinline__ void sync_compute_warps() {
  if constexpr (STORE_WARPS || PRODUCERS)
    named_barrier_sync<THREADS>(COMPUTE_BARRIER);
  else
    __syncthreads();
}
#if PATH == PATH_SKINNY
#include "../common/warp.cuh"
#include "skinny.cuh"
#else
#if TENSOR_CORES == TENSOR_CORES_WGMMA
#include "../common/wgmma.cuh"
#endif
#include "tiles.cuh"

// Accumulators of one 16x8 tile of C, and a lane's two neighbouring elements in the tile's upper (half 0) or lower rows.
using Sum = Accumulator<FP16_SUM ? 16 : 32>::type;
__device__ __forceinline__ float low_element(const float (&c)[4], int half) { return c[2 * half]; }
__device__ __forceinline__ float high_element(const float (&c)[4], int half) { return c[2 * half + 1]; }
__device__ __forceinline__ float low_element(const uint32_t (&c)[2], int half) { return low2float(c[half]); }
__device__ __forceinline__ float high_element(const uint32_t (&c)[2], int half) { return low2float(c[half] >> 16); }

// Where a tile of C begins, in the order that RASTER asks for.
struct TileOrigin {
  int row, column;

  __device__ __forceinline__ TileOrigin(int tile, int M, int N) {
    const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M, tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
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
    row = tile_m * BLOCK_M, column = tile_n * BLOCK_N;
  }
};

// The steps of one block, on their way through the ring of stages.
struct Pipeline {
  const uint16_t *matrix_a, *matrix_b;
  int M, N, K;
  TileLoader<BLOCK_M, BLOCK_K, A_PITCH, true> a;
#if NT
  TileLoader<BLOCK_N, BLOCK_K, B_PITCH, true> b;
#else
  TileLoader<BLOCK_K, BLOCK_N, B_PITCH, false> b;
#endif
  uint32_t shared;  // address of the ring
  int to_load;      // steps not yet on their way
  uint32_t filled;  // stage that is filled next, as an offset
  int tile, tile_left;  // tile of C whose steps are loaded, and those of it not yet on their way
  int awaited, released, to_release;  // stage that is waited for next, that is released next; releases that somebody waits for

  __device__ __forceinline__ Pipeline(const uint16_t* matrix_a, const uint16_t* matrix_b, int M, int N, int K, TileOrigin at,
                                      int depth0, uint32_t shared, int steps, int tiles)
      : matrix_a(matrix_a), matrix_b(matrix_b), M(M), N(N), K(K), a(matrix_a, at.row, depth0, M, K),
#if NT
        b(matrix_b, at.column, depth0, N, K),
#else
        b(matrix_b, depth0, at.column, K, N),
#endif
        shared(shared), to_load(steps * tiles), filled(0), tile(blockIdx.x), tile_left(steps), awaited(0), released(0),
        to_release(steps * tiles - STAGES) {}

  // Goes on with the block's next tile of C, where all steps of one are on their way.
  __device__ __forceinline__ void next_tile() {
    if (tile_left > 0) return;
    tile += gridDim.x, tile_left = (K + BLOCK_K - 1) / BLOCK_K;
    const TileOrigin at(tile, M, N);
    a = {matrix_a, at.row, 0, M, K};
#if NT
    b = {matrix_b, at.column, 0, N, K};
#else
    b = {matrix_b, 0, at.column, K, N};
#endif
  }

  __device__ __forceinline__ static uint32_t next_stage(uint32_t stage) {
    return stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
  }

  // Starts loading the next step; past the last one, an empty group of copies keeps their count right.
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
  // Waits until the oldest step in flight is there for every thread. Every thread has then read the stage that
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
  // Says that the oldest stage that was waited for and not released is no longer read, where it will be filled again.
  __device__ __forceinline__ void release() {
    if (to_release > 0) named_barrier_arrive<THREADS + PRODUCER_THREADS>(STAGE_FREE + released);
    to_release--;
    released = released == STAGES - 1 ? 0 : released + 1;
  }
  // What producer warps do: a step is announced when LAG further ones have been asked for.
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

// A tile of C in shared memory, on its way to C.
struct StagedTile {
  static constexpr int PITCH = 2 * (BLOCK_N + CHUNK);  // bytes of a row; the padding spreads rows over the banks
  static constexpr int AT = TILES == 1 ? 0 : STAGES * STAGE;  // it takes the ring's place where no step follows

  __device__ __forceinline__ static void put(uint32_t shared, int row, int column, uint32_t pair) {
    store_shared(shared + AT + row * PITCH + column * 2, pair);
  }
  // Stores the tile by THREADS_GIVEN threads, of which this is the `thread`-th.
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
  // wgmma takes matrix descriptors from uniform registers: a shuffle tells the compiler that a warp agrees on them.
  const int lane = threadIdx.x % 32, warp = WGMMA ? __shfl_sync(~0u, threadIdx.x / 32, 0) : threadIdx.x / 32;
  // First row and column of this warp. The warps of a warpgroup interleave by 16 rows.
  const int warp_m = WGMMA ? warp % WARPS_M / 4 * (4 * WARP_M) + warp % 4 * 16 : warp / WARPS_N * WARP_M;
  const int warp_n = (WGMMA ? warp / WARPS_M : warp % WARPS_N) * WARP_N;
  const int all_steps = (K + BLOCK_K - 1) / BLOCK_K, share = (all_steps + SPLIT_K - 1) / SPLIT_K;
  const int first_step = blockIdx.y * share, steps = min(share, all_steps - first_step);

  // Tiles of this block: its own number, and on by the number of blocks, so that those at work lie side by side.
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

  uint32_t stage = 0;  // of the step at hand, as an offset
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
        named_barrier_sync<THREADS + STORE_THREADS>(C_FREE);  // the tile before is stored
      else if constexpr (TILES == 1)
        sync_compute_warps();  // the stages are no longer read
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
