// The choices of one candidate, derived sizes, and rules.
// Plain constexpr C++: the kernel asserts the rules for its macros. A test evaluates the same rules for the whole space
// with a host compiler and compares them with the constraints of kernel.py, which have the same names.
#pragma once

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

struct Choice {
  // problem
  int head_dim, causal, seq_len, biased;  // seq_len 0: known only at run time
  // mutations
  int dequantise, mma, zero_point, kv_load, smem_layout, fragment_load, loop_order;
  // parameters
  int row_pad, block_m, warps_m, key_splits, block_n, stages, min_blocks;
};

HOST_DEVICE constexpr int at_most(int a, int b) { return a < b ? a : b; }
HOST_DEVICE constexpr int at_least(int a, int b) { return a > b ? a : b; }
HOST_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

HOST_DEVICE constexpr bool on_load(Choice c) { return c.dequantise == DEQUANTISE_ON_LOAD; }
HOST_DEVICE constexpr bool by_words(Choice c) { return c.fragment_load == FRAGMENT_LOAD_WORDS; }

// ---- sizes

HOST_DEVICE constexpr int threads(Choice c) { return 32 * c.warps_m * c.key_splits; }
/// Tiles of 16 query rows per warp.
HOST_DEVICE constexpr int row_tiles(Choice c) { return c.block_m / (16 * c.warps_m); }
/// Keys of all splits in one step.
HOST_DEVICE constexpr int step_keys(Choice c) { return c.block_n * c.key_splits; }
/// Steps over all keys (0: known only at run time).
HOST_DEVICE constexpr int total_steps(Choice c) { return ceil_div(c.seq_len, step_keys(c)); }
/// Whether each step has its own buffer, so that no buffer is filled twice.
HOST_DEVICE constexpr bool resident(Choice c) { return c.seq_len > 0 && c.stages >= total_steps(c); }
/// Buffers for K in each split; the number for V is the same.
HOST_DEVICE constexpr int buffers(Choice c) { return resident(c) ? total_steps(c) : c.stages; }
/// Load groups in flight: the free buffers of a ring. If no buffer is filled twice, there is one group more than steps.
HOST_DEVICE constexpr int groups_ahead(Choice c) {
  return resident(c) ? at_most(c.stages, total_steps(c) + 1) : c.stages - 1;
}
/// Bytes of one element in shared memory.
HOST_DEVICE constexpr int element_bytes(Choice c) { return on_load(c) ? 2 : 1; }
/// Stride of rows in shared memory, in bytes.
HOST_DEVICE constexpr int row_bytes(Choice c) {
  return element_bytes(c) * c.head_dim + (c.smem_layout == SMEM_LAYOUT_PADDED ? c.row_pad : 0);
}
/// Consecutive output columns of a thread; see OutputColumns in fragments.cuh.
HOST_DEVICE constexpr int columns_of_thread(Choice c) { return (on_load(c) ? 2 : 4) * (by_words(c) ? 2 : 1); }
/// Row stride of a partial output in bytes; the padding spreads a warp's stores over the banks.
HOST_DEVICE constexpr int partial_row_bytes(Choice c) { return 2 * c.head_dim + 8 * columns_of_thread(c); }
/// Bytes of one buffer of K or V of one split.
HOST_DEVICE constexpr int tile_bytes(Choice c) { return c.block_n * row_bytes(c); }
/// Bytes of a split's memory: the buffers for K and V, later the partial output.
HOST_DEVICE constexpr int split_bytes(Choice c) {
  return at_least(2 * buffers(c) * tile_bytes(c), c.key_splits > 1 ? c.block_m * partial_row_bytes(c) : 0);
}
HOST_DEVICE constexpr int query_bytes(Choice c) { return c.block_m * row_bytes(c); }
/// Bytes of the references and row sums that the splits exchange.
HOST_DEVICE constexpr int exchange_bytes(Choice c) { return c.key_splits > 1 ? 8 * c.key_splits * c.block_m : 0; }
/// Dynamic shared memory of a block: Q, the memory of each split, the exchange.
HOST_DEVICE constexpr int shared_bytes(Choice c) {
  return query_bytes(c) + c.key_splits * split_bytes(c) + exchange_bytes(c);
}

/// Registers per thread: output, scores, Q, references and sums; operands of K and V, addresses.
HOST_DEVICE constexpr int least_registers(Choice c) {
  const int query = c.head_dim / (c.mma == MMA_FP16 ? 4 : 8);
  return row_tiles(c) * (c.head_dim / 2 + c.block_n / 2 + query + 6) + 40;
}
HOST_DEVICE constexpr int register_limit(Choice c) { return at_most(255, 65536 / (threads(c) * c.min_blocks) / 8 * 8); }

// ---- rules (see kernel.cu and kernel.py for the reasons)

HOST_DEVICE constexpr bool rows_split_over_warps(Choice c) { return c.block_m % (16 * c.warps_m) == 0; }
HOST_DEVICE constexpr bool threads_within_block(Choice c) { return threads(c) <= 1024; }
HOST_DEVICE constexpr bool async_copies_raw_bytes(Choice c) {
  return c.kv_load != KV_LOAD_CP_ASYNC || !on_load(c);
}
HOST_DEVICE constexpr bool mma_takes_the_dtype(Choice c) {
  return c.mma == MMA_FP16 || (c.mma == MMA_INT8) == (c.biased == 1);
}
HOST_DEVICE constexpr bool registers_hold_fragments(Choice c) { return least_registers(c) <= register_limit(c); }
