// Attention by specialised warps (PATH=bulk): one thread of the loading warps has the copy engine fill rings of
// tiles of K and V; each computing warpgroup has 64 rows, as in FlashAttention-3 (Shah et al., arXiv 2407.08608).
//
// Shared memory: Q and the output (64 rows for each warpgroup), rings of K and of V, barriers.
#pragma once

#include "../common/bulk_copy.cuh"
#include "../common/cluster.cuh"
#include "../common/mbarrier.cuh"

constexpr bool DIVIDED = TAIL == TAIL_DIVIDED;       // the last tasks are divided along the keys
constexpr bool IN_TURN = TURNS == TURNS_ALTERNATE;  // warpgroups alternate between products and exponentials
constexpr u32 ROWS_BYTES = 64 * D * 2;  // one warpgroup's rows of Q or of the output
constexpr u32 RINGS = 2 * GROUPS * ROWS_BYTES, BARRIERS = RINGS + 2 * STAGES * TILE_BYTES;
constexpr int GROUP_BARRIER = 1, TURN_BARRIER = GROUP_BARRIER + GROUPS;  // named barriers of the first warpgroup

/// Tensor maps of rows in panels of 64 columns: coordinates are the column, the row, the panel and the head.
struct Maps {
  const TensorMap &q, &k, &v, &o;
  float* partials;  // parts of divided tasks
};

/// A pair of barriers of a tile: its bytes have come (`full`), and all warps that compute have read it (`empty`).
struct Exchange {
  u32 full;
  __device__ __forceinline__ u32 empty() const { return full + 8; }
  /// Waits until the tile may be overwritten, and announces its next bytes.
  __device__ __forceinline__ void announce(u32 bytes, u32 phase) const {
    mbarrier_wait(empty(), phase ^ 1);
    mbarrier_arrive_expect(full, bytes);
  }
  /// Signals that this warp has read the tile.
  __device__ __forceinline__ void release(u32 lane) const {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(empty());
  }
};
/// The exchanges of Q of each warpgroup, then of the stages of K and of V.
__device__ __forceinline__ Exchange exchange_of(u32 memory, u32 index) { return {memory + BARRIERS + 16 * index}; }

/// A task, or a part of its steps: from `first` to before `last`.
struct Piece {
  int head, first_row, first, last;
  int block = 0, pieces = 1;  // the first block with a piece of the task, and their number
};

/// The next stage of the ring of K (number 0) or V (number 1), and the parity of its phase.
struct Ring {
  u32 memory, number, stage = 0, phase = 0;
  __device__ __forceinline__ Ring(u32 memory, u32 number) : memory(memory), number(number) {}
  __device__ __forceinline__ u32 tile() const { return memory + RINGS + (number * STAGES + stage) * TILE_BYTES; }
  __device__ __forceinline__ Exchange exchange() const { return exchange_of(memory, GROUPS + number * STAGES + stage); }
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  /// Starts the copy of the next tile.
  __device__ __forceinline__ void fill(const TensorMap& map, int first_key, int head) {
    exchange().announce(TILE_BYTES, phase);
    tile_load(tile(), map, exchange().full, 0, first_key, 0, head);
    advance();
  }
  /// Waits until the tile has come.
  __device__ __forceinline__ u32 wait() const {
    mbarrier_wait(exchange().full, phase);
    return tile();
  }
  __device__ __forceinline__ void release(u32 lane) {
    exchange().release(lane);
    advance();
  }
};

