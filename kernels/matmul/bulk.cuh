// Tiles of A and B by tensor copies (compute capability 9.0). One thread of a producer warp fills a ring of stages, and
// warpgroups of consumers multiply with wgmma. Mbarriers connect them: `full` of a stage counts the bytes of its tiles, `empty`
// the warps that have read them. A block takes several tiles of C; while consumers store one, the producer loads the next.
//
// CONSUMERS warpgroups have CONSUMER_M rows each of a tile of TILE_M x TILE_N, or take whole tiles alternately (SCHEDULE). The
// blocks of a cluster have CLUSTER_M x CLUSTER_N neighbouring tiles. Those with the same rows need the same tile of A, and
// those with the same columns the same tile of B: each loads a part of it for all. With SPLITS above one, the steps along K
// of a tile are divided. The last block or warpgroup of a tile merges the parts (ticket), or the blocks of a cluster have one
// part each, and each block merges some columns (cluster).
#pragma once

constexpr int TILE_K = 64, PANEL = 64;  // a swizzled row has 128 bytes
constexpr bool ALTERNATING = SCHEDULE == SCHEDULE_ALTERNATING;
constexpr bool EXCHANGE = SPLITS > 1 && MERGE_PARTS == MERGE_PARTS_CLUSTER;
constexpr int SHARING = CLUSTER_M * CLUSTER_N, SOURCES = CLUSTER_M + CLUSTER_N - 1;  // blocks that share loads, load for one
constexpr int CLUSTER_BLOCKS = SHARING * (EXCHANGE ? SPLITS : 1);
constexpr int PARTS = CONSUMER_M / 64, TEAM = ALTERNATING ? 128 : 128 * CONSUMERS;  // threads that store a tile of C
constexpr uint32_t FULL = RING_BYTES + CONSUMERS * C_STAGE, EMPTY = FULL + 8 * STAGES, TICKET = EMPTY + 8 * STAGES;

// Place of a step in the ring, and the parity of the phase in which it is filled.
struct RingPlace {
  uint32_t stage = 0, parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  __device__ __forceinline__ void skip(int steps) {
    stage += steps;
    parity ^= stage / STAGES & 1;
    stage %= STAGES;
  }
};

// One of the parts of the work that the blocks, or clusters of blocks, take one after another: steps along K of a tile of C.
struct WorkItem {
  int row, column, tile, split, first_step, steps;

  __device__ __forceinline__ WorkItem(int item, uint32_t rank, int M, int N, int K) {
    const int tiles = ((M + RASTER_M - 1) / RASTER_M) * ((N + RASTER_N - 1) / RASTER_N);
    split = SPLITS == 1 ? 0 : EXCHANGE ? rank / SHARING : item / tiles;
    tile = EXCHANGE ? item : item - split * tiles;
    rank %= SHARING;
    const TileOrigin at(tile, M, N);
    row = at.row + rank % CLUSTER_M * TILE_M, column = at.column + rank / CLUSTER_M * TILE_N;
    tile = tile * SHARING + rank;
    const int all = (K + TILE_K - 1) / TILE_K, share = (all + SPLITS - 1) / SPLITS;
    first_step = split * share, steps = min(share, all - first_step);
  }
  __device__ __forceinline__ static int count(int M, int N) {
    return ((M + RASTER_M - 1) / RASTER_M) * ((N + RASTER_N - 1) / RASTER_N) * (EXCHANGE ? 1 : SPLITS);
  }
};

// Loads a tile of BOXES boxes side by side, each of BYTES. If SHARERS blocks need it, loads the part-th part of the
// ROWS of each box, for all of the blocks.
template <int SHARERS, int BOXES, int BYTES, int ROWS>
__device__ __forceinline__ void load_boxes(uint32_t to, const TensorMap& map, uint32_t full, uint32_t part, uint32_t blocks, int x,
                                           int y) {
#pragma unroll
  for (int box = 0; box < BOXES; box++) {
    const uint32_t shared = to + box * BYTES + part * (BYTES / SHARERS);
    if constexpr (SHARERS > 1)
      tile_load_multicast(shared, map, full, blocks, x + box * PANEL, y + part * (ROWS / SHARERS));
    else
      tile_load(shared, map, full, x + box * PANEL, y);
  }
}

