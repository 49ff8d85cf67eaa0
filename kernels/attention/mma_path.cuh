// Attention of one block of query rows on tensor cores through mma.sync (compute capability 8.0 and above).
//
// The block's warps form WARPS_M x KEY_SPLITS: along the query rows, and along the keys. Each split streams its own
// keys through its own shared memory and meets on its own named barrier; partial outputs are merged at the end. Scores
// never leave registers: the accumulators of Q K^T become, after the exponential, the A fragments of P V.
#pragma once

constexpr int COMPUTE_THREADS = compute_threads(CHOICE);
constexpr int SPLIT_THREADS = 32 * WARPS_M;
constexpr int MT = row_tiles(CHOICE);     // 16-row tiles of a warp: each K or V fragment feeds all of them
constexpr int TILE_BYTES = tile_bytes(CHOICE);
constexpr int SPLIT_BYTES = split_bytes(CHOICE);
constexpr int PARTIAL_ROW_BYTES = partial_row_bytes(CHOICE);
constexpr int BUFFERS = buffers(CHOICE);
constexpr int STEP_KEYS = step_keys(CHOICE);
constexpr int AHEAD = groups_ahead(CHOICE);
constexpr int KEY_CHUNKS = BLOCK_N / 16;  // 16 keys: the depth of one P V mma
constexpr bool KEY_TAIL = SEQ_LEN == 0 || SEQ_LEN % STEP_KEYS != 0;
constexpr bool ROW_TAIL = SEQ_LEN == 0 || SEQ_LEN % BLOCK_M != 0;
constexpr bool EDGES = CAUSAL || KEY_TAIL;  // some scores must be hidden
constexpr bool SPECIALISED = specialised(CHOICE);
constexpr bool IDLE_SPLITS = EDGES && KEY_SPLITS > 1 && !SPECIALISED;
constexpr int THREADS = threads(CHOICE);
constexpr int LOAD_THREADS = SPECIALISED ? 32 * LOAD_WARPS : 32;

// A power of two, so that its product with the scale is exact and a row that is masked throughout gives 2^0, not NaN.
constexpr float MASKED_SCORE = QK_ACC == QK_ACC_FP32 ? -1.2676506e30f : -32768.f;
// How far (in powers of two) a score may exceed its row's reference before the lazy rescale acts; P stays below 2^8.
constexpr float LAZY_THRESHOLD = 8.f;
constexpr float LARGEST_HALF = 65504.f;

using ScoreFragment = Accumulator<QK_ACC == QK_ACC_FP32 ? 32 : 16>::type;
using OutputFragment = Accumulator<PV_ACC == PV_ACC_FP32 ? 32 : 16>::type;
using Scores = ScoreFragment[MT][BLOCK_N / 8];
using Probabilities = u32[MT][4];  // A fragments of one chunk of 16 keys

/// Which rows, keys and fragment elements belong to this thread.
struct Place {
  u32 thread, lane, warp_m, split;  // unsigned: divisions by powers of two are shifts
  __device__ __forceinline__ Place() {
    thread = threadIdx.x;
    lane = thread % 32;
    warp_m = thread / 32 % WARPS_M;
    split = thread / SPLIT_THREADS;
  }
  __device__ __forceinline__ int row(int m, int half) const {  // row of accumulator elements 2 * half, 2 * half + 1
    return (warp_m * MT + m) * 16 + half * 8 + lane / 4;
  }
  __device__ __forceinline__ int column_pair() const { return lane % 4; }
};

// Named barriers: 0 is __syncthreads(). Without loading warps, each split has its own. With them, each buffer of the
// ring has one that says full and one that says read; both count every warp of the block.
constexpr int FIRST_SPLIT_BARRIER = 1;
constexpr int FIRST_FULL_BARRIER = 1;
constexpr int FIRST_READ_BARRIER = FIRST_FULL_BARRIER + 4;
constexpr int COMPUTE_BARRIER = 15;

__device__ __forceinline__ void sync_compute_warps() {
  if constexpr (SPECIALISED) sync_named<COMPUTE_THREADS>(COMPUTE_BARRIER);
  else __syncthreads();
}
/// Meets the warps that read the same keys.
__device__ __forceinline__ void sync_split(int split) {
  if constexpr (KEY_SPLITS == 1 || SPECIALISED) sync_compute_warps();
  else if constexpr (WARPS_M == 1) __syncwarp();
  else sync_named<SPLIT_THREADS>(FIRST_SPLIT_BARRIER + split);
}

