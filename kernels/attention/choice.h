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
  int head_dim, causal, seq_len, bf16;  // seq_len 0: known only at run time; bf16 0: fp16
  // mutations
  int tensor_cores, kv_load, kv_buffers, smem_layout, q_location, qk_acc, pv_acc, exp, row_sum, rescale, loop_order;
  int merge, output, key_walk, warp_roles, schedule, score_buffer, qk_path;
  // parameters
  int block_m, warps_m, key_splits, block_n, stages, lookahead, min_blocks, load_warps;
};

HOST_DEVICE constexpr int at_most(int a, int b) { return a < b ? a : b; }
HOST_DEVICE constexpr int at_least(int a, int b) { return a > b ? a : b; }
HOST_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

HOST_DEVICE constexpr bool on_wgmma(Choice c) { return c.tensor_cores == TENSOR_CORES_WGMMA; }
/// Whether scores stay in registers, as accumulators of one product and operands of the other.
HOST_DEVICE constexpr bool in_registers(Choice c) { return c.tensor_cores == TENSOR_CORES_MMA_SYNC || on_wgmma(c); }
HOST_DEVICE constexpr bool resident(Choice c) { return c.kv_buffers == KV_BUFFERS_RESIDENT; }
HOST_DEVICE constexpr bool direct(Choice c) { return c.qk_path == QK_PATH_DIRECT; }
HOST_DEVICE constexpr bool specialised(Choice c) { return c.warp_roles == WARP_ROLES_LOADERS; }

// ---- sizes

/// Threads of the consumer warps, which compute, without producer warps.
HOST_DEVICE constexpr int consumer_threads(Choice c) {
  return 32 * c.warps_m * (in_registers(c) ? c.key_splits : 1);
}
HOST_DEVICE constexpr int threads(Choice c) {
  return consumer_threads(c) + (specialised(c) ? 32 * c.load_warps : 0);
}
/// Tiles of 16 query rows per warp.
HOST_DEVICE constexpr int row_tiles(Choice c) { return c.block_m / (16 * c.warps_m); }
/// Keys of all splits in one step.
HOST_DEVICE constexpr int step_keys(Choice c) { return c.block_n * c.key_splits; }
/// Steps over all keys (0: known only at run time).
HOST_DEVICE constexpr int total_steps(Choice c) { return ceil_div(c.seq_len, step_keys(c)); }
/// Buffers for K in each split; the number for V is the same.
HOST_DEVICE constexpr int buffers(Choice c) { return resident(c) ? total_steps(c) : c.stages; }
/// Load groups in flight: the free buffers of a ring. With resident K and V there are only total_steps + 1 groups.
HOST_DEVICE constexpr int groups_ahead(Choice c) {
  return resident(c) ? at_most(c.lookahead, total_steps(c) + 1) : c.stages - 1;
}
/// Bytes of one row of a tile in shared memory. 16 bytes of padding shift each row by four banks.
HOST_DEVICE constexpr int row_bytes(Choice c) {
  return 2 * c.head_dim + (c.smem_layout == SMEM_LAYOUT_PADDED ? 16 : 0);
}
/// Bytes of one row of a partial output in shared memory, with the same padding.
HOST_DEVICE constexpr int partial_row_bytes(Choice c) { return (c.head_dim + 8) * (c.merge == MERGE_FP16 ? 2 : 4); }
/// Bytes of one buffer of K or V of one split.
HOST_DEVICE constexpr int tile_bytes(Choice c) { return c.block_n * row_bytes(c); }
/// Bytes of a split's memory: the buffers for K and V, later the partial output.
HOST_DEVICE constexpr int split_bytes(Choice c) {
  return at_least(2 * buffers(c) * tile_bytes(c), c.key_splits > 1 ? c.block_m * partial_row_bytes(c) : 0);
}
HOST_DEVICE constexpr int query_bytes(Choice c) { return c.block_m * row_bytes(c); }
/// Bytes of the references and row sums that the splits exchange.
HOST_DEVICE constexpr int exchange_bytes(Choice c) { return c.key_splits > 1 ? 8 * c.key_splits * c.block_m : 0; }
/// Dynamic shared memory of a block with scores in registers: Q, the memory of each split, the exchange.
HOST_DEVICE constexpr int fragment_shared_bytes(Choice c) {
  return query_bytes(c) + c.key_splits * split_bytes(c) + exchange_bytes(c);
}