/// Calls work(piece) for each piece of this block. With DIVIDED, tasks that do not fill all blocks are divided into pieces: each
/// block gets the same number of their steps, in the order of the tasks.
template <typename Work>
__device__ __forceinline__ void for_each_piece(int heads, int length, const Work& work) {
  const int blocks = ceil_div(length, TILE_ROWS);
  const auto first_row = [&](int index) { return row_block(index, blocks) * TILE_ROWS; };
  const auto steps_at = [&](int index) { return steps_of(0, first_row(index), length); };
  if constexpr (DIVIDED) {
    const int grid = gridDim.x, steps = steps_at(0), tasks = heads * blocks, whole = tasks - tasks % grid;
    const int units = (tasks - whole) * steps, share = ceil_div(units, grid);  // units are steps of divided tasks
    int task = blockIdx.x, first = 0, unit = blockIdx.x * share;
    const int end = min(units, unit + share);
    for (bool dividing = false; dividing ? unit < end : task < whole || unit < end;) {
      if (!dividing && task >= whole) dividing = true, task = whole + unit / steps, first = unit % steps;
      const int head = GRID_ORDER == GRID_ORDER_ROWS_FAST ? task / blocks : task % heads;
      const int index = GRID_ORDER == GRID_ORDER_ROWS_FAST ? task % blocks : task / heads;
      const int last = dividing ? min(steps, first + end - unit) : steps;
      const int begun = dividing ? (unit - first) / share : 0;  // the first and the last block with a piece of the task
      const int ended = dividing ? (unit - first + steps - 1) / share : 0;
      work(Piece{head, first_row(index), first, last, begun, ended - begun + 1});
      if (dividing) unit += last - first;
      task += dividing ? 1 : grid, first = 0;
    }
  } else {
    for_each_task(heads, blocks, [&](int head, int index) { work(Piece{head, first_row(index), 0, steps_at(index)}); });
  }
}

/// Has the copy engine load Q, K and V of all tasks, in the order in which the warpgroups read them.
__device__ __forceinline__ void load_tasks(const Maps& maps, u32 memory, int heads, int length) {
  Ring keys(memory, 0), values(memory, 1);
  u32 query_phase = 0;
  for_each_piece(heads, length, [&](const Piece& piece) {
    const int head = piece.head;
    keys.fill(maps.k, piece.first * TILE_KEYS, head);  // before Q, whose memory becomes free later
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
      const Exchange exchange = exchange_of(memory, group);
      exchange.announce(ROWS_BYTES, query_phase);
      tile_load(memory + group * ROWS_BYTES, maps.q, exchange.full, 0, piece.first_row + 64 * group, 0, head);
    }
    query_phase ^= 1;
#pragma unroll 1
    for (int step = piece.first; step < piece.last; ++step) {
      if (step + 1 < piece.last) keys.fill(maps.k, (step + 1) * TILE_KEYS, head);
      values.fill(maps.v, step * TILE_KEYS, head);
    }
  });
}

/// The turn of a warpgroup to start products.
struct Turn {
  u32 group;
  __device__ __forceinline__ void wait() const {
    if constexpr (IN_TURN) named_barrier_sync<256>(TURN_BARRIER + group);
  }
  __device__ __forceinline__ void pass() const {
    if constexpr (IN_TURN) named_barrier_arrive<256>(TURN_BARRIER + (group + 1 == GROUPS ? 0 : group + 1));
  }
};

/// Returns the end of the steps of a piece in which a warpgroup's rows have visible keys, after at least one step: under a
/// causal mask, a block's first warpgroups see fewer keys than its last row, and rows past the end need no keys.
__device__ __forceinline__ int own_end(const Piece& piece, u32 group, int length) {
  if constexpr (!CAUSAL && !ROW_TAIL) return piece.last;
  const int first_row = piece.first_row + 64 * static_cast<int>(group);
  if (first_row >= length) return piece.first + 1;
  return CAUSAL ? min(piece.last, max(piece.first + 1, ceil_div(first_row + 64, TILE_KEYS))) : piece.last;
}

