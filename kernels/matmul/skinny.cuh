// Few rows of A: C^T = B^T A^T, with weights loaded directly from global memory into fragments, or with plain FMAs.
//
// Such a product is bound by the bytes of B. Therefore warps share no tile in shared memory, and there is no barrier before
// the sums are merged. A lane loads 16 bytes of B at a time and keeps STAGES steps in flight, in registers or in shared
// memory that no other lane accesses (cp.async needs no registers).
//
// The weights are the 16-row operand of an mma, because its 8-column side fits few rows of A. An mma may process the depth in
// any order that both operands share (mma.cuh describes the words of a lane). Lane 4 g + t has the 8 neighbouring depths
// 8 t ... 8 t + 7 of each 32, enough for two mma, of its LANE_COLUMNS columns of C. With NT these are 16 bytes of a row of B.
// Otherwise 16 bytes are 8 columns at one depth (or 4 columns at two depths if a warp has 32 columns), and the words of two
// neighbouring depths are interleaved.
//
// LANES=row: a warp loads long pieces of a row of B instead. With NT, DRAM returns them faster than 64 bytes of eight rows.
// Otherwise all accesses have 16 bytes instead of 8 bytes for warps of 32 columns. For an mma the lanes of a warp exchange a
// step through their part of shared memory, where ldmatrix reads it (row_ring.cuh). Plain FMAs (NT only) have all lanes along
// K: a warp has an eighth of WARP_COLUMNS, and steps are eight times as deep.
//
// The warps of a block share K, each with a range of steps, and add their sums in shared memory; WARPS_ACROSS of them are
// along the columns. With SPLIT_K, the last block of a tile or a second launch adds the sums of all blocks.
#pragma once

// With EXTENT=exact, the shape is a compile-time constant, so that distances between loads are immediates and missing tails
// cost nothing. With EXTENT=padded, only K and a power of two of rows are, so that one program runs all M up to it and all N.
constexpr bool EXACT = EXTENT == EXTENT_EXACT;
constexpr int K = DEPTH_A;
struct Extent {
  int rows, columns;
  __device__ __forceinline__ int m() const { return EXACT ? ROWS_A : rows; }
  __device__ __forceinline__ int n() const { return EXACT ? COLUMNS_B : columns; }
  // Returns the bytes of a row of B.
  __device__ __forceinline__ uint32_t row_bytes() const { return 2 * (NT ? K : n()); }
};
constexpr bool EVICT_FIRST = WEIGHT_POLICY == WEIGHT_POLICY_EVICT_FIRST;
constexpr bool PREFETCH = WEIGHT_POLICY == WEIGHT_POLICY_PREFETCH;
constexpr bool ASYNC_ACTIVATIONS = ASYNC && AHEAD;
constexpr bool MMA = PRODUCTS == PRODUCTS_MMA;
constexpr bool ROW_LANES = LANES == LANES_ROW;
constexpr int LANE_COLUMNS = WARP_COLUMNS / 8;         // columns of C per lane
constexpr int COLUMNS = LANE_COLUMNS * (32 / DEPTH_LANES);  // columns of C per warp
constexpr int UNROLLED = ASYNC ? 1 : STAGES;           // unrolled steps of the loop
constexpr int QUARTERS = DEPTH / 32;                   // pieces per lane along K in a step
constexpr int PIECES_DEPTH = DEPTH_LANES * CHUNK;      // elements of K per piece of a group of lanes
constexpr int STEP_DEPTH = QUARTERS * PIECES_DEPTH;    // elements of K per step
constexpr int ROW_TILES = (BLOCK_ROWS + 7) / 8;                 // mma tiles along the rows of A
constexpr int LANE_ROWS = MMA ? ROW_TILES : BLOCK_ROWS;  // rows of A per lane
constexpr int RUN = NT || LANE_COLUMNS > CHUNK ? CHUNK : LANE_COLUMNS;  // elements per piece from one row of B
constexpr int PIECE_ROWS = CHUNK / RUN;                // rows of B per piece
constexpr int ACCESS = VECTOR < RUN ? VECTOR : RUN;    // elements per access to B
constexpr int PLACES = PIECES + (AHEAD ? LANE_ROWS * QUARTERS : 0);  // places per lane and stage: weights, then activations
constexpr int TILE_PITCH = BLOCK_COLUMNS + 4;          // floats per row of the block's sums
constexpr int STEPS = (K + STEP_DEPTH - 1) / STEP_DEPTH, SHARE = (STEPS + SPLIT_K - 1) / SPLIT_K;  // all steps, steps per split
constexpr bool WHOLE_STEPS = K % STEP_DEPTH == 0, WHOLE_BLOCKS = EXACT && COLUMNS_B % BLOCK_COLUMNS == 0;
constexpr bool WHOLE_TILES = EXACT && BLOCK_ROWS % 8 == 0;

