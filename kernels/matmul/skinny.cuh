// Few rows of A: C^T = B^T A^T, weights straight from global memory into the tensor cores' fragments, or plain FMAs.
//
// Such a product is bound by the bytes of B, so nothing stands in their way: no tile in shared memory that warps share, no
// barrier before the sums are merged. A lane asks for 16 bytes of B at a time and keeps STAGES steps of them in flight, in
// registers or in places of shared memory that no other lane touches (cp.async writes there without a register).
//
// The weights are the 16-row operand of an mma, for its 8-column side fits few rows of A. An mma may walk the depth in any
// order that both operands agree on (mma.cuh says which words a lane holds): lane 4 g + t takes the 8 neighbouring depths
// 8 t … 8 t + 7 of each 32, two mma's worth, of its own LANE_COLUMNS columns of C. At NT those are 16 bytes of a row of B;
// else 16 bytes are 8 columns at one depth (4 columns at two of them, where a warp has 32), and the words of two neighbouring
// depths are interleaved.
//
// LANES=row: a warp asks for long pieces of a row of B instead. At NT DRAM gives them sooner than 64 bytes of eight rows; else all
// accesses have 16 bytes, where a lane has 8 of a row of 32 columns. For an mma the lanes of a warp exchange a step through their
// part of shared memory, where ldmatrix reads it (row_ring.cuh). Plain FMAs, at NT alone, take all lanes along K: a warp has an
// eighth of WARP_COLUMNS, and steps eight times as deep.
//
// The warps of a block share K, each a range of steps side by side, and add up in shared memory, WARPS_ACROSS of them side by
// side along the columns; with SPLIT_K the block that comes last at its columns adds what the others left, or a second launch
// does.
#pragma once

// The shape is known to the compiler: distances between loads are then immediates, and tails that are not there cost nothing.
constexpr int M = ROWS_A, N = COLUMNS_B, K = DEPTH_A;
constexpr bool EVICT_FIRST = WEIGHT_POLICY == WEIGHT_POLICY_EVICT_FIRST;
constexpr bool ASYNC_POLICY = ASYNC && EVICT_FIRST, ASYNC_ACTIVATIONS = ASYNC && AHEAD;
constexpr bool MMA = PRODUCTS == PRODUCTS_MMA;
constexpr bool ROW_LANES = LANES == LANES_ROW;
constexpr int DEPTH_LANES = ROW_LANES && !MMA ? 32 : 4;  // lanes along K that load neighbouring pieces
constexpr int LANE_COLUMNS = WARP_COLUMNS / 8;         // columns of C whose weights a lane loads
constexpr int COLUMNS = LANE_COLUMNS * (32 / DEPTH_LANES);  // columns of C of a warp
constexpr int BLOCK_COLUMNS = WARPS_ACROSS * COLUMNS;  // columns of C of a block
constexpr int UNROLLED = ASYNC ? 1 : STAGES;           // steps of the loop that are written out
constexpr int QUARTERS = DEPTH / 32;                   // pieces of a lane along K in a step
constexpr int PIECES_DEPTH = DEPTH_LANES * CHUNK;      // elements of K that the lanes of a group hold at once
constexpr int STEP_DEPTH = QUARTERS * PIECES_DEPTH;    // elements of K of a step
constexpr int PIECES = QUARTERS * LANE_COLUMNS;        // 16-byte pieces of B of a lane in a step
constexpr int ROW_TILES = (M + 7) / 8;                 // mma tiles along the rows of A
constexpr int LANE_ROWS = MMA ? ROW_TILES : M;         // rows of A of which a lane holds depths
constexpr int RUN = NT || LANE_COLUMNS > CHUNK ? CHUNK : LANE_COLUMNS;  // elements of a piece from one row of B
constexpr int PIECE_ROWS = CHUNK / RUN;                // rows of B that a piece is from
constexpr int ACCESS = VECTOR < RUN ? VECTOR : RUN;    // elements of one access to B
constexpr int PLACES = PIECES + (AHEAD ? LANE_ROWS * QUARTERS : 0);  // of a lane in a stage: weights, then activations
constexpr int TILE_PITCH = BLOCK_COLUMNS + 4;          // floats of a row of the block's sums
constexpr int STEPS = (K + STEP_DEPTH - 1) / STEP_DEPTH, SHARE = (STEPS + SPLIT_K - 1) / SPLIT_K;  // all steps, those of a split
constexpr bool WHOLE_STEPS = K % STEP_DEPTH == 0, WHOLE_BLOCKS = N % BLOCK_COLUMNS == 0;
constexpr uint32_t ROW_BYTES = 2 * (NT ? K : N);       // of B

// Column of C of a lane's j-th one, within those of its warp.
__device__ __forceinline__ int lane_column(int group, int j) {
  if constexpr (ROW_RING) return j * 8 + group;  // as an mma has them
  return NT ? group * LANE_COLUMNS + j : j / RUN * (8 * RUN) + group * RUN + j % RUN;
}

