// Tiles of A and B by tensor copies (compute capability 9.0). One thread of a producer warp fills a ring of stages, and
// warpgroups of consumers multiply with wgmma. Mbarriers connect them: `full` of a stage counts the bytes of its tiles, `empty`
// the warps that have read them. A block takes several tiles of C; while consumers store one, the producer loads the next.
//
// A wgmma has 64 rows and up to 256 columns. Its rows are rows of A and of C (ROW_OPERAND=a), or columns of B and of C
// (b). X is the matrix of the rows, Y that of the columns; R and S are the sizes of C along the rows and the columns.
//
// CONSUMERS warpgroups have CONSUMER_M rows each of a tile of TILE_M x TILE_N, or take whole tiles alternately (SCHEDULE). The
// blocks of a cluster have CLUSTER_M x CLUSTER_N neighbouring tiles. Those with the same rows need the same tile of X, and
// those with the same columns the same tile of Y: each loads a part of it for all. With SPLITS above one, the steps along K
// of a tile are divided, and a block has one part. The last block of a tile merges the parts (ticket), or the blocks of a cluster have one
// part each, and each block merges some columns (cluster).
#pragma once

constexpr int TILE_K = 64, PANEL = 64;  // a swizzled row has 128 bytes
constexpr bool ROWS_OF_B = ROW_OPERAND == ROW_OPERAND_B;
constexpr bool X_BY_DEPTH = NT || !ROWS_OF_B, Y_BY_DEPTH = NT || ROWS_OF_B;  // rows along K; otherwise K rows of panels
constexpr bool ALTERNATING = SCHEDULE == SCHEDULE_ALTERNATING, SINGLE = GRID_BLOCKS == 0;  // a block has one item
constexpr bool EXCHANGE = SPLITS > 1 && MERGE_PARTS == MERGE_PARTS_CLUSTER;
constexpr bool APART = EXCHANGE && RECEIVED > 0;  // sums arrive outside the ring, also while this block still multiplies
constexpr int SHARING = CLUSTER_M * CLUSTER_N, SOURCES = CLUSTER_M + CLUSTER_N - 1;  // blocks that share loads, load for one
constexpr int CLUSTER_BLOCKS = SHARING * (EXCHANGE ? SPLITS : 1);
constexpr int PARTS = CONSUMER_M / 64, TEAM = ALTERNATING ? 128 : 128 * CONSUMERS;  // threads that store a tile of C
constexpr int OCTETS = TILE_N / 8, PAIRS = TILE_N / 16;  // groups of 8 and of 16 columns
constexpr uint32_t FULL = BARRIERS, EMPTY = FULL + 8 * STAGES, TICKET = EMPTY + 8 * STAGES;

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

  __device__ __forceinline__ WorkItem(int item, uint32_t rank, int R, int S, int K) {
    const int tiles = ((R + RASTER_M - 1) / RASTER_M) * ((S + RASTER_N - 1) / RASTER_N);
    split = SPLITS == 1 ? 0 : EXCHANGE ? rank / SHARING : item / tiles;
    tile = EXCHANGE ? item : item - split * tiles;
    rank %= SHARING;
    const TileOrigin at(tile, R, S);
    row = at.row + rank % CLUSTER_M * TILE_M, column = at.column + rank / CLUSTER_M * TILE_N;
    tile = tile * SHARING + rank;
    const int all = (K + TILE_K - 1) / TILE_K;
    first_step = split * all / SPLITS, steps = (split + 1) * all / SPLITS - first_step;
  }
  __device__ __forceinline__ static int count(int R, int S) {
    return ((R + RASTER_M - 1) / RASTER_M) * ((S + RASTER_N - 1) / RASTER_N) * (EXCHANGE ? 1 : SPLITS);
  }
};