__device__ __forceinline__ void produce(const TensorMap& a, const TensorMap& b, uint32_t shared, uint32_t rank, int M, int N, int K) {
  RingPlace place;
  const uint32_t own_m = rank % CLUSTER_M, own_n = rank % SHARING / CLUSTER_M, first = rank / SHARING * SHARING;
  // Ranks with the same rows, and with the same columns.
  const uint32_t row_blocks = (1 | (CLUSTER_N - 1) << CLUSTER_M) << (first + own_m);  // CLUSTER_N is 1 or 2
  const uint32_t column_blocks = ((1 << CLUSTER_M) - 1) << (first + own_n * CLUSTER_M);
#pragma unroll 1
  for (int item = blockIdx.x / CLUSTER_BLOCKS; item < WorkItem::count(M, N); item += gridDim.x / CLUSTER_BLOCKS) {
    const WorkItem work(item, rank, M, N, K);
#pragma unroll 1
    for (int step = 0; step < work.steps; step++) {
      const uint32_t full = shared + FULL + 8 * place.stage, empty = shared + EMPTY + 8 * place.stage;
      const uint32_t to = shared + place.stage * STAGE;
      const int depth = (work.first_step + step) * TILE_K;
      mbarrier_wait(empty, place.parity ^ 1);
      mbarrier_arrive_expect(full, STAGE);
      load_boxes<CLUSTER_N, 1, A_STAGE, TILE_M>(to, a, full, own_n, row_blocks, depth, work.row);
      if constexpr (NT)
        load_boxes<CLUSTER_M, 1, B_STAGE, TILE_N>(to + A_STAGE, b, full, own_m, column_blocks, depth, work.column);
      else
        load_boxes<CLUSTER_M, TILE_N / PANEL, TILE_K * 2 * PANEL, TILE_K>(to + A_STAGE, b, full, own_m, column_blocks,
                                                                          work.column, depth);
      place.next();
    }
  }
}

// Releases a stage for the producers that fill it: those of the blocks with the same columns, then with the same rows. Each
// warp has finished its own reads.
__device__ __forceinline__ void release(uint32_t empty, uint32_t rank, int lane) {
  if constexpr (SHARING > 1) {
    const uint32_t first = rank / CLUSTER_M * CLUSTER_M, other = rank % SHARING < CLUSTER_M ? rank + CLUSTER_M : rank - CLUSTER_M;
    if (lane < SOURCES) mbarrier_arrive_remote(cluster_address(empty, lane < CLUSTER_M ? first + lane : other));
  } else {
    if (lane == 0) mbarrier_arrive(empty);
  }
}

// Named barriers: of teams, of warpgroups that store, and of warpgroups that wait for their turn. A warpgroup that is two
// phases of a stage ahead would take a phase of another warpgroup for its own, because only the parity differs.
constexpr int TEAM_BARRIER = 1, STORE_BARRIER = 1 + CONSUMERS, TURN = 1 + 2 * CONSUMERS;

struct Consumer {
  uint32_t shared, rank;
  uint16_t* c;
  float* partial;
  int M, N, team_rank, warpgroup, lane, warp;  // warp within the warpgroup
  RingPlace place;
  float sum[PARTS][TILE_N / 8][4];

  __device__ __forceinline__ void multiply(int steps, [[maybe_unused]] bool more) {
    uint32_t previous = 0;
    if constexpr (ALTERNATING) named_barrier_sync<256>(TURN + warpgroup);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      const uint32_t stage = shared + place.stage * STAGE;
      const MatrixDescriptor<128> rows(stage + (ALTERNATING ? 0 : warpgroup * CONSUMER_M * 128), 16);
      const MatrixDescriptor<128> columns(stage + A_STAGE, NT ? 16 : TILE_K * PANEL * 2);
      mbarrier_wait(shared + FULL + 8 * place.stage, place.parity);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < TILE_K / 16; k++)
#pragma unroll
        for (int m = 0; m < PARTS; m++)
          wgmma<!NT>(sum[m], rows.at(m * 64 * 128 + k * 32), columns.at(k * (NT ? 32 : 32 * PANEL)), step > 0 || k > 0);
      wgmma_commit_group();
      wgmma_wait_group<1>();
      if (step > 0) release(previous, rank, lane);
      previous = shared + EMPTY + 8 * place.stage;
      place.next();
    }
    if constexpr (ALTERNATING) {
      if (more) named_barrier_arrive<256>(TURN + (warpgroup == CONSUMERS - 1 ? 0 : warpgroup + 1));
    }
    wgmma_wait_group<0>();
    release(previous, rank, lane);
