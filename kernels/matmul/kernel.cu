// Matrix product: C[m][n] = sum_k A[m][k] * B[k][n]
//
//   A [M, K], B [K, N], C [M, N]: fp16, row-major, contiguous; any M, N, K for which VECTOR divides K and N
//   tensor cores through mma.sync m16n8k16; accumulation in fp32 or fp16
//
// A block computes a BLOCK_M x BLOCK_N tile of C, walking K in steps of BLOCK_K through a ring of shared-memory stages.
//
//   BLOCK_M, BLOCK_N  tile of C of a block           BLOCK_K  depth of a step: longer steps, fewer barriers
//   WARPS_M, WARPS_N  warps along the tile's sides; a warp keeps (BLOCK_M/WARPS_M) x (BLOCK_N/WARPS_N) in registers
//   STAGES            steps in the ring: STAGES - 1 of them are in flight
//   LOAD              global to shared memory: cp_async (no registers on the way) or registers (load early, store late)
//   VECTOR            fp16 elements that a thread moves at once; must divide K and N, or addresses are misaligned
//   SMEM_LAYOUT       xor_swizzle (16-byte chunks permuted by row), padded (16 bytes more a row) or plain (conflicts)
//   ACCUMULATOR       fp32, or fp16 (half the registers; overflows on large inputs)
//   RASTER            order of blocks: rows, columns, or grouped (GROUP rows of tiles together, for reuse in L2)
//   GROUP             rows of tiles in a group
//   SPLIT_K           blocks that share a tile of C along K; above 1 a second launch adds their partial sums
//   EPILOGUE          C straight from registers, or through shared memory in 16-byte stores
//   MIN_BLOCKS        resident blocks promised to the compiler

#include <stdint.h>

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(WARPS_M) || !defined(WARPS_N)
#error "BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M and WARPS_N must be defined"
#endif
#if !defined(STAGES) || !defined(VECTOR) || !defined(GROUP) || !defined(SPLIT_K) || !defined(MIN_BLOCKS)
#error "STAGES, VECTOR, GROUP, SPLIT_K and MIN_BLOCKS must be defined"
#endif
#if !defined(LOAD) || !defined(SMEM_LAYOUT) || !defined(ACCUMULATOR) || !defined(RASTER) || !defined(EPILOGUE)
#error "LOAD, SMEM_LAYOUT, ACCUMULATOR, RASTER and EPILOGUE must be defined"
#endif

constexpr int THREADS = WARPS_M * WARPS_N * 32;
constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;  // tile of one warp
constexpr int TILES_M = WARP_M / 16, TILES_N = WARP_N / 8;             // mma tiles of one warp
constexpr int CHUNK = 8;                                               // fp16 elements of a 16-byte chunk
constexpr bool ASYNC = LOAD == LOAD_CP_ASYNC;
constexpr bool FP16_SUM = ACCUMULATOR == ACCUMULATOR_FP16;
constexpr bool STAGED_STORE = EPILOGUE == EPILOGUE_SHARED && SPLIT_K == 1;
constexpr int SUM_REGISTERS = FP16_SUM ? 2 : 4;                        // registers of one 16x8 accumulator
constexpr int PAD = SMEM_LAYOUT == SMEM_LAYOUT_PADDED ? CHUNK : 0;
constexpr int A_PITCH = BLOCK_K + PAD, B_PITCH = BLOCK_N + PAD;        // elements of a row in shared memory
constexpr int A_STAGE = BLOCK_M * A_PITCH * 2, B_STAGE = BLOCK_K * B_PITCH * 2;  // bytes
constexpr int STAGE = A_STAGE + B_STAGE;

static_assert(BLOCK_M % (16 * WARPS_M) == 0, "warp_rows: a warp's rows must be whole 16-row mma tiles");
static_assert(BLOCK_N % (16 * WARPS_N) == 0, "warp_columns: a warp's columns must be pairs of 8-column mma tiles");
static_assert(BLOCK_K % 16 == 0, "mma_depth: an mma takes 16 elements of K");
static_assert(STAGES >= 2, "ring: one stage is computed on while another is filled");
static_assert((BLOCK_M * BLOCK_K / CHUNK) % THREADS == 0, "a_tile_split: the A tile must split evenly over the threads");
static_assert((BLOCK_K * BLOCK_N / CHUNK) % THREADS == 0, "b_tile_split: the B tile must split evenly over the threads");