// Returns the column of C of a lane's j-th column, relative to its warp.
__device__ __forceinline__ int lane_column(int group, int j) {
  if constexpr (ROW_RING) return j * 8 + group;  // layout of an mma
  return NT ? group * LANE_COLUMNS + j : j / RUN * (8 * RUN) + group * RUN + j % RUN;
}

// Loads 2, 4, 8 or 16 bytes of the inputs into `v` from word `part * WIDTH / 2` on; zeros if not `inside`.
template <int WIDTH, bool WEIGHTS>
__device__ __forceinline__ void load_part(uint32_t (&v)[4], int part, const char* from, bool inside, u64 policy = 0) {
  if constexpr (WIDTH == 1) {
    const uint32_t one = inside ? *reinterpret_cast<const uint16_t*>(from) : 0;
    v[part / 2] = part % 2 ? v[part / 2] | one << 16 : one;
  } else {
    uint32_t* to = v + part * WIDTH / 2;
#pragma unroll
    for (int word = 0; word < WIDTH / 2; word++) to[word] = 0;
    if (!inside) return;
    if constexpr (!WEIGHTS || WEIGHT_POLICY == WEIGHT_POLICY_NORMAL)
      load_global_nc<2 * WIDTH>(to, from);
    else if constexpr (EVICT_FIRST)
      load_global_once_policy<2 * WIDTH>(to, from, policy);
    else if constexpr (PREFETCH)
      load_global_once_256<2 * WIDTH>(to, from);
    else
      load_global_once<2 * WIDTH>(to, from);
  }
}

// Copies WIDTH weights to shared memory; zeros if not `inside`.
template <int WIDTH>
__device__ __forceinline__ void copy_weights(uint32_t to, const char* from, bool inside, u64 policy) {
  if constexpr (EVICT_FIRST) cp_async_zfill_policy<2 * WIDTH>(to, from, inside, policy);
  else if constexpr (PREFETCH) cp_async_zfill_256<2 * WIDTH>(to, from, inside);
  else cp_async_zfill<2 * WIDTH>(to, from, inside);
}

// Activations for a step of the weights; A is small and stays in the caches.
struct Activations {
  uint32_t v[LANE_ROWS][QUARTERS][4];

  // Calls use(row, quarter, part, address, inside) for each access of a step that starts at this lane's `from`.
  template <typename Use>
  __device__ __forceinline__ static void for_each_part(const char* from, int left, int rows, Use&& use) {
    const int group = threadIdx.x % 32 / DEPTH_LANES;
#pragma unroll
    for (int i = 0; i < LANE_ROWS; i++) {
      const bool row = MMA ? WHOLE_TILES || i * 8 + group < rows : EXACT || i < rows;
#pragma unroll
      for (int quarter = 0; quarter < QUARTERS; quarter++)
#pragma unroll
        for (int part = 0; part < CHUNK / VECTOR; part++) {
          const int depth = quarter * PIECES_DEPTH + part * VECTOR;
          use(i, quarter, part, from + 2 * (i * (MMA ? 8 : 1) * K + depth), row && (WHOLE_STEPS || depth < left));
        }
    }
  }
  __device__ __forceinline__ void load(const char* from, int left, int rows) {
    for_each_part(from, left, rows, [&](int row, int quarter, int part, const char* address, bool inside) {
      load_part<VECTOR, false>(v[row][quarter], part, address, inside);
    });
  }
};

// A lane's weights in flight, and with FRAGMENTS=ahead its activations.
struct Ring {
  const char *next, *next_a;                               // this lane's first weight and first activation of the next step
  uint32_t column_offset[NT ? LANE_COLUMNS : LANE_COLUMNS / RUN][NT ? 1 : RUN / ACCESS];  // byte offsets of its columns
  int all, left;                                           // elements of K from its first depth to the end, in the first and the next step
  uint32_t place;                                          // this lane's first place in shared memory
  u64 policy;                                              // cache policy of weight loads, if any
  Extent extent;
  uint32_t held[ASYNC ? 1 : STAGES][PIECES][4];
  Activations held_a[ASYNC || !AHEAD ? 1 : STAGES];