#pragma unroll
    for (int m = 0; m < PARTS; m++) pin_accumulators(sum[m]);
  }

  // Calls use(row, column, low, high) for each pair of neighbouring sums; rows count from the first of this warpgroup.
  template <typename Use>
  __device__ __forceinline__ void for_each_pair(Use&& use) {
#pragma unroll
    for (int m = 0; m < PARTS; m++)
#pragma unroll
      for (int n = 0; n < TILE_N / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
          use(m * 64 + warp * 16 + half * 8 + lane / 4, n * 8 + lane % 4 * 2, sum[m][n][2 * half], sum[m][n][2 * half + 1]);
  }
  __device__ __forceinline__ void sync_team() { named_barrier_sync<TEAM>(TEAM_BARRIER + (ALTERNATING ? warpgroup : 0)); }

  // Returns whether this team is the last to store partial sums of a tile; it sees the sums of all.
  __device__ __forceinline__ bool last_of_tile(int tile) {
    const uint32_t word = shared + TICKET + 4 * (ALTERNATING ? warpgroup : 0);
    __threadfence();
    sync_team();
    if (team_rank == 0) store_shared(word, atomicInc(&tickets[tile], SPLITS - 1) == SPLITS - 1);
    sync_team();
    const bool last = load_shared_word(word) != 0;
    __threadfence();
    return last;
  }

  // Sends other blocks of the cluster their columns of this block's part of the sums, and stores the sums of its own columns.
  // The ring's memory is free, because a block has one item.
  __device__ __forceinline__ void exchange(const WorkItem& work) {
    constexpr int OWN = TILE_N / 8 / SPLITS, SLOT = PARTS * OWN;
    auto place = [&](int slot, int m, int n) { return ((slot * SLOT + m * OWN + n) * TEAM + team_rank) * 16; };
    cluster_sync();
#pragma unroll
    for (int piece = 0; piece < SPLITS; piece++) {
      if (piece == work.split) continue;
      const uint32_t to = cluster_address(shared, piece * SHARING + rank % SHARING);
#pragma unroll
      for (int m = 0; m < PARTS; m++)
#pragma unroll
        for (int n = 0; n < OWN; n++) {
          const float(&from)[4] = sum[m][piece * OWN + n];
          store_cluster(to + place(work.split - (work.split > piece), m, n), from[0], from[1], from[2], from[3]);
        }
    }
    cluster_sync();
#pragma unroll
    for (int piece = 0; piece < SPLITS; piece++) {
      if (piece != work.split) continue;
#pragma unroll
      for (int m = 0; m < PARTS; m++)
#pragma unroll
        for (int n = 0; n < OWN; n++) {
          float total[4] = {};
#pragma unroll
          for (int part = 0; part < SPLITS; part++) {
            Chunk other;
            if (part != piece) other = load_shared_chunk(shared + place(part - (part > piece), m, n));
#pragma unroll
            for (int i = 0; i < 4; i++) total[i] += part == piece ? sum[m][piece * OWN + n][i] : __uint_as_float(other.v[i]);
          }
          const int row = work.row + warpgroup * CONSUMER_M + m * 64 + warp * 16 + lane / 4;
          const int column = work.column + (piece * OWN + n) * 8 + lane % 4 * 2;
          store_pair(c, row, column, M, N, pack_half2(total[0], total[1]));
          store_pair(c, row + 8, column, M, N, pack_half2(total[2], total[3]));
        }
    }
  }

  __device__ __forceinline__ void store(const TensorMap& map, const WorkItem& work) {
    const int row0 = work.row + (ALTERNATING ? 0 : warpgroup * CONSUMER_M), column0 = work.column;
    if constexpr (EXCHANGE) {
      exchange(work);
    } else if constexpr (SPLITS > 1) {
      for_each_pair([&](int row, int column, float low, float high) {
        store_partial_pair(partial, row0 + row, column0 + column, M, N, low, high, work.split);
      });
      if (!last_of_tile(work.tile)) return;
      for_each_pair([&](int row, int column, float low, float high) {
        merge_pair(c, partial, row0 + row, column0 + column, M, N, low, high, work.split);
      });
    } else if constexpr (STORE == STORE_DIRECT) {
      for_each_pair([&](int row, int column, float low, float high) {
        store_pair(c, row0 + row, column0 + column, M, N, pack_half2(low, high));
      });
    } else {
      // Panels of 64 columns, swizzled like the tiles. A lane has the address of one row of four 8x8 matrices.
      const uint32_t staged = shared + RING_BYTES + warpgroup * C_STAGE;
      const uint32_t at = staged + (warp * 16 + lane % 16) * 128 + ((lane / 16) ^ (lane % 8)) * 16;
      if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // the previous tile has been read
      named_barrier_sync<128>(STORE_BARRIER + warpgroup);
#pragma unroll
      for (int m = 0; m < PARTS; m++)
#pragma unroll
        for (int n = 0; n < TILE_N / 8; n += 2) {
          const float(&left)[4] = sum[m][n], (&right)[4] = sum[m][n + 1];
          const uint32_t pairs[] = {pack_half2(left[0], left[1]), pack_half2(left[2], left[3]),
                                    pack_half2(right[0], right[1]), pack_half2(right[2], right[3])};
          stmatrix_x4((at ^ n % 8 * 16) + n / 8 * (CONSUMER_M * 128) + m * 64 * 128, pairs);
        }
      fence_proxy_async();
      named_barrier_sync<128>(STORE_BARRIER + warpgroup);
      if (threadIdx.x % 128 == 0) {
#pragma unroll
        for (int panel = 0; panel < TILE_N / PANEL; panel++)
          tile_store(map, staged + panel * (CONSUMER_M * 128), column0 + panel * PANEL, row0);
        bulk_commit_group();
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS)
matmul_bulk(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c_map,
            uint16_t* __restrict__ c, float* __restrict__ partial, int M, int N, int K) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = shared_address(memory), rank = CLUSTER_BLOCKS > 1 ? cluster_rank() : 0;
  const int lane = threadIdx.x % 32, warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    prefetch_map(a);
    prefetch_map(b);
    for (int stage = 0; stage < STAGES; stage++) {
      mbarrier_init(shared + FULL + 8 * stage, 1);
      mbarrier_init(shared + EMPTY + 8 * stage, SOURCES * TEAM / 32);
    }
    fence_mbarrier_init();
  }
  if constexpr (CLUSTER_BLOCKS > 1)
    cluster_sync();
  else
    __syncthreads();

  if (warpgroup == CONSUMERS) {
    if constexpr (CONSUMER_REGISTERS > LAUNCH_REGISTERS) registers_decrease<PRODUCER_REGISTERS>();
    if (threadIdx.x / 32 % 4 == 0 && elect_one()) produce(a, b, shared, rank, M, N, K);
    __syncwarp();
    if constexpr (EXCHANGE) cluster_sync(), cluster_sync();
  } else {
    if constexpr (CONSUMER_REGISTERS > LAUNCH_REGISTERS) registers_increase<CONSUMER_REGISTERS>();
    Consumer consumer = {shared, rank, c, partial, M, N, static_cast<int>(threadIdx.x % TEAM), warpgroup, lane,
                         static_cast<int>(threadIdx.x / 32 % 4)};
    const int items = WorkItem::count(M, N), stride = gridDim.x / CLUSTER_BLOCKS;
    int turn = 0;
    if constexpr (ALTERNATING) {
      if (warpgroup == CONSUMERS - 1) named_barrier_arrive<256>(TURN);
    }
#pragma unroll 1
    for (int item = blockIdx.x / CLUSTER_BLOCKS; item < items; item += stride) {
      const WorkItem work(item, rank, M, N, K);
      const bool own = !ALTERNATING || turn == warpgroup;
      turn = turn == CONSUMERS - 1 ? 0 : turn + 1;
      if (!own) {
        consumer.place.skip(work.steps);
        continue;
      }
      consumer.multiply(work.steps, item + stride < items);
      consumer.store(c_map, work);
    }
    if constexpr (SPLITS == 1 && STORE != STORE_DIRECT) {
      if (threadIdx.x % 128 == 0) bulk_wait_group<0>();
      __syncwarp();
    }
  }
  if constexpr (SHARING > 1) cluster_sync();  // no block may end while the other multicasts to it or arrives there
}