// ---- K and V on their way into shared memory

/// The keys of one split, step by step. Load group g is {V of step g - 1, K of step g}: what the loop needs next when
/// the scores of step g are computed while the output of step g - 1 is accumulated.
struct KeyStream {
  const Half *k, *v;
  u32 memory;
  u32 thread, split;
  int steps, length, shift;

  __device__ __forceinline__ int slot(int step) const {
    return resident(CHOICE) ? step : static_cast<int>(static_cast<u32>(step) % BUFFERS);
  }
  __device__ __forceinline__ u32 k_tile(int step) const { return memory + slot(step) * TILE_BYTES; }
  __device__ __forceinline__ u32 v_tile(int step) const { return memory + (BUFFERS + slot(step)) * TILE_BYTES; }
  /// First key of a step; rotated walks start elsewhere in each row block, which spreads their reads over L2.
  __device__ __forceinline__ int first_key(int step) const {
    int walked = step;
    if constexpr (KEY_WALK == KEY_WALK_ROTATED) walked = step + shift < steps ? step + shift : step + shift - steps;
    return walked * STEP_KEYS + static_cast<int>(split) * BLOCK_N;
  }
  template <int COPIERS>
  __device__ __forceinline__ void load(u32 tile, const Half* tensor, int first) const {
    load_tile<BLOCK_N, COPIERS, KEY_TAIL>(tile, tensor + first * D, length - first, thread);
  }
  template <int COPIERS>
  __device__ __forceinline__ void load_group(int group) const {
    if (group >= 1 && group <= steps) load<COPIERS>(v_tile(group - 1), v, first_key(group - 1));
    if (group < steps) load<COPIERS>(k_tile(group), k, first_key(group));
  }

  /// Starts the first groups; what was copied before this call arrives with the first of them.
  __device__ __forceinline__ void start() const {
    if constexpr (SPECIALISED) {
      commit_copies();
    } else {
#pragma unroll
      for (int group = 0; group < at_least(AHEAD, 1); ++group) {
        load_group<SPLIT_THREADS>(group);
        commit_copies();
      }
    }
  }
  /// Waits for K of step 0 and for whatever every compute warp copied before start().
  __device__ __forceinline__ void arrive_first() const {
    wait_copies<SPECIALISED ? 0 : at_least(AHEAD, 1) - 1>();
    sync_compute_warps();
    if constexpr (SPECIALISED) sync_named<THREADS>(FIRST_FULL_BARRIER);
  }
  /// After the scores of `step`: starts the group that this step's reads have made room for.
  __device__ __forceinline__ void advance(int step) const {
    if constexpr (!SPECIALISED) {
      if constexpr (AHEAD == 0) sync_split(split);  // the only buffer must have been read by every warp
      load_group<SPLIT_THREADS>(step + at_least(AHEAD, 1));
      commit_copies();  // past the end too: the count of pending groups stays a constant
    }
  }
  /// Waits until V of `step` and K of the next one are there for all warps of the split.
  __device__ __forceinline__ void arrive(int step) const {
    if constexpr (SPECIALISED) {
      sync_named<THREADS>(FIRST_FULL_BARRIER + (step + 1) % STAGES);
    } else {
      wait_copies<at_least(AHEAD - 1, 0)>();
      sync_split(split);
    }
  }
  /// Splits with fewer steps than the longest meet their barrier as often: race checkers count barriers by warp.
  __device__ __forceinline__ void sit_out(int longest) const {
    if constexpr (IDLE_SPLITS) {
      for (int step = steps; step < longest; ++step) {
        if constexpr (AHEAD == 0) sync_split(split);
        sync_split(split);
      }
    }
  }
  /// Tells the loading warps, where they still wait for it, that this warp has read load group `group`: K of that step
  /// and V of the step before.
  __device__ __forceinline__ void release(int group) const {
    if constexpr (SPECIALISED) {
      if (group + STAGES <= steps) arrive_named<THREADS>(FIRST_READ_BARRIER + group % STAGES);
    }
  }
};