  __device__ __forceinline__ Ring(const uint16_t* a, const uint16_t* b, Extent given, uint32_t shared, int column0, int depth0)
      : extent(given) {
    const int group = threadIdx.x % 32 / DEPTH_LANES, depth = depth0 + threadIdx.x % DEPTH_LANES * CHUNK;
    const int column = column0 + lane_column(group, 0);
    all = left = K - depth;
    place = shared + threadIdx.x * 16;
    policy = EVICT_FIRST ? evict_first_policy() : 0;
    next_a = reinterpret_cast<const char*>(a + (MMA ? group * K : 0) + depth);
    if constexpr (NT) {  // columns past the end repeat the last one; their results are never stored
      const int first = WHOLE_BLOCKS ? column : min(column, extent.n() - 1);
      next = reinterpret_cast<const char*>(b) + static_cast<size_t>(first) * extent.row_bytes() + 2ll * depth;
#pragma unroll
      for (int j = 0; j < LANE_COLUMNS; j++)
        column_offset[j][0] = (WHOLE_BLOCKS ? j : min(j, extent.n() - 1 - first)) * extent.row_bytes();
    } else {
      next = reinterpret_cast<const char*>(b) + static_cast<size_t>(depth) * extent.row_bytes() + (WHOLE_BLOCKS ? 2 * column : 0);
#pragma unroll
      for (int panel = 0; panel < LANE_COLUMNS / RUN; panel++)
#pragma unroll
        for (int part = 0; part < RUN / ACCESS; part++) {
          const int further = panel * (8 * RUN) + part * ACCESS;
          column_offset[panel][part] = 2 * (WHOLE_BLOCKS ? further : min(column + further, extent.n() - ACCESS));
        }
    }
  }

  // Returns the address of one of this lane's places.
  __device__ __forceinline__ uint32_t at(int stage, int index) const {
    return place + (stage * PLACES + index) * (THREADS * 16);
  }

  // Starts the loads of a step, neighbours in a row of B first.
  __device__ __forceinline__ void start(int stage) {
#pragma unroll
    for (int which = 0; which < LANE_COLUMNS; which++)
#pragma unroll
      for (int quarter = 0; quarter < QUARTERS; quarter++)
#pragma unroll
        for (int part = 0; part < CHUNK / ACCESS; part++) {
          const int piece = quarter * LANE_COLUMNS + which, element = part * ACCESS;
          const int depth = quarter * PIECES_DEPTH + (NT ? element : which % RUN * PIECE_ROWS + element / RUN);
          const uint32_t column = column_offset[NT ? which : which / RUN][NT ? 0 : element % RUN / ACCESS];
          const char* from = next + (column + depth * (NT ? 2 : extent.row_bytes()));
          const bool inside = WHOLE_STEPS || depth < left;
          if constexpr (ASYNC)
            copy_weights<ACCESS>(at(stage, piece) + 2 * element, from, inside, policy);
          else
            load_part<ACCESS, true>(held[stage][piece], part, from, inside, policy);
        }
    if constexpr (ASYNC_ACTIVATIONS)
      Activations::for_each_part(next_a, left, extent.m(), [&](int row, int quarter, int part, const char* address, bool inside) {
        cp_async_zfill<2 * VECTOR>(at(stage, PIECES + row * QUARTERS + quarter) + part * VECTOR * 2, address, inside);
      });
    else if constexpr (AHEAD)
      held_a[stage].load(next_a, left, extent.m());
    next += static_cast<size_t>(STEP_DEPTH) * (NT ? 2 : extent.row_bytes());
    if constexpr (AHEAD) next_a += STEP_DEPTH * 2;
    left -= STEP_DEPTH;
  }

  // Returns the pieces of 32 depths of a loaded step.
  __device__ __forceinline__ void take(uint32_t (&pieces)[LANE_COLUMNS][4], int stage, int quarter) const {
#pragma unroll
    for (int which = 0; which < LANE_COLUMNS; which++) {
      const int piece = quarter * LANE_COLUMNS + which;
      Chunk chunk;
      if constexpr (ASYNC) chunk = load_shared_chunk(at(stage, piece));
#pragma unroll
      for (int word = 0; word < 4; word++) pieces[which][word] = ASYNC ? chunk.v[word] : held[ASYNC ? 0 : stage][piece][word];
    }
  }
  // Returns the activations of a loaded step.
  __device__ __forceinline__ void take(Activations& activations, int stage) const {
    if constexpr (ASYNC) {
#pragma unroll
      for (int i = 0; i < LANE_ROWS * QUARTERS; i++) {
        const Chunk chunk = load_shared_chunk(at(stage, PIECES + i));
#pragma unroll
        for (int word = 0; word < 4; word++) activations.v[i / QUARTERS][i % QUARTERS][word] = chunk.v[word];
      }
    } else {
      activations = held_a[ASYNC || !AHEAD ? 0 : stage];
    }
  }