/// Processes the keys of one piece: scores, softmax with the running reference, output.
__device__ __forceinline__ void process_piece(Ring& keys, Ring& values, const Exchange& query, const Query& q, Rows& rows,
                                              const Piece& piece, int length, float scale, const Turn& turn,
                                             const ThreadCoord& at) {
  const int end = own_end(piece, turn.group, length), first_row = piece.first_row;
  Scores s;
  StepProbabilities p;
  rows.reset();
  const u32 first = keys.wait();
  wgmma_fence();
  start_scores(s, q, first, at);
  wgmma_wait_group<0>();
  pin_accumulators(s[0]);
  keys.release(at.lane);
  // Not right after ldmatrix: on an H200, the next copy then overwrote single rows before the warp had read them.
  if constexpr (Q_LOCATION == Q_LOCATION_REGISTERS) query.release(at.lane);
  mask_edges(s, piece.first * TILE_KEYS, first_row, length, at);
  init_reference(rows, s, scale);
  exponentiate_step(s, rows, scale);
  pack_step(p, s);
#pragma unroll UNROLL_STEPS
  for (int step = piece.first + 1; step < end; ++step) {
    const u32 k_tile = keys.wait(), v_tile = values.wait();
    turn.wait();
    wgmma_fence();
    start_scores(s, q, k_tile, at);
    start_output(rows, p, v_tile);
    turn.pass();
    wgmma_wait_group<1>();
    pin_accumulators(s[0]);
    keys.release(at.lane);
    mask_edges(s, step * TILE_KEYS, first_row, length, at);
    Factors factor;
    const bool outgrown = raise_reference<RESCALE>(rows, s, scale, factor);
    exponentiate_step(s, rows, scale);
    wgmma_wait_group<0>();
    pin_accumulators(rows.output[0]);
    pin_accumulators(s[0]);  // P may be written from here on; the completed products have read it
    values.release(at.lane);
    if (outgrown) rescale_output(rows, factor);
    pack_step(p, s);
  }
  if constexpr (Q_LOCATION == Q_LOCATION_SHARED) query.release(at.lane);  // the products have read it
  const u32 v_tile = values.wait();
  wgmma_fence();
  start_output(rows, p, v_tile);
  wgmma_wait_group<0>();
  pin_accumulators(rows.output[0]);
  values.release(at.lane);
  for (int step = end; step < piece.last; ++step) {  // the other warpgroups' steps
    keys.wait(), values.wait();
    turn.wait(), turn.pass();
    keys.release(at.lane), values.release(at.lane);
  }
  reduce_row_sums(rows);
}

/// Computes this warp's rows again with operands from global memory and references that follow every score. Overflowed
/// blocks are rare, so this code is short instead of fast.
__device__ __forceinline__ void process_rows_again(const Tensors& head, Rows& rows, const Piece& piece, int length, float scale,
                                                   const ThreadCoord& at) {
  const int group = at.lane / 4, pair = 2 * at.column_pair();
  const auto word = [&](const Half* tensor, int row, int column) {
    u32 loaded;
    load_global<4>(&loaded, tensor + min(row, length - 1) * D + column);
    return loaded;
  };
  rows.reset_without_keys();  // start with references below every score
  rows.reset();
  const int first_row = piece.first_row, warp_row = first_row + at.warp_m * 16;
  const int end = min(piece.last * TILE_KEYS, CAUSAL ? min(length, warp_row + 16) : length);
#pragma unroll 1
  for (int first = piece.first * TILE_KEYS; first < end; first += 16) {
    ScoresOf<2> s;
    clear(s[0][0]), clear(s[0][1]);
#pragma unroll 2
    for (int depth = 0; depth < D; depth += 16) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = word(head.q, warp_row + group + i % 2 * 8, depth + pair + i / 2 * 8);
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const int key = first + x * 8 + group;
        mma(s[0][x], a, word(head.k, key, depth + pair), word(head.k, key, depth + pair + 8));
      }
    }
    mask_edges(s, first, first_row, length, at);
    update_reference<RESCALE_ALWAYS>(rows, s, scale);
    exponentiate(s, 0, rows, scale);
    Probabilities p;
    pack_probabilities(p, s, 0);
    if constexpr (ROW_SUM == ROW_SUM_ONES_MMA) mma(rows.sum[0], p[0], ONES, ONES);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      u32 b[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Half* const v = head.v + n * 8 + group;
        const int key = first + pair + 8 * i;
        b[i] = v[min(key, length - 1) * D] | static_cast<u32>(v[min(key + 1, length - 1) * D]) << 16;
      }
      mma(rows.output[0][n], p[0], b[0], b[1]);
    }
  }
  reduce_row_sums(rows);
}