/// The loading warps: fill the ring of every split, a group as soon as the one whose buffers it takes has been read.
/// Readers that take scores and output of a step together release a group only when the next one has come.
__device__ __forceinline__ void serve(const Half* k, const Half* v, u32 memory, int steps, int length, int shift) {
  constexpr int IN_FLIGHT = LOOP_ORDER == LOOP_ORDER_PLAIN ? STAGES - 2 : STAGES - 1;
  const u32 thread = threadIdx.x - COMPUTE_THREADS;
  for (int group = 0; group <= steps + IN_FLIGHT; ++group) {
    if (group <= steps) {
      if (group >= STAGES) sync_named<THREADS>(FIRST_READ_BARRIER + group % STAGES);
#pragma unroll 1
      for (u32 split = 0; split < KEY_SPLITS; ++split) {
        const KeyStream keys{k, v, memory + split * SPLIT_BYTES, thread, split, steps, length, shift};
        keys.load_group<LOAD_THREADS>(group);
      }
    }
    commit_copies();
    if (group >= IN_FLIGHT) {
      wait_copies<IN_FLIGHT>();
      arrive_named<THREADS>(FIRST_FULL_BARRIER + (group - IN_FLIGHT) % STAGES);
    }
  }
}

// ---- the steps of the algorithm, on one warp's fragments

/// Q of this warp: fragments in registers, or read again for every use.
struct Query {
  u32 address;
  u32 fragment[Q_LOCATION == Q_LOCATION_REGISTERS ? MT : 1][D / 16][4];

  __device__ __forceinline__ void read(u32 (&a)[4], int m, int k, const Place& at) const {
    load_matrices(a, address + chunk_offset((at.warp_m * MT + m) * 16 + at.lane % 16, 2 * k + at.lane / 16));
  }
  __device__ __forceinline__ void prepare(const Place& at) {
    if constexpr (Q_LOCATION == Q_LOCATION_REGISTERS) {
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int k = 0; k < D / 16; ++k) read(fragment[m][k], m, k, at);
    }
  }
};

/// Running softmax of this warp's rows: output, row sums, and the reference that exponents are taken against (log2).
struct Rows {
  OutputFragment output[MT][D / 8];
  Fragment32 sum[MT];  // elements 0 and 2 count
  float reference[MT][2];

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      clear(sum[m]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) clear(output[m][n]);
    }
  }
  /// Whether some P may have been too large for fp16: no summand is above its sum. Sums that are no numbers count too.
  __device__ __forceinline__ bool overflowed() const {
    bool beyond = false;
#pragma unroll
    for (int m = 0; m < MT; ++m) beyond |= !(sum[m].v[0] <= LARGEST_HALF) || !(sum[m].v[2] <= LARGEST_HALF);
    return beyond;
  }
  /// A split without keys: finite, and of weight 0 in the merge.
  __device__ __forceinline__ void stand_aside() {
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      sum[m].v[0] = sum[m].v[2] = 1.f;
      reference[m][0] = reference[m][1] = MASKED_SCORE;
    }
  }
};

/// Scores of 16 keys: s[.][2n, 2n + 1] = Q K^T.
__device__ __forceinline__ void multiply_qk(Scores& s, const Query& q, u32 k_tile, int n, const Place& at) {
  const int row = at.lane / 16 * 8 + at.lane % 8, chunk = at.lane / 8 % 2;
#pragma unroll
  for (int m = 0; m < MT; ++m) clear(s[m][2 * n]), clear(s[m][2 * n + 1]);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    u32 b[4];
    load_matrices(b, k_tile + n * 16 * ROW_BYTES + chunk_offset(row, 2 * k + chunk));
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      if constexpr (Q_LOCATION == Q_LOCATION_REGISTERS) {
        mma(s[m][2 * n], q.fragment[m][k], b[0], b[1]);
        mma(s[m][2 * n + 1], q.fragment[m][k], b[2], b[3]);
      } else {
        u32 a[4];
        q.read(a, m, k, at);
        mma(s[m][2 * n], a, b[0], b[1]);
        mma(s[m][2 * n + 1], a, b[2], b[3]);
      }
    }
  }
}

/// output += P V over 16 keys; the row sums come from the same tensor cores where they multiply P by ones.
__device__ __forceinline__ void multiply_pv(Rows& rows, const Probabilities& p, u32 v_tile, int n, const Place& at) {
  if constexpr (ROW_SUM == ROW_SUM_ONES_MMA) {
#pragma unroll
    for (int m = 0; m < MT; ++m) mma(rows.sum[m], p[m], ONES, ONES);
  }
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    u32 b[4];
    load_matrices_transposed(b, v_tile + n * 16 * ROW_BYTES + chunk_offset(at.lane % 16, 2 * d + at.lane / 16));
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      mma(rows.output[m][2 * d], p[m], b[0], b[1]);
      mma(rows.output[m][2 * d + 1], p[m], b[2], b[3]);
    }
  }
}