// Byte offset of a 16-byte chunk. The swizzle permutes the chunks of a row by the row's 128-byte line, so that eight rows
// read by one ldmatrix fall into eight different groups of banks.
template <int PITCH>
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  constexpr int per_row = PITCH / CHUNK;                         // chunks of a row
  constexpr int rows_a_line = per_row >= 8 ? 1 : 8 / per_row;    // rows of a 128-byte line
  constexpr int mask = per_row >= 8 ? 7 : per_row - 1;
  if constexpr (SMEM_LAYOUT == SMEM_LAYOUT_XOR_SWIZZLE) chunk ^= (row / rows_a_line) & mask;
  return row * (PITCH * 2) + chunk * 16;
}

__device__ __forceinline__ void copy_async(uint32_t target, const uint16_t* source, bool inside) {
  constexpr int bytes = VECTOR * 2;
  const int size = inside ? bytes : 0;  // outside the matrix: filled with zeros, nothing is read
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(size) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(bytes < 4 ? 4 : bytes), "r"(size) : "memory");
}

// A ROWS x COLUMNS tile of a row-major matrix on its way to shared memory.
template <int ROWS, int COLUMNS, int PITCH>
struct TileLoader {
  static constexpr int CHUNKS = ROWS * COLUMNS / CHUNK / THREADS;  // chunks of one thread
  static constexpr int PER_ROW = COLUMNS / CHUNK;
  static constexpr int PARTS = CHUNK / VECTOR;                     // accesses that fill a chunk
  uint32_t held[ASYNC ? 1 : CHUNKS][4];

  __device__ __forceinline__ void start(uint32_t shared, const uint16_t* matrix, int row0, int column0, int rows, int columns) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      const int index = i * THREADS + threadIdx.x, r = index / PER_ROW, chunk = index % PER_ROW;
      const int row = row0 + r;
      const uint16_t* source = matrix + static_cast<size_t>(row) * columns + column0 + chunk * CHUNK;
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
        const bool inside = row < rows && column0 + chunk * CHUNK + part * VECTOR < columns;
        const uint16_t* from = inside ? source + part * VECTOR : matrix;
        if constexpr (ASYNC) {
          copy_async(shared + chunk_offset<PITCH>(r, chunk) + part * VECTOR * 2, from, inside);
        } else if constexpr (VECTOR == 8) {
          const uint4 v = inside ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
          held[i][0] = v.x, held[i][1] = v.y, held[i][2] = v.z, held[i][3] = v.w;
        } else if constexpr (VECTOR == 4) {
          const uint2 v = inside ? *reinterpret_cast<const uint2*>(from) : make_uint2(0, 0);
          held[i][2 * part] = v.x, held[i][2 * part + 1] = v.y;
        } else if constexpr (VECTOR == 2) {
          held[i][part] = inside ? *reinterpret_cast<const uint32_t*>(from) : 0;
        } else {
          const uint32_t v = inside ? *from : 0;
          held[i][part / 2] = part % 2 ? held[i][part / 2] | v << 16 : v;
        }
      }
    }
  }

  __device__ __forceinline__ void finish(uint32_t shared) {
    if constexpr (!ASYNC) {
#pragma unroll
      for (int i = 0; i < CHUNKS; i++) {
        const int index = i * THREADS + threadIdx.x;
        const uint32_t target = shared + chunk_offset<PITCH>(index / PER_ROW, index % PER_ROW);
        asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};"
                     ::"r"(target), "r"(held[i][0]), "r"(held[i][1]), "r"(held[i][2]), "r"(held[i][3]) : "memory");
      }
    }
  }
};