/// Path through shared memory: bytes of a row of scores and of a row of the running output, padded.
HOST_DEVICE constexpr int score_row_bytes(Choice c) {
  return c.block_n * (c.score_buffer == SCORE_BUFFER_FLOAT ? 4 : 2) + 16;
}
HOST_DEVICE constexpr int output_row_bytes(Choice c) { return 4 * c.head_dim + 16; }
/// Dynamic shared memory of a block on that path: Q, the ring, scores, output, a reference and a sum for each row.
HOST_DEVICE constexpr int tile_shared_bytes(Choice c) {
  return query_bytes(c) + 2 * c.stages * tile_bytes(c) +
         c.block_m * (score_row_bytes(c) + output_row_bytes(c) + 8);
}
HOST_DEVICE constexpr int shared_bytes(Choice c) { return in_registers(c) ? fragment_shared_bytes(c) : tile_shared_bytes(c); }

/// Registers per thread: output, scores, Q, K, references and sums, addresses. For wgmma also P, which the tensor cores
/// read while the next scores are computed, and 20 more; with fewer registers, the assembler serialises wgmma or fails.
HOST_DEVICE constexpr int least_registers(Choice c) {
  const int output = c.head_dim / 8 * (c.pv_acc == PV_ACC_FP32 ? 4 : 2);
  const int scores = c.block_n / 8 * (c.qk_acc == QK_ACC_FP32 ? 4 : 2);
  const int query = c.q_location == Q_LOCATION_REGISTERS ? c.head_dim / 4 : 0;
  const int keys = direct(c) ? c.block_n * c.head_dim / 64 : 0;
  const int probabilities = on_wgmma(c) ? c.block_n / 4 : 0;
  return row_tiles(c) * (output + scores + query + probabilities + 4) + keys + (on_wgmma(c) ? 28 : 8);
}
HOST_DEVICE constexpr int register_limit(Choice c) { return at_most(255, 65536 / (threads(c) * c.min_blocks) / 8 * 8); }

// ---- rules (see kernel.cu and kernel.py for the reasons)

HOST_DEVICE constexpr bool rows_split_over_warps(Choice c) {
  return !in_registers(c) || c.block_m % (16 * c.warps_m) == 0;
}
HOST_DEVICE constexpr bool threads_within_block(Choice c) { return threads(c) <= 1024; }
HOST_DEVICE constexpr bool resident_needs_static_length(Choice c) { return !resident(c) || c.seq_len > 0; }
HOST_DEVICE constexpr bool direct_takes_one_step(Choice c) {
  return !direct(c) || (total_steps(c) == 1 && c.q_location == Q_LOCATION_REGISTERS);
}
HOST_DEVICE constexpr bool qk_first_needs_lookahead(Choice c) {
  return !in_registers(c) || c.loop_order == LOOP_ORDER_PLAIN || resident(c) || c.stages > 1;
}
HOST_DEVICE constexpr bool loaders_need_a_ring(Choice c) {
  return !specialised(c) ||
         (!resident(c) && c.stages > (in_registers(c) && c.loop_order == LOOP_ORDER_PLAIN ? 2 : 1));
}
HOST_DEVICE constexpr bool restart_finds_its_keys(Choice c) {
  return !in_registers(c) || c.rescale != RESCALE_RESTART ||
         (!specialised(c) && c.key_walk == KEY_WALK_FORWARD && c.pv_acc == PV_ACC_FP32);
}
HOST_DEVICE constexpr bool bf16_sums(Choice c) {
  return !c.bf16 || (c.qk_acc == QK_ACC_FP32 && c.pv_acc == PV_ACC_FP32 && c.score_buffer == SCORE_BUFFER_FLOAT);
}
HOST_DEVICE constexpr bool bf16_exponents(Choice c) { return !c.bf16 || c.exp == EXP_FP32; }
HOST_DEVICE constexpr bool wmma_needs_whole_rows(Choice c) {
  return c.tensor_cores != TENSOR_CORES_WMMA || c.smem_layout != SMEM_LAYOUT_XOR_SWIZZLE;
}
HOST_DEVICE constexpr bool wgmma_takes_64_rows(Choice c) {
  return !on_wgmma(c) || (c.warps_m % 4 == 0 && c.block_m == 16 * c.warps_m);
}
HOST_DEVICE constexpr bool wgmma_reads_swizzled_tiles(Choice c) {
  return !on_wgmma(c) || c.smem_layout == SMEM_LAYOUT_XOR_SWIZZLE;
}
HOST_DEVICE constexpr bool registers_hold_fragments(Choice c) {
  return !in_registers(c) || least_registers(c) <= register_limit(c);
}