/// P of 16 keys: 2^(score * scale - reference), as A fragments.
__device__ __forceinline__ void exponentiate(Probabilities& p, const Scores& s, int n, Rows& rows, float scale) {
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    const float ref0 = rows.reference[m][0], ref1 = rows.reference[m][1];
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const ScoreFragment& f = s[m][2 * n + x];
      if constexpr (QK_ACC == QK_ACC_FP16) {
        const Pair c = pack(scale, scale);
        p[m][2 * x] = exp2_pair(fma_pair(f.v[0], c, pack(-ref0, -ref0)));
        p[m][2 * x + 1] = exp2_pair(fma_pair(f.v[1], c, pack(-ref1, -ref1)));
      } else {
        const float e0 = fmaf(f.v[0], scale, -ref0), e1 = fmaf(f.v[1], scale, -ref0);
        const float e2 = fmaf(f.v[2], scale, -ref1), e3 = fmaf(f.v[3], scale, -ref1);
        if constexpr (EXP == EXP_F16X2) {
          p[m][2 * x] = exp2_pair(pack(e0, e1));
          p[m][2 * x + 1] = exp2_pair(pack(e2, e3));
        } else {
          const float p0 = exp2_fast(e0), p1 = exp2_fast(e1), p2 = exp2_fast(e2), p3 = exp2_fast(e3);
          p[m][2 * x] = pack(p0, p1);
          p[m][2 * x + 1] = pack(p2, p3);
          if constexpr (ROW_SUM == ROW_SUM_ADD) rows.sum[m].v[0] += p0 + p1, rows.sum[m].v[2] += p2 + p3;
        }
      }
    }
  }
}

__device__ __forceinline__ void mask(Fragment32& f, const bool (&hidden)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) f.v[i] = hidden[i] ? MASKED_SCORE : f.v[i];
}
__device__ __forceinline__ void mask(Fragment16& f, const bool (&hidden)[4]) {
  constexpr Pair LOW = 0x0000F800u, HIGH = 0xF8000000u;  // -32768 in the lower and the upper half
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (hidden[2 * i]) f.v[i] = (f.v[i] & 0xFFFF0000u) | LOW;
    if (hidden[2 * i + 1]) f.v[i] = (f.v[i] & 0x0000FFFFu) | HIGH;
  }
}
/// Hides keys past the end and, when causal, keys after the row; only tiles on such an edge pay for it.
__device__ __forceinline__ void mask_edges(Scores& s, int first_key, int first_row, int length, const Place& at) {
  if constexpr (CAUSAL || KEY_TAIL) {
    const bool cut = KEY_TAIL && first_key + BLOCK_N > length;
    const bool diagonal = CAUSAL && first_key + BLOCK_N - 1 > first_row + at.warp_m * MT * 16;
    if (cut || diagonal) {
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; ++n) {
          bool hidden[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = first_key + n * 8 + 2 * at.column_pair() + i % 2;
            hidden[i] = (KEY_TAIL && key >= length) || (CAUSAL && key > first_row + at.row(m, i / 2));
          }
          mask(s[m][n], hidden);
        }
    }
  }
}

__device__ __forceinline__ void own_max(float (&top)[2], const Fragment32 (&s)[BLOCK_N / 8]) {
  top[0] = fmaxf(s[0].v[0], s[0].v[1]);
  top[1] = fmaxf(s[0].v[2], s[0].v[3]);
#pragma unroll
  for (int n = 1; n < BLOCK_N / 8; ++n) {
    top[0] = fmaxf(top[0], fmaxf(s[n].v[0], s[n].v[1]));
    top[1] = fmaxf(top[1], fmaxf(s[n].v[2], s[n].v[3]));
  }
}
__device__ __forceinline__ void own_max(float (&top)[2], const Fragment16 (&s)[BLOCK_N / 8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Pair best = s[0].v[half];
#pragma unroll
    for (int n = 1; n < BLOCK_N / 8; ++n) best = max_pair(best, s[n].v[half]);
    top[half] = fmaxf(low_half(best), high_half(best));
  }
}