// 2, 4, 8 or 16 bytes of the inputs: `v` holds them from word `part * WIDTH / 2` on, zeros where not `inside`.
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
    else
      load_global_once<2 * WIDTH, WEIGHT_POLICY == WEIGHT_POLICY_PREFETCH>(to, from);
  }
}

// What a step of the weights is multiplied with: A is small and stays in the caches.
struct Activations {
  uint32_t v[LANE_ROWS][QUARTERS][4];

  // Calls use(row, quarter, part, address, inside) for each access to a step that begins at this lane's `from`.
  template <typename Use>
  __device__ __forceinline__ static void for_each_part(const char* from, int left, Use&& use) {
    const int group = threadIdx.x % 32 / DEPTH_LANES;
#pragma unroll
    for (int i = 0; i < LANE_ROWS; i++) {
      const bool row = !MMA || M % 8 == 0 || i * 8 + group < M;
#pragma unroll
      for (int quarter = 0; quarter < QUARTERS; quarter++)
#pragma unroll
        for (int part = 0; part < CHUNK / VECTOR; part++) {
          const int depth = quarter * PIECES_DEPTH + part * VECTOR;
          use(i, quarter, part, from + 2 * (i * (MMA ? 8 : 1) * K + depth), row && (WHOLE_STEPS || depth < left));
        }
    }
  }
  __device__ __forceinline__ void load(const char* from, int left) {
    for_each_part(from, left, [&](int row, int quarter, int part, const char* address, bool inside) {
      load_part<VECTOR, false>(v[row][quarter], part, address, inside);
    });
  }
};

// A lane's weights on their way, and with FRAGMENTS=ahead the activations beside them.
struct Ring {
  const char *next, *next_a;                               // this lane's first weight of the next step; its first activation
  uint32_t column_offset[NT ? LANE_COLUMNS : LANE_COLUMNS / RUN][NT ? 1 : RUN / ACCESS];  // bytes from there to its columns
  int all, left;                                           // elements of K from its first depth to the end, of any and the next step
  uint32_t place;                                          // this lane's first place in shared memory
  u64 policy;                                              // of its loads of weights, where they have one
  uint32_t held[ASYNC ? 1 : STAGES][PIECES][4];
  Activations held_a[ASYNC || !AHEAD ? 1 : STAGES];

  __device__ __forceinline__ Ring(const uint16_t* a, const uint16_t* b, uint32_t shared, int column0, int depth0) {
    const int group = threadIdx.x % 32 / DEPTH_LANES, depth = depth0 + threadIdx.x % DEPTH_LANES * CHUNK;
    const int column = column0 + lane_column(group, 0);
    all = left = K - depth;
    place = shared + threadIdx.x * 16;
    policy = EVICT_FIRST ? evict_first_policy() : 0;
    next_a = reinterpret_cast<const char*>(a + (MMA ? group * K : 0) + depth);
    if constexpr (NT) {  // past the last column it is repeated: what comes of it is never stored
      const int first = WHOLE_BLOCKS ? column : min(column, N - 1);
      next = reinterpret_cast<const char*>(b) + static_cast<size_t>(first) * ROW_BYTES + 2ll * depth;
#pragma unroll
      for (int j = 0; j < LANE_COLUMNS; j++) column_offset[j][0] = (WHOLE_BLOCKS ? j : min(j, N - 1 - first)) * ROW_BYTES;
    } else {
      next = reinterpret_cast<const char*>(b) + static_cast<size_t>(depth) * ROW_BYTES + (WHOLE_BLOCKS ? 2 * column : 0);
#pragma unroll
      for (int panel = 0; panel < LANE_COLUMNS / RUN; panel++)
#pragma unroll
        for (int part = 0; part < RUN / ACCESS; part++) {
          const int further = panel * (8 * RUN) + part * ACCESS;
          column_offset[panel][part] = 2 * (WHOLE_BLOCKS ? further : min(column + further, N - ACCESS));
        }
    }
  }

  // Address of one of this lane's places.
  __device__ __forceinline__ uint32_t at(int stage, int index) const {
    return place + (stage * PLACES + index) * (THREADS * 16);
  }

  // Asks for a step, the neighbours of a row of B one after the other.
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
          const char* from = next + (column + depth * (NT ? 2 : ROW_BYTES));
          const bool inside = WHOLE_STEPS || depth < left;
          if constexpr (ASYNC_POLICY)
            cp_async_zfill_policy<2 * ACCESS>(at(stage, piece) + 2 * element, from, inside, policy);
          else if constexpr (ASYNC)
            cp_async_zfill<2 * ACCESS, WEIGHT_POLICY == WEIGHT_POLICY_PREFETCH>(at(stage, piece) + 2 * element, from, inside);
          else
            load_part<ACCESS, true>(held[stage][piece], part, from, inside, policy);
        }
    if constexpr (ASYNC_ACTIVATIONS)
      Activations::for_each_part(next_a, left, [&](int row, int quarter, int part, const char* address, bool inside) {
        cp_async_zfill<2 * VECTOR>(at(stage, PIECES + row * QUARTERS + quarter) + part * VECTOR * 2, address, inside);
      });
    else if constexpr (AHEAD)
      held_a[stage].load(next_a, left);
    next += static_cast<size_t>(STEP_DEPTH) * (NT ? 2 : ROW_BYTES);
    if constexpr (AHEAD) next_a += STEP_DEPTH * 2;
    left -= STEP_DEPTH;
  }

  // The pieces of 32 depths of a step that has arrived.
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
  // The activations of a step that has arrived.
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
    if constexpr (!AHEAD) activations.load(next_a + step * (STEP_DEPTH * 2), all - step * STEP_DEPTH);
    if constexpr (ASYNC) cp_async_wait_group<STAGES - 1>();  // of this lane alone, which reads what it has copied
    if constexpr (AHEAD) take(activations, stage);