/// Counters of the pieces of a task, for the first block with a piece and each warpgroup. All are zero between launches,
/// because the last piece of a task resets its counter.
static __device__ u32 finished_pieces[DIVIDED ? GRID_BLOCKS * GROUPS : 1];

/// Stores a warpgroup's part of a task. Returns whether it is the last part to be stored; then `rows` is the sum of all, in the
/// order of the keys, so that results are reproducible. A block has at most two such pieces: one that ends a task or is
/// inside it, and one that begins a task.
__device__ __forceinline__ bool merge_pieces(Rows& rows, const Piece& piece, float* partials, u32 memory, const ThreadCoord& at) {
  constexpr int PART = (D / 8 + 1) * 512;  // floats: the output, then references and sums
  const int group = at.warp_m / 4, thread = at.thread % 128, block = blockIdx.x;
  const auto part = [&](int number) {
    const int place = 2 * (piece.block + number) + (number == 0);
    return partials + static_cast<size_t>(place * GROUPS + group) * PART + thread * 4;
  };
  float* const own = part(block - piece.block);
#pragma unroll
  for (int n = 0; n < D / 8; ++n) store_global_floats(own + n * 512, rows.output[0][n]);
  store_global_floats(own + D / 8 * 512, {rows.reference[0][0], rows.sum[0][0], rows.reference[0][1], rows.sum[0][2]});
  __threadfence();
  named_barrier_sync<128>(GROUP_BARRIER + group);
  const u32 word = memory + BARRIERS + 16 * (GROUPS + 2 * STAGES) + 4 * group;
  if (thread == 0) {
    const u32 last = piece.pieces - 1;
    store_shared(word, atomicInc(&finished_pieces[piece.block * GROUPS + group], last) == last);
  }
  named_barrier_sync<128>(GROUP_BARRIER + group);
  if (load_shared_word(word) == 0) return false;
  __threadfence();
  float top[2] = {MASKED_SCORE, MASKED_SCORE}, loaded[4];
  for (int i = 0; i < piece.pieces; ++i) {
    load_global_floats(loaded, part(i) + D / 8 * 512);
    top[0] = fmaxf(top[0], loaded[0]), top[1] = fmaxf(top[1], loaded[2]);
  }
  rows.reset();
#pragma unroll 1
  for (int i = 0; i < piece.pieces; ++i) {
    load_global_floats(loaded, part(i) + D / 8 * 512);
    const float weight[2] = {exp2_approx(loaded[0] - top[0]), exp2_approx(loaded[2] - top[1])};
    rows.sum[0][0] = fmaf(weight[0], loaded[1], rows.sum[0][0]);
    rows.sum[0][2] = fmaf(weight[1], loaded[3], rows.sum[0][2]);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      load_global_floats(loaded, part(i) + n * 512);
#pragma unroll
      for (int x = 0; x < 4; ++x) rows.output[0][n][x] = fmaf(weight[x / 2], loaded[x], rows.output[0][n][x]);
    }
  }
  return true;
}