__device__ __forceinline__ void scale_row(Fragment32& f, int half, float factor) {
  f.v[2 * half] *= factor;
  f.v[2 * half + 1] *= factor;
}
__device__ __forceinline__ void scale_row(Fragment16& f, int half, float factor) {
  f.v[half] = mul_pair(f.v[half], pack(factor, factor));
}

/// Sets the references to the row maxima of the first scores.
__device__ __forceinline__ void begin_reference(Rows& rows, const Scores& s, float scale) {
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    float top[2];
    own_max(top, s[m]);
    rows.reference[m][0] = quad_max(top[0]) * scale;
    rows.reference[m][1] = quad_max(top[1]) * scale;
  }
}

/// Raises the references to the new scores as RULE (a value of RESCALE) says, and scales what was summed so far.
template <int RULE>
__device__ __forceinline__ void update_reference(Rows& rows, const Scores& s, float scale) {
  if constexpr (RULE == RESCALE_RESTART) return;
  float top[MT][2];
  bool outgrown = RULE == RESCALE_ALWAYS;
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    own_max(top[m], s[m]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The lazy test needs no shuffle: a thread votes on its own scores, and the vote covers the row.
      if constexpr (RULE != RESCALE_LAZY) top[m][half] = quad_max(top[m][half]);
      const float growth = fmaf(top[m][half], scale, -rows.reference[m][half]);
      outgrown |= growth > (RULE == RESCALE_LAZY ? LAZY_THRESHOLD : 0.f);
    }
  }
  if constexpr (RULE != RESCALE_ALWAYS) {
    if (!__any_sync(~0u, outgrown)) return;
  }
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (RULE == RESCALE_LAZY) top[m][half] = quad_max(top[m][half]);
      const float raised = fmaxf(rows.reference[m][half], top[m][half] * scale);
      const float factor = exp2_fast(rows.reference[m][half] - raised);
      rows.reference[m][half] = raised;
      scale_row(rows.sum[m], half, factor);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) scale_row(rows.output[m][n], half, factor);
    }
}

// ---- from fragments to global memory

__device__ __forceinline__ float element(const Fragment32& f, int i) { return f.v[i]; }
__device__ __forceinline__ float element(const Fragment16& f, int i) {
  return i % 2 ? high_half(f.v[i / 2]) : low_half(f.v[i / 2]);
}
__device__ __forceinline__ Pair scaled_pair(const OutputFragment& f, int half, float factor) {
  return pack(element(f, 2 * half) * factor, element(f, 2 * half + 1) * factor);
}

/// No split of the keys: each warp owns its rows, and turns its fragments into 16-byte rows in Q's memory.
__device__ __forceinline__ void store_output(Half* o, const Rows& rows, u32 staging, int rows_left, const Place& at) {
  if constexpr (OUTPUT == OUTPUT_STAGED) __syncwarp();  // this warp's rows of Q are no longer read
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row(m, half);
      const float factor = reciprocal(rows.sum[m].v[2 * half]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const Pair pair = scaled_pair(rows.output[m][n], half, factor);
        if constexpr (OUTPUT == OUTPUT_STAGED) {
          store_shared_pair(staging + chunk_offset(row, n) + 4 * at.column_pair(), pair);
        } else if (!ROW_TAIL || row < rows_left) {
          store_global_pair(o + row * D + n * 8 + 2 * at.column_pair(), pair);
        }
      }
    }
  if constexpr (OUTPUT == OUTPUT_STAGED) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < MT * 16 * (D / 8) / 32; ++i) {
      const int index = i * 32 + at.lane, row = at.warp_m * MT * 16 + index / (D / 8), chunk = index % (D / 8);
      if (!ROW_TAIL || row < rows_left)
        store_global_chunk(o + row * D + chunk * 8, load_shared_chunk(staging + chunk_offset(row, chunk)));
    }
  }
}


/// Leaves this warp's partial output in its split's memory, and its references and row sums in the exchange.
__device__ __forceinline__ void publish_partial(const Rows& rows, u32 partial, u32 exchange, const Place& at) {
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row(m, half);
      const float sum = rows.sum[m].v[2 * half];
      if (at.column_pair() == 0)
        store_shared_floats(exchange + (at.split * BLOCK_M + row) * 8, rows.reference[m][half], sum);
      const float factor = reciprocal(sum);  // normalised, a partial output fits fp16 as well as the inputs do
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const OutputFragment& f = rows.output[m][n];
        const int column = n * 8 + 2 * at.column_pair();
        const u32 to = partial + row * PARTIAL_ROW_BYTES + column * (MERGE == MERGE_FP16 ? 2 : 4);
        if constexpr (MERGE == MERGE_FP16) store_shared_pair(to, scaled_pair(f, half, factor));
        else store_shared_floats(to, element(f, 2 * half), element(f, 2 * half + 1));
      }
    }
}