// Loads the tile of X or Y at these coordinates. If SHARERS blocks need it, loads the part-th part of each box for all.
// Rows along K are one box; otherwise boxes of PANEL_COLUMNS lie side by side.
template <int SHARERS, bool BY_DEPTH, int ROWS, int PANEL_COLUMNS>
__device__ __forceinline__ void load_tile(uint32_t to, const TensorMap& map, uint32_t full, uint32_t part, uint32_t blocks, int row,
                                          int depth) {
  constexpr int BOXES = BY_DEPTH ? 1 : ROWS / PANEL_COLUMNS, HEIGHT = BY_DEPTH ? ROWS : TILE_K;
  constexpr int BYTES = ROWS * TILE_K * 2 / BOXES;
#pragma unroll
  for (int box = 0; box < BOXES; box++) {
    const uint32_t shared = to + box * BYTES + part * (BYTES / SHARERS);
    const int x = BY_DEPTH ? depth : row + box * PANEL_COLUMNS, y = BY_DEPTH ? row : depth;
    if constexpr (SHARERS > 1)
      tile_load_multicast(shared, map, full, blocks, x, y + part * (HEIGHT / SHARERS));
    else
      tile_load(shared, map, full, x, y);
  }
}

__device__ __forceinline__ void produce(const TensorMap& x, const TensorMap& y, uint32_t shared, uint32_t rank, int R, int S, int K) {
  RingPlace place;
  const uint32_t own_m = rank % CLUSTER_M, own_n = rank % SHARING / CLUSTER_M, first = rank / SHARING * SHARING;
  // Ranks with the same rows, and with the same columns.
  const uint32_t row_blocks = (1 | (CLUSTER_N - 1) << CLUSTER_M) << (first + own_m);  // CLUSTER_N is 1 or 2
  const uint32_t column_blocks = ((1 << CLUSTER_M) - 1) << (first + own_n * CLUSTER_M);
#pragma unroll 1
  for (int item = blockIdx.x / CLUSTER_BLOCKS; item < WorkItem::count(R, S); item += gridDim.x / CLUSTER_BLOCKS) {
    const WorkItem work(item, rank, R, S, K);
#pragma unroll 1
    for (int step = 0; step < work.steps; step++) {
      const uint32_t full = shared + FULL + 8 * place.stage, empty = shared + EMPTY + 8 * place.stage;
      const uint32_t to = shared + place.stage * STAGE;
      const int depth = (work.first_step + step) * TILE_K;
      mbarrier_wait(empty, place.parity ^ 1);
      mbarrier_arrive_expect(full, STAGE);
      load_tile<CLUSTER_N, X_BY_DEPTH, TILE_M, PANEL>(to, x, full, own_n, row_blocks, work.row, depth);
      load_tile<CLUSTER_M, Y_BY_DEPTH, TILE_N, Y_PANEL>(to + A_STAGE, y, full, own_m, column_blocks, work.column, depth);
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

// Named barriers: of the team, of warpgroups that store, and of warpgroups that wait for their turn. A warpgroup that is two
// phases of a stage ahead would take a phase of another warpgroup for its own, because only the parity differs.
constexpr int TEAM_BARRIER = 1, STORE_BARRIER = 2, TURN = 2 + CONSUMERS;

// Waits for the cluster before a block sends sums. With APART, each thread of the cluster has arrived at its start.
__device__ __forceinline__ void sync_before_sending() {
  if constexpr (!APART)
    cluster_sync();
  else if constexpr (SHARING == 1)
    cluster_wait();
}

struct Consumer {
  uint32_t shared, rank;
  const TensorMap& c;
  float* partial;
  int team_rank, warpgroup, lane, warp;  // warp within the warpgroup
  RingPlace place;
  float sum[PARTS][OCTETS][4];

  __device__ __forceinline__ void multiply(int steps, [[maybe_unused]] bool more) {
    uint32_t previous = 0;
    if constexpr (ALTERNATING) named_barrier_sync<256>(TURN + warpgroup);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      const uint32_t stage = shared + place.stage * STAGE;
      const MatrixDescriptor<128> rows(stage + (ALTERNATING ? 0 : warpgroup * CONSUMER_M * 128), 16);
      const MatrixDescriptor<Y_BY_DEPTH ? 128 : 2 * Y_PANEL> columns(stage + A_STAGE, Y_BY_DEPTH ? 16 : TILE_K * Y_PANEL * 2);
      mbarrier_wait(shared + FULL + 8 * place.stage, place.parity);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < TILE_K / 16; k++)
#pragma unroll
        for (int m = 0; m < PARTS; m++)
          wgmma<!Y_BY_DEPTH, !X_BY_DEPTH>(sum[m], rows.at(m * 64 * 128 + k * (X_BY_DEPTH ? 32 : 32 * PANEL)),
                                          columns.at(k * (Y_BY_DEPTH ? 32 : 32 * Y_PANEL)), step > 0 || k > 0);
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

  __device__ __forceinline__ void sync_team() { named_barrier_sync<TEAM>(TEAM_BARRIER); }

  // Returns whether this team is the last to store partial sums of a tile; it sees the sums of all.
  __device__ __forceinline__ bool last_of_tile(int tile) {
    const uint32_t word = shared + TICKET;
    __threadfence();
    sync_team();
    if (team_rank == 0) store_shared(word, atomicInc(&tickets[tile], SPLITS - 1) == SPLITS - 1);
    sync_team();
    const bool last = load_shared_word(word) != 0;
    __threadfence();
    return last;
  }

  // Parts of a tile in the workspace, and the place in the ring's memory to which a thread copies those of other blocks.
  static constexpr int ALL = PARTS * OCTETS, OTHERS = SPLITS > 1 ? SPLITS - 1 : 1, ROOM = STAGES * STAGE / (OTHERS * TEAM * 16);
  static constexpr int AT_ONCE = ROOM < ALL ? ROOM : ALL;
  __device__ __forceinline__ uint32_t copy_of(int other, int o) const { return shared + ((other * AT_ONCE + o) * TEAM + team_rank) * 16; }

  // Adds the copied parts in the order of K to this block's part, which is the OWN-th.
  template <int OWN>
  __device__ __forceinline__ void add_copies(int split, int begin) {
    if (split == OWN) {
#pragma unroll
      for (int o = 0; o < AT_ONCE && begin + o < ALL; o++) {
        float(&own)[4] = sum[(begin + o) / OCTETS][(begin + o) % OCTETS], total[4];
#pragma unroll
        for (int part = 0; part < SPLITS; part++) {
          float other[4];
          if (part != OWN) load_shared_floats(other, copy_of(part - (part > OWN), o));
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const float value = part == OWN ? own[i] : other[i];
            total[i] = part == 0 ? value : total[i] + value;
          }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) own[i] = total[i];
      }
    } else if constexpr (OWN + 1 < SPLITS) {
      add_copies<OWN + 1>(split, begin);
    }
  }

  // Stores this part of the sums in the workspace. If it is the tile's last, adds all parts and returns true. The order is
  // that of K, whichever part is the last. Each warp accesses 512 contiguous bytes at a time, and each thread reads only
  // what it has copied.
  __device__ __forceinline__ bool merge(const WorkItem& work) {
    constexpr int STRIDE = 4 * TEAM;
    float* const first = partial + static_cast<size_t>(work.tile) * SPLITS * ALL * STRIDE + 4 * team_rank;
    float* const own = first + work.split * ALL * STRIDE;
#pragma unroll
    for (int o = 0; o < ALL; o++) store_global_floats(own + o * STRIDE, sum[o / OCTETS][o % OCTETS]);
    if (!last_of_tile(work.tile)) return false;
#pragma unroll
    for (int begin = 0; begin < ALL; begin += AT_ONCE) {
#pragma unroll 1
      for (int other = 0; other < SPLITS - 1; other++) {
        const float* from = first + ((other + (other >= work.split)) * ALL + begin) * STRIDE;
#pragma unroll 2
        for (int o = 0; o < AT_ONCE && begin + o < ALL; o++) cp_async(copy_of(other, o), from + o * STRIDE);
      }
      cp_async_commit_group();
      cp_async_wait_group<0>();
      add_copies<0>(work.split, begin);
    }
    return true;
  }

  // A block of a cluster adds the parts of the columns of one piece. First it sends the others their columns of its part, if
  // they have started; if these arrive in the memory of the ring, the others have read it.
  static constexpr int first_octet(int piece) { return piece * PAIRS / SPLITS * 2; }
  __device__ __forceinline__ uint32_t slot(int from, int m, int n) {
    constexpr int MOST = (PAIRS + SPLITS - 1) / SPLITS * 2;
    return RECEIVED + (((from * PARTS + m) * MOST + n) * TEAM + team_rank) * 16;
  }
  template <int PIECE>
  __device__ __forceinline__ void send_pieces(const WorkItem& work) {
    constexpr int FIRST = first_octet(PIECE), END = first_octet(PIECE + 1);
    if (work.split != PIECE) {
      const uint32_t to = cluster_address(shared, PIECE * SHARING + rank % SHARING);
#pragma unroll
      for (int m = 0; m < PARTS; m++)
#pragma unroll
        for (int n = FIRST; n < END; n++)
          store_cluster(to + slot(work.split - (work.split > PIECE), m, n - FIRST), sum[m][n][0], sum[m][n][1], sum[m][n][2],
                        sum[m][n][3]);
    }
    if constexpr (PIECE + 1 < SPLITS) send_pieces<PIECE + 1>(work);
  }
  // Adds the parts of this block's piece in the order of K, and stores them.
  template <int PIECE>
  __device__ __forceinline__ void finish_piece(const WorkItem& work) {
    constexpr int FIRST = first_octet(PIECE), END = first_octet(PIECE + 1);
    if (work.split == PIECE) {
#pragma unroll
      for (int m = 0; m < PARTS; m++)
#pragma unroll
        for (int n = FIRST; n < END; n++) {
          float total[4];
#pragma unroll
          for (int part = 0; part < SPLITS; part++) {
            float other[4];
            if (part != PIECE) load_shared_floats(other, shared + slot(part - (part > PIECE), m, n - FIRST));
#pragma unroll
            for (int i = 0; i < 4; i++) {
              const float value = part == PIECE ? sum[m][n][i] : other[i];
              total[i] = part == 0 ? value : total[i] + value;
            }
          }
#pragma unroll
          for (int i = 0; i < 4; i++) sum[m][n][i] = total[i];
        }
      store<FIRST, END>(work);
    } else if constexpr (PIECE + 1 < SPLITS) {
      finish_piece<PIECE + 1>(work);
    }
  }

  // Stores groups FIRST to END - 1 of the columns by tensor copies, 64 columns at a time, from PLACES in shared memory.
  // Boxes of C_PANEL columns are swizzled like the tiles. Each lane has the address of one row of four 8x8 matrices: the
  // upper and lower rows of 8 columns, and of the next 8. For ROW_OPERAND=b they are transposed, and rows of a box are columns.
  template <int FIRST, int END>
  __device__ __forceinline__ void store(const WorkItem& work) {
    constexpr int PITCH = 2 * (ROWS_OF_B ? PANEL : C_PANEL), BOX = C_PANEL / 8, PIECE = 8;  // octets of a box, of a place
    constexpr int BYTES = CONSUMER_M * C_PANEL * 2, PART = ROWS_OF_B ? BYTES / PARTS : 64 * PITCH;
    constexpr int STORES = (END - FIRST + PIECE - 1) / PIECE, PLACES = (C_STAGE - 1) / (CONSUMER_M * PIECE * 16) + 1;
    const int row = work.row + (ALTERNATING ? 0 : warpgroup * CONSUMER_M);
    const int matrix_row = ROWS_OF_B ? lane % 8 + lane / 16 * 8 : warp * 16 + lane % 16;
    const uint32_t first = matrix_row * PITCH, mask = first / 128 % (PITCH / 16) * 16;
    const uint32_t chunk = ROWS_OF_B ? (warp * 2 + lane / 8 % 2) * 16 : lane / 16 * 16;
#pragma unroll
    for (int piece = 0; piece < STORES; piece++) {
      const uint32_t staged = shared + STAGED + warpgroup * C_STAGE + piece % PLACES * (CONSUMER_M * PIECE * 16);
      // Waits until the place has been read. With an odd number of stores, the last one of the previous tile was there.
      if (piece == 0 ? !SINGLE : PLACES < STORES) {
        if (threadIdx.x % 128 == 0) piece == 0 && (PLACES >= STORES || STORES % 2) ? bulk_wait_read<0>() : bulk_wait_read<1>();
        named_barrier_sync<128>(STORE_BARRIER + warpgroup);
      }
#pragma unroll
      for (int n = FIRST + piece * PIECE; n < END && n < FIRST + (piece + 1) * PIECE; n += 2)
#pragma unroll
        for (int m = 0; m < PARTS; m++) {
          const float(&left)[4] = sum[m][n], (&right)[4] = sum[m][n + 1];
          const uint32_t pairs[] = {pack_half2(left[0], left[1]), pack_half2(left[2], left[3]),
                                    pack_half2(right[0], right[1]), pack_half2(right[2], right[3])};
          const int within = n - FIRST - piece * PIECE;
          const uint32_t at = staged + within / BOX * BYTES + m * PART + first;
          if constexpr (ROWS_OF_B)
            stmatrix_x4_transposed(at + within % BOX * 8 * PITCH + (chunk ^ mask), pairs);
          else
            stmatrix_x4(at + ((chunk + within % BOX * 16) ^ mask), pairs);
        }
      fence_proxy_async();
      named_barrier_sync<128>(STORE_BARRIER + warpgroup);
      if (threadIdx.x % 128 == 0) {
#pragma unroll
        for (int n = FIRST + piece * PIECE; n < END && n < FIRST + (piece + 1) * PIECE; n += BOX) {
          const uint32_t box = staged + (n - FIRST - piece * PIECE) / BOX * BYTES;
          const int column = work.column + n * 8;
          if constexpr (ROWS_OF_B) {
#pragma unroll
            for (int m = 0; m < PARTS; m++) tile_store(c, box + m * PART, row + m * 64, column);
          } else {
            tile_store(c, box, column, row);
          }
        }
        bulk_commit_group();
      }
    }
  }

  __device__ __forceinline__ void finish(const WorkItem& work) {
    if constexpr (EXCHANGE) {
      sync_before_sending();
      send_pieces<0>(work);
      cluster_sync();
      finish_piece<0>(work);
    } else {
      if constexpr (SPLITS > 1) {
        if (!merge(work)) return;
      }
      if constexpr (SINGLE) sync_team();  // others have read the ring, whose memory is reused
      store<0, OCTETS>(work);
    }
  }
};

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS)
matmul_bulk(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap y, const __grid_constant__ TensorMap c,
            float* __restrict__ partial, int R, int S, int K) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = shared_address(memory), rank = CLUSTER_BLOCKS > 1 ? cluster_rank() : 0;
  const int lane = threadIdx.x % 32, warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    prefetch_map(x);
    prefetch_map(y);
    prefetch_map(c);
    for (int stage = 0; stage < STAGES; stage++) {
      mbarrier_init(shared + FULL + 8 * stage, 1);
      mbarrier_init(shared + EMPTY + 8 * stage, SOURCES * TEAM / 32);
    }
    fence_mbarrier_init();
  }
  if constexpr (SHARING > 1)
    cluster_sync();  // others arrive at the barriers
  else
    __syncthreads();
  if constexpr (APART && SHARING == 1) cluster_arrive();

  if (warpgroup == CONSUMERS) {
    if constexpr (CONSUMER_REGISTERS > LAUNCH_REGISTERS) registers_decrease<PRODUCER_REGISTERS>();
    if (threadIdx.x / 32 % 4 == 0 && elect_one()) produce(x, y, shared, rank, R, S, K);
    __syncwarp();
    if constexpr (EXCHANGE) sync_before_sending(), cluster_sync();
  } else {
    if constexpr (CONSUMER_REGISTERS > LAUNCH_REGISTERS) registers_increase<CONSUMER_REGISTERS>();
    Consumer consumer = {shared, rank, c, partial, static_cast<int>(threadIdx.x % TEAM), warpgroup, lane,
                         static_cast<int>(threadIdx.x / 32 % 4)};
    const int items = WorkItem::count(R, S), stride = gridDim.x / CLUSTER_BLOCKS;
    int turn = 0;
    if constexpr (ALTERNATING) {
      if (warpgroup == CONSUMERS - 1) named_barrier_arrive<256>(TURN);
    }
#pragma unroll 1
    for (int item = blockIdx.x / CLUSTER_BLOCKS; item < items; item += stride) {
      const WorkItem work(item, rank, R, S, K);
      const bool own = !ALTERNATING || turn == warpgroup;
      turn = turn == CONSUMERS - 1 ? 0 : turn + 1;
      if (!own) {
        consumer.place.skip(work.steps);
        continue;
      }
      consumer.multiply(work.steps, item + stride < items);
      consumer.finish(work);
    }
    if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // the memory of a block that ends is reused
    __syncwarp();
  }
  if constexpr (SHARING > 1) cluster_sync();  // no block may end while the other multicasts to it or arrives there
}