__device__ __forceinline__ void load_matrix(uint32_t (&f)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void load_matrix_transposed(uint32_t (&f)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void multiply(uint32_t (&c)[SUM_REGISTERS], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (FP16_SUM) {
    asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
        : "+r"(c[0]), "+r"(c[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    float* f = reinterpret_cast<float*>(c);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

__device__ __forceinline__ float low_half(uint32_t word) {
  float value;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(word));
  return value;
}

// Tile of C of this block, in the order that RASTER asks for.
__device__ __forceinline__ void tile_of_block(int tiles_m, int tiles_n, int& tile_m, int& tile_n) {
  const int block = blockIdx.x;
  if constexpr (RASTER == RASTER_ROWS) {
    tile_m = block / tiles_n, tile_n = block % tiles_n;
  } else if constexpr (RASTER == RASTER_COLUMNS) {
    tile_m = block % tiles_m, tile_n = block / tiles_m;
  } else {
    const int group = block / (GROUP * tiles_n), first = group * GROUP;
    const int height = min(GROUP, tiles_m - first), within = block - group * GROUP * tiles_n;
    tile_m = first + within % height, tile_n = within / height;
  }
}

// Two neighbouring elements of C, as fp16; rows of odd length leave pairs unaligned, so those are stored one by one.
__device__ __forceinline__ void store_pair(uint16_t* c, int row, int column, int M, int N, uint32_t pair) {
  if (row >= M) return;
  uint16_t* target = c + static_cast<size_t>(row) * N + column;
  if (VECTOR > 1 && column < N) {
    *reinterpret_cast<uint32_t*>(target) = pair;
  } else {
    if (column < N) target[0] = static_cast<uint16_t>(pair);
    if (column + 1 < N) target[1] = static_cast<uint16_t>(pair >> 16);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
matmul(const uint16_t* __restrict__ a, const uint16_t* __restrict__ b, uint16_t* __restrict__ c, float* __restrict__ partial,
       int M, int N, int K) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;
  int tile_m, tile_n;
  tile_of_block((M + BLOCK_M - 1) / BLOCK_M, (N + BLOCK_N - 1) / BLOCK_N, tile_m, tile_n);
  const int row0 = tile_m * BLOCK_M, column0 = tile_n * BLOCK_N;

  const int all_steps = (K + BLOCK_K - 1) / BLOCK_K, share = (all_steps + SPLIT_K - 1) / SPLIT_K;
  const int first_step = blockIdx.y * share, steps = min(share, all_steps - first_step);

  TileLoader<BLOCK_M, BLOCK_K, A_PITCH> load_a;
  TileLoader<BLOCK_K, BLOCK_N, B_PITCH> load_b;
  auto start_load = [&](int step) {
    if (step < steps) {
      const uint32_t stage = shared + step % STAGES * STAGE;
      const int k = (first_step + step) * BLOCK_K;
      load_a.start(stage, a, row0, k, M, K);
      load_b.start(stage + A_STAGE, b, k, column0, K, N);
    }
    if constexpr (ASYNC) asm volatile("cp.async.commit_group;" ::: "memory");  // empty groups keep the count right
  };
  auto finish_load = [&](int step) {
    if (!ASYNC && step < steps) {
      const uint32_t stage = shared + step % STAGES * STAGE;
      load_a.finish(stage);
      load_b.finish(stage + A_STAGE);
    }
  };

  uint32_t sum[TILES_M][TILES_N][SUM_REGISTERS] = {};
  auto multiply_stage = [&](int step) {
    const uint32_t stage_a = shared + step % STAGES * STAGE, stage_b = stage_a + A_STAGE;
#pragma unroll
    for (int k = 0; k < BLOCK_K / 16; k++) {
      uint32_t fragment_a[TILES_M][4];
#pragma unroll
      for (int m = 0; m < TILES_M; m++)
        load_matrix(fragment_a[m], stage_a + chunk_offset<A_PITCH>(warp_m + m * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
      for (int n = 0; n < TILES_N / 2; n++) {
        uint32_t fragment_b[4];
        load_matrix_transposed(fragment_b, stage_b + chunk_offset<B_PITCH>(k * 16 + lane % 16, (warp_n + n * 16) / CHUNK + lane / 16));
#pragma unroll
        for (int m = 0; m < TILES_M; m++) {
          multiply(sum[m][2 * n], fragment_a[m], fragment_b[0], fragment_b[1]);
          multiply(sum[m][2 * n + 1], fragment_a[m], fragment_b[2], fragment_b[3]);
        }
      }
    }
  };

  if constexpr (ASYNC) {
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++) start_load(step);
    for (int step = 0; step < steps; step++) {
      asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
      __syncthreads();  // the step has landed for every thread, and the stage to be filled next is no longer read
      start_load(step + STAGES - 1);
      multiply_stage(step);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  } else {
    start_load(0);
    finish_load(0);
    for (int step = 0; step < steps; step++) {
      __syncthreads();
      start_load(step + 1);  // into registers: in flight while this step is multiplied
      multiply_stage(step);
      finish_load(step + 1);  // STAGES >= 2: nobody reads that stage before the next barrier
    }
  }

  // Element pairs of the accumulators: row lane/4 (+8), columns 2*(lane%4) of each 16x8 tile.
  auto for_each_pair = [&](auto&& use) {
#pragma unroll
    for (int m = 0; m < TILES_M; m++)
#pragma unroll
      for (int n = 0; n < TILES_N; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int row = warp_m + m * 16 + half * 8 + lane / 4, column = warp_n + n * 8 + lane % 4 * 2;
          if constexpr (FP16_SUM) {
            const uint32_t pair = sum[m][n][half];
            use(row, column, low_half(pair), low_half(pair >> 16));
          } else {
            use(row, column, __uint_as_float(sum[m][n][2 * half]), __uint_as_float(sum[m][n][2 * half + 1]));
          }
        }
  };

  if constexpr (SPLIT_K > 1) {
    float* mine = partial + static_cast<size_t>(blockIdx.y) * M * N;
    for_each_pair([&](int row, int column, float low, float high) {
      if (row0 + row >= M) return;
      float* target = mine + static_cast<size_t>(row0 + row) * N + column0 + column;
      if (column0 + column < N) target[0] = low;
      if (column0 + column + 1 < N) target[1] = high;
    });
  } else if constexpr (STAGED_STORE) {
    constexpr int C_PITCH = BLOCK_N + CHUNK;
    __syncthreads();  // the stages are no longer read; the tile of C takes their place
    for_each_pair([&](int row, int column, float low, float high) {
      *reinterpret_cast<uint32_t*>(memory + (row * C_PITCH + column) * 2) = pack(low, high);
    });
    __syncthreads();
    for (int index = threadIdx.x; index < BLOCK_M * BLOCK_N / CHUNK; index += THREADS) {
      const int row = index / (BLOCK_N / CHUNK), column = index % (BLOCK_N / CHUNK) * CHUNK;
      const uint4 v = *reinterpret_cast<const uint4*>(memory + (row * C_PITCH + column) * 2);
      if (VECTOR == 8 && row0 + row < M && column0 + column < N) {
        *reinterpret_cast<uint4*>(c + static_cast<size_t>(row0 + row) * N + column0 + column) = v;
      } else if (VECTOR < 8) {
        const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) store_pair(c, row0 + row, column0 + column + 2 * i, M, N, pairs[i]);
      }
    }
  } else {
    for_each_pair([&](int row, int column, float low, float high) {
      store_pair(c, row0 + row, column0 + column, M, N, pack(low, high));
    });
  }
}

// Second launch where SPLIT_K is above 1: adds the partial sums of a tile in a fixed order, so that runs agree bit by bit.
extern "C" __global__ void __launch_bounds__(256) add_partial_sums(const float* __restrict__ partial, uint16_t* __restrict__ c, long long count) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= count) return;
  float sum = 0.f;
#pragma unroll
  for (int split = 0; split < SPLIT_K; split++) sum += partial[split * count + i];
  c[i] = static_cast<uint16_t>(pack(sum, 0.f));
}