/// Adds the splits' partial outputs, each weighted by its share of the row's sum; 16 bytes of shared memory a thread.
__device__ __forceinline__ void merge_partials(Half* o, u32 memory, u32 exchange, int rows_left, const Place& at) {
  constexpr int COLUMNS = MERGE == MERGE_FP16 ? 8 : 4, PER_ROW = D / COLUMNS, TASKS = BLOCK_M * PER_ROW;
#pragma unroll
  for (int i = 0; i < ceil_div(TASKS, COMPUTE_THREADS); ++i) {
    const int task = i * COMPUTE_THREADS + at.thread, row = task / PER_ROW, part = task % PER_ROW;
    if (TASKS % COMPUTE_THREADS != 0 && task >= TASKS) break;
    if (ROW_TAIL && row >= rows_left) continue;
    float reference[KEY_SPLITS], weight[KEY_SPLITS], top = 0.f, total = 0.f, sum[COLUMNS] = {};
#pragma unroll
    for (int s = 0; s < KEY_SPLITS; ++s) {
      load_shared_floats(exchange + (s * BLOCK_M + row) * 8, reference[s], weight[s]);
      top = s == 0 ? reference[s] : fmaxf(top, reference[s]);
    }
#pragma unroll
    for (int s = 0; s < KEY_SPLITS; ++s) {
      const float scale = exp2_fast(reference[s] - top);
      total += scale * weight[s];
      weight[s] = MERGE == MERGE_FP16 ? scale * weight[s] : scale;
      const Chunk c = load_shared_chunk(memory + s * SPLIT_BYTES + row * PARTIAL_ROW_BYTES + part * 16);
#pragma unroll
      for (int x = 0; x < COLUMNS; ++x) {
        float value;
        if constexpr (MERGE == MERGE_FP16) value = x % 2 ? high_half(c.v[x / 2]) : low_half(c.v[x / 2]);
        else value = __uint_as_float(c.v[x]);
        sum[x] = fmaf(weight[s], value, sum[x]);
      }
    }
    const float factor = reciprocal(total);
    Chunk result;
#pragma unroll
    for (int x = 0; x < COLUMNS / 2; ++x) result.v[x] = pack(sum[2 * x] * factor, sum[2 * x + 1] * factor);
    if constexpr (MERGE == MERGE_FP16) store_global_chunk(o + row * D + part * 8, result);
    else store_global_pairs(o + row * D + part * 4, result.v[0], result.v[1]);
  }
}

// ---- the algorithm

/// One split's keys: scores, softmax against the running reference, output.
template <int RULE>
__device__ __forceinline__ void consume(const KeyStream& keys, const Query& q, Rows& rows, int first_row, float scale,
                                        const Place& at) {
  constexpr int UNROLL_STEPS = RULE == RESCALE ? UNROLL : 1;  // #pragma unroll reads constants, not macros
  Scores s;
  if constexpr (LOOP_ORDER == LOOP_ORDER_PLAIN) {
#pragma unroll UNROLL_STEPS
    for (int step = 0; step < keys.steps; ++step) {
#pragma unroll
      for (int n = 0; n < KEY_CHUNKS; ++n) multiply_qk(s, q, keys.k_tile(step), n, at);
      keys.advance(step);
      mask_edges(s, keys.first_key(step), first_row, keys.length, at);
      if (step == 0) begin_reference(rows, s, scale);
      else update_reference<RULE>(rows, s, scale);
      keys.arrive(step);
#pragma unroll
      for (int n = 0; n < KEY_CHUNKS; ++n) {
        Probabilities p;
        exponentiate(p, s, n, rows, scale);
        multiply_pv(rows, p, keys.v_tile(step), n, at);
      }
      keys.release(step);
    }
  } else {
#pragma unroll
    for (int n = 0; n < KEY_CHUNKS; ++n) multiply_qk(s, q, keys.k_tile(0), n, at);
    keys.release(0);
    keys.advance(0);
    mask_edges(s, keys.first_key(0), first_row, keys.length, at);
    begin_reference(rows, s, scale);
#pragma unroll UNROLL_STEPS
    for (int step = 0; step + 1 < keys.steps; ++step) {
      keys.arrive(step);
#pragma unroll
      for (int n = 0; n < KEY_CHUNKS; ++n) {  // one basic block: exponentials run beside both products
        Probabilities p;
        exponentiate(p, s, n, rows, scale);
        multiply_qk(s, q, keys.k_tile(step + 1), n, at);
        multiply_pv(rows, p, keys.v_tile(step), n, at);
      }
      keys.release(step + 1);
      keys.advance(step + 1);
      mask_edges(s, keys.first_key(step + 1), first_row, keys.length, at);
      update_reference<RULE>(rows, s, scale);
    }
    keys.arrive(keys.steps - 1);
#pragma unroll
    for (int n = 0; n < KEY_CHUNKS; ++n) {
      Probabilities p;
      exponentiate(p, s, n, rows, scale);
      multiply_pv(rows, p, keys.v_tile(keys.steps - 1), n, at);
    }
  }
  if constexpr (ROW_SUM == ROW_SUM_ADD) {
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      rows.sum[m].v[0] = quad_sum(rows.sum[m].v[0]);
      rows.sum[m].v[2] = quad_sum(rows.sum[m].v[2]);
    }
  }
}