  // Waits for the next step, the warp's `step`-th, and adds its products.
  template <typename S>
  __device__ __forceinline__ void multiply(S& sums, int stage, int step) const {
    Activations activations;
    if constexpr (!AHEAD) activations.load(next_a + step * (STEP_DEPTH * 2), all - step * STEP_DEPTH, extent.m());
    if constexpr (ASYNC) cp_async_wait_group<STAGES - 1>();  // no barrier: each lane reads only its own copies
    if constexpr (AHEAD) take(activations, stage);
#pragma unroll
    for (int quarter = 0; quarter < QUARTERS; quarter++) {
      uint32_t weights[LANE_COLUMNS][4];
      take(weights, stage, quarter);
      sums.add(weights, activations, quarter);
    }
  }
};

// Returns two weights of a lane's j-th column, at depths 2 i and 2 i + 1.
__device__ __forceinline__ uint32_t depth_pair(const uint32_t (&pieces)[LANE_COLUMNS][4], int j, int i) {
  if constexpr (NT) return pieces[j][i];
  const auto at = [&](int depth) { return pieces[j / RUN * RUN + depth / PIECE_ROWS][(depth % PIECE_ROWS * RUN + j % RUN) / 2]; };
  return __byte_perm(at(2 * i), at(2 * i + 1), j % 2 ? 0x7632 : 0x5410);
}

// Sums of a lane with tensor cores, in tiles of 16 columns by 8 rows. `A` is Activations.
struct MmaSums {
  float v[ROW_TILES][LANE_COLUMNS / 2][4];

  template <typename A>
  __device__ __forceinline__ void add(const uint32_t (&weights)[LANE_COLUMNS][4], const A& a, int quarter) {
#pragma unroll
    for (int tile = 0; tile < LANE_COLUMNS / 2; tile++)
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        const uint32_t w[4] = {depth_pair(weights, 2 * tile, half), depth_pair(weights, 2 * tile + 1, half),
                               depth_pair(weights, 2 * tile, half + 1), depth_pair(weights, 2 * tile + 1, half + 1)};
#pragma unroll
        for (int i = 0; i < ROW_TILES; i++) mma(v[i][tile], w, a.v[i][quarter][half], a.v[i][quarter][half + 1]);
      }
  }
  // Stores the warp's sums in its columns of the block's tile.
  __device__ __forceinline__ void store(uint32_t tile) const {
    const int group = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
      for (int odd = 0; odd < 2; odd++) {
        const int row = i * 8 + 2 * t + odd;
        if (row >= BLOCK_ROWS) continue;
        constexpr int WIDE = ROW_RING ? 1 : LANE_COLUMNS < 4 ? LANE_COLUMNS : 4;  // neighbouring columns of a lane in a row
#pragma unroll
        for (int j = 0; j < LANE_COLUMNS; j += WIDE) {
          uint32_t sums[WIDE];
#pragma unroll
          for (int k = 0; k < WIDE; k++) sums[k] = __float_as_uint(v[i][(j + k) / 2][(j + k) % 2 * 2 + odd]);
          store_shared(tile + (row * TILE_PITCH + lane_column(group, j)) * 4, sums);
        }
      }
  }
};

// Sums of a lane with plain FMAs over its own depths; DEPTH_LANES lanes together have all depths.
struct FmaSums {
  float v[BLOCK_ROWS][LANE_COLUMNS];

  template <typename A>
  __device__ __forceinline__ void add(const uint32_t (&weights)[LANE_COLUMNS][4], const A& a, int quarter) {
#pragma unroll
    for (int j = 0; j < LANE_COLUMNS; j++)
#pragma unroll
      for (int word = 0; word < 4; word++) {
        const uint32_t w = depth_pair(weights, j, word);
        const float low = low2float(w), high = high2float(w);
#pragma unroll
        for (int i = 0; i < BLOCK_ROWS; i++) {
          const uint32_t x = a.v[i][quarter][word];
          v[i][j] = fmaf(high, high2float(x), fmaf(low, low2float(x), v[i][j]));
        }
      }
  }
  __device__ __forceinline__ void store(uint32_t tile) const {
    const int group = threadIdx.x % 32 / DEPTH_LANES, t = threadIdx.x % DEPTH_LANES;
#pragma unroll
    for (int i = 0; i < BLOCK_ROWS; i++)
#pragma unroll
      for (int j = 0; j < LANE_COLUMNS; j++) {
        const float sum = ROW_LANES ? warp_sum(v[i][j]) : quad_sum(v[i][j]);
        if (t == 0) store_shared(tile + (i * TILE_PITCH + lane_column(group, j)) * 4, __float_as_uint(sum));
      }
  }
};