/// Stores the output of a warpgroup: through shared memory by the copy engine, which writes no rows past the end.
__device__ __forceinline__ void copy_output(const TensorMap& map, const Rows& rows, u32 staging, int first_row, int head,
                                            const ThreadCoord& at) {
  const int group = at.warp_m / 4;
  if (at.thread % 128 == 0) bulk_wait_read<0>();  // the previous copy has read the memory
  named_barrier_sync<128>(GROUP_BARRIER + group);
  const int row = at.warp_m % 4 * 16 + at.lane % 16, chunk = at.lane / 16;
  const float factor[2] = {rcp_approx(rows.sum[0][0]), rcp_approx(rows.sum[0][2])};
#pragma unroll
  for (int n = 0; n < D / 8; n += 2) {
    u32 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = scaled_pair(rows.output[0][n + i / 2], i % 2, factor[i % 2]);
    stmatrix_x4(staging + chunk_offset<64>(row, n + chunk), pairs);
  }
  fence_proxy_async();
  named_barrier_sync<128>(GROUP_BARRIER + group);
  if (at.thread % 128 == 0) {
    tile_store(map, staging, 0, first_row + 64 * group, 0, head);
    bulk_commit_group();
  }
}

/// Computes all tasks of a warpgroup.
__device__ __forceinline__ void compute_tasks(const Tensors& tensors, const Maps& maps, u32 memory, int heads, int length,
                                              float scale) {
  const ThreadCoord at;
  const u32 group = at.warp_m / 4;
  const Turn turn{group};
  Ring keys(memory, 0), values(memory, 1);
  const Exchange query = exchange_of(memory, group);
  u32 query_phase = 0;
  if (IN_TURN && group + 1 == GROUPS) turn.pass();
  for_each_piece(heads, length, [&](const Piece& piece) {
    Query q{memory + group * ROWS_BYTES};
    Rows rows;
    mbarrier_wait(query.full, query_phase);
    query_phase ^= 1;
    q.prepare(at);
    process_piece(keys, values, query, q, rows, piece, length, scale, turn, at);
    const size_t offset = static_cast<size_t>(piece.head) * length * D;
    // A single step uses its own maximum as the reference, so it cannot overflow.
    if constexpr (RESCALE == RESCALE_RESTART && TOTAL_STEPS != 1) {
      if (__any_sync(~0u, overflowed(rows)))
        process_rows_again({tensors.q + offset, tensors.k + offset, tensors.v + offset, nullptr}, rows, piece, length, scale, at);
    }
    if constexpr (DIVIDED) {
      if (piece.pieces > 1 && !merge_pieces(rows, piece, maps.partials, memory, at)) return;
    }
    copy_output(maps.o, rows, memory + (GROUPS + group) * ROWS_BYTES, piece.first_row, piece.head, at);
  });
  if (at.thread % 128 == 0) bulk_wait_read<0>();  // shared memory must outlive the copies
  if (IN_TURN && group == 0) turn.wait();
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_bulk(const Half* q, const Half* k, const Half* v, const __grid_constant__ TensorMap q_map,
               const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
               const __grid_constant__ TensorMap o_map, float* partials, int heads, int seq_len, float scale_log2e) {
  extern __shared__ __align__(1024) unsigned char shared[];  // wgmma's swizzle repeats after 1024 bytes
  const Maps maps{q_map, k_map, v_map, o_map, partials};
  const u32 memory = shared_address(shared);
  const int length = SEQ_LEN != 0 ? SEQ_LEN : seq_len;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < GROUPS + 2 * STAGES; ++i) {
      const Exchange exchange = exchange_of(memory, i);
      mbarrier_init(exchange.full, 1);
      mbarrier_init(exchange.empty(), i < GROUPS ? 4 : ROW_WARPS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMER_THREADS) {
    if constexpr (LOAD_REGISTERS < COMPUTE_REGISTERS) registers_decrease<LOAD_REGISTERS>();
    if (threadIdx.x == CONSUMER_THREADS) load_tasks(maps, memory, heads, length);
  } else {
    if constexpr (LOAD_REGISTERS < COMPUTE_REGISTERS) registers_increase<COMPUTE_REGISTERS>();
    compute_tasks({q, k, v, nullptr}, maps, memory, heads, length, scale_log2e);
  }
}