/// Steps of a split: its share of the keys that the block's last row may see. Loading warps serve all splits alike.
__device__ __forceinline__ int steps_of(u32 split, int first_row, int length) {
  if constexpr (!EDGES) return SEQ_LEN / STEP_KEYS;
  if constexpr (SPECIALISED) split = 0;
  const int visible = CAUSAL ? min(length, first_row + BLOCK_M) : length;
  return ceil_div(max(visible - static_cast<int>(split) * BLOCK_N, 0), STEP_KEYS);
}

/// All keys of a split from the first one on, loads included.
template <int RULE>
__device__ __forceinline__ void walk(const KeyStream& keys, Query& q, Rows& rows, int first_row, int longest, float scale,
                                     const Place& at) {
  keys.start();
  keys.arrive_first();
  rows.reset();
  if (!IDLE_SPLITS || keys.steps > 0) {
    q.prepare(at);
    consume<RULE>(keys, q, rows, first_row, scale, at);
  } else {
    rows.stand_aside();
  }
  keys.sit_out(longest);
}

/// Attention of rows [m_block * BLOCK_M, ...) of one head.
__device__ __forceinline__ void attend(const Tensors& head, unsigned char* shared, int m_block, int length,
                                       float scale) {
  const Place at;
  const u32 memory = shared_address(shared);
  const int first_row = m_block * BLOCK_M, rows_left = length - first_row;
  const u32 splits = memory + query_bytes(CHOICE), exchange = splits + KEY_SPLITS * SPLIT_BYTES;
  const int steps = steps_of(at.split, first_row, length);
  const int shift = KEY_WALK == KEY_WALK_ROTATED && steps > 0 ? m_block % steps : 0;
  if constexpr (SPECIALISED) {
    if (at.thread >= COMPUTE_THREADS) {
      serve(head.k, head.v, splits, steps, length, shift);
      return;
    }
  }
  const KeyStream keys{head.k, head.v, splits + at.split * SPLIT_BYTES, at.thread % SPLIT_THREADS, at.split, steps,
                       length, shift};

  load_tile<BLOCK_M, COMPUTE_THREADS, ROW_TAIL>(memory, head.q + first_row * D, rows_left, at.thread);
  const int longest = steps_of(0, first_row, length);
  Query q{memory};
  Rows rows;
  walk<RESCALE>(keys, q, rows, first_row, longest, scale, at);
  if constexpr (RESCALE == RESCALE_RESTART) {
    if (__syncthreads_or(rows.overflowed())) walk<RESCALE_LAZY>(keys, q, rows, first_row, longest, scale, at);
  }

  Half* o = head.o + first_row * D;
  if constexpr (KEY_SPLITS == 1) {
    store_output(o, rows, memory, rows_left, at);
  } else {
    sync_split(at.split);  // this split's keys are no longer read
    publish_partial(rows, keys.memory, exchange, at);
    sync_compute_warps();
    merge_partials(o, splits, exchange, rows_left, at);
  }
}