#include "row_ring.cuh"

#if PRODUCTS == PRODUCTS_MMA
using Sums = MmaSums;
#else
using Sums = FmaSums;
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
matmul_skinny(const uint16_t* __restrict__ a, const uint16_t* __restrict__ b, uint16_t* __restrict__ c,
              float* __restrict__ partial, int rows, int columns) {
  const Extent extent{rows, columns};
  const int M = extent.m(), N = extent.n();
  extern __shared__ __align__(16) unsigned char memory[];
  const uint32_t shared = shared_address(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // makes the value uniform for the compiler
  const int warp_n = warp % WARPS_ACROSS, warp_k = warp / WARPS_ACROSS;
  const int column0 = blockIdx.x * BLOCK_COLUMNS;

  // Steps of this block, divided between the warps along K; the lengths of the parts differ by at most one.
  const int block_step = blockIdx.y * SHARE, block_steps = min(SHARE, STEPS - block_step);
  const int first_step = block_step + block_steps * warp_k / WARPS_K;
  const int steps = block_step + block_steps * (warp_k + 1) / WARPS_K - first_step;

  WeightRing ring(a, b, extent, shared, column0 + warp_n * COLUMNS, first_step * STEP_DEPTH);
#pragma unroll
  for (int stage = 0; stage < STAGES; stage++) {
    if (stage < steps) ring.start(stage);
    if constexpr (ASYNC) cp_async_commit_group();
  }

  Sums sums = {};
  int slot = 0;  // stage of the current step, if the ring is in shared memory
#pragma unroll 1
  for (int done = 0; done < steps; done += UNROLLED) {
#pragma unroll
    for (int i = 0; i < UNROLLED; i++) {  // registers cannot be indexed, so one round of the ring is unrolled
      const int step = done + i, stage = ASYNC ? slot : i;
      if (i > 0 && step >= steps) break;
      ring.multiply(sums, stage, step);
      if (step + STAGES < steps) ring.start(stage);
      if constexpr (ASYNC) {
        cp_async_commit_group();
        slot = slot == STAGES - 1 ? 0 : slot + 1;
      }
    }
  }
  if constexpr (ASYNC) __syncthreads();  // the sums reuse the memory of the ring
  sums.store(shared + (warp_k * (BLOCK_ROWS * TILE_PITCH) + warp_n * COLUMNS) * 4);
  __syncthreads();

  // Each thread adds the sums of the warps along K for some pairs of columns, in fixed order, so that results are
  // reproducible.
  constexpr int PAIRS = BLOCK_ROWS * (BLOCK_COLUMNS / 2), TURNS = (PAIRS + THREADS - 1) / THREADS;
  constexpr bool TICKET = SPLIT_K > 1 && MERGE == MERGE_TICKET;
  float2 kept[TICKET ? TURNS : 1];
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++) {
    const int pair = turn * THREADS + threadIdx.x;
    if (pair >= PAIRS) break;
    const int row = pair / (BLOCK_COLUMNS / 2), within = pair % (BLOCK_COLUMNS / 2) * 2;
    float2 sum;
    load_shared_floats(shared + (row * TILE_PITCH + within) * 4, sum.x, sum.y);
#pragma unroll
    for (int k = 1; k < WARPS_K; k++) {
      float low, high;
      load_shared_floats(shared + ((k * BLOCK_ROWS + row) * TILE_PITCH + within) * 4, low, high);
      sum.x += low, sum.y += high;
    }
    if constexpr (SPLIT_K == 1)
      store_pair(c, row, column0 + within, M, N, pack_half2(sum.x, sum.y));
    else
      store_partial_pair(partial, row, column0 + within, M, N, sum.x, sum.y);
    if constexpr (TICKET) kept[turn] = sum;
  }
  if constexpr (TICKET) {
    if (!last_of_split(blockIdx.x)) return;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int pair = turn * THREADS + threadIdx.x;
      if (pair >= PAIRS) break;
      const int row = pair / (BLOCK_COLUMNS / 2), column = column0 + pair % (BLOCK_COLUMNS / 2) * 2;
      merge_pair(c, partial, row, column, M, N, kept[turn].x, kept[turn].y);
    }
  }
}