#pragma unroll
    for (int quarter = 0; quarter < QUARTERS; quarter++) {
      uint32_t weights[LANE_COLUMNS][4];
      take(weights, stage, quarter);
      sums.add(weights, activations, quarter);
    }
  }
};

// Two weights of a lane's j-th column, at its depths 2 i and 2 i + 1.
__device__ __forceinline__ uint32_t depth_pair(const uint32_t (&pieces)[LANE_COLUMNS][4], int j, int i) {
  if constexpr (NT) return pieces[j][i];
  const auto at = [&](int depth) { return pieces[j / RUN * RUN + depth / PIECE_ROWS][(depth % PIECE_ROWS * RUN + j % RUN) / 2]; };
  return __byte_perm(at(2 * i), at(2 * i + 1), j % 2 ? 0x7632 : 0x5410);
}

// Sums of a lane on tensor cores, of 16 columns by 8 rows in a tile. `A` is Activations.
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
  // Leaves the warp's sums in its columns of the block's tile.
  __device__ __forceinline__ void store(uint32_t tile) const {
    const int group = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
      for (int odd = 0; odd < 2; odd++) {
        const int row = i * 8 + 2 * t + odd;
        if (row >= M) continue;
        constexpr int WIDE = ROW_RING ? 1 : LANE_COLUMNS < 4 ? LANE_COLUMNS : 4;  // neighbours that a lane has of a row
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

// Sums of a lane by plain FMAs, over the depths that it holds; DEPTH_LANES lanes together have all of them.
struct FmaSums {
  float v[M][LANE_COLUMNS];

  template <typename A>
  __device__ __forceinline__ void add(const uint32_t (&weights)[LANE_COLUMNS][4], const A& a, int quarter) {
#pragma unroll
    for (int j = 0; j < LANE_COLUMNS; j++)
#pragma unroll
      for (int word = 0; word < 4; word++) {
        const uint32_t w = depth_pair(weights, j, word);
        const float low = low2float(w), high = high2float(w);
#pragma unroll
        for (int i = 0; i < M; i++) {
          const uint32_t x = a.v[i][quarter][word];
          v[i][j] = fmaf(high, high2float(x), fmaf(low, low2float(x), v[i][j]));
        }
      }
  }
  __device__ __forceinline__ void store(uint32_t tile) const {
    const int group = threadIdx.x % 32 / DEPTH_LANES, t = threadIdx.x % DEPTH_LANES;
#pragma unroll
    for (int i = 0; i < M; i++)
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
              float* __restrict__ partial) {
  extern __shared__ __align__(16) unsigned char memory[];
  const uint32_t shared = shared_address(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // says that a warp agrees on it
  const int warp_n = warp % WARPS_ACROSS, warp_k = warp / WARPS_ACROSS;
  const int column0 = blockIdx.x * BLOCK_COLUMNS;

  // Steps of this block, of which each warp along K has its part: no range is longer than another by more than one.
  const int block_step = blockIdx.y * SHARE, block_steps = min(SHARE, STEPS - block_step);
  const int first_step = block_step + block_steps * warp_k / WARPS_K;
  const int steps = block_step + block_steps * (warp_k + 1) / WARPS_K - first_step;

  WeightRing ring(a, b, shared, column0 + warp_n * COLUMNS, first_step * STEP_DEPTH);
#pragma unroll
  for (int stage = 0; stage < STAGES; stage++) {
    if (stage < steps) ring.start(stage);
    if constexpr (ASYNC) cp_async_commit_group();
  }

  Sums sums = {};
  int slot = 0;  // stage of the step at hand, where the ring is in shared memory
#pragma unroll 1
  for (int done = 0; done < steps; done += UNROLLED) {
#pragma unroll
    for (int i = 0; i < UNROLLED; i++) {  // registers have no addresses: one turn of the ring is written out
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
  if constexpr (ASYNC) __syncthreads();  // the sums take the place of the ring
  sums.store(shared + (warp_k * (M * TILE_PITCH) + warp_n * COLUMNS) * 4);
  __syncthreads();

  // Each thread adds up what the warps along K hold of some pairs of columns, in their order: runs agree bit by bit.
  constexpr int PAIRS = M * (BLOCK_COLUMNS / 2), TURNS = (PAIRS + THREADS - 1) / THREADS;
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
      load_shared_floats(shared + ((k * M + row) * TILE_PITCH + within) * 4, low, high);
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
