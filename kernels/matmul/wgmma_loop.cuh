// The steps of a block with wgmma: four warps multiply 64 rows, and the tensor cores read both tiles by themselves.
#pragma once

static_assert(SMEM_LAYOUT == SMEM_LAYOUT_XOR_SWIZZLE, "the tensor cores read swizzled tiles");
static_assert(!FP16_SUM, "sums of wgmma are fp32 here");

// Where an operand stands in shared memory: rows of ROW_BYTES whose chunks are swizzled over patterns of eight rows. PTX ISA,
// "Matrix Descriptor Format"; lengths in units of 16 bytes.
template <int ROW_BYTES>
struct Operand {
  uint32_t low;

  // `panel_stride` bytes lead to the next 64 columns.
  __device__ __forceinline__ Operand(uint32_t address, uint32_t panel_stride)
      : low(address / 16 | panel_stride / 16 << 16) {}
  // The descriptor of what stands `bytes` further on.
  __device__ __forceinline__ uint64_t at(uint32_t bytes) const {
    constexpr uint64_t SWIZZLE = ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3, PATTERN = 8 * ROW_BYTES / 16;
    return SWIZZLE << 62 | PATTERN << 32 | (low + bytes / 16);
  }
};

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define OUT_1(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define OUT_2(i) OUT_1(i), OUT_1(i + 1)
#define OUT_4(i) OUT_2(i), OUT_2(i + 2)
#define OUT_8(i) OUT_4(i), OUT_4(i + 4)
#define OUT_16(i) OUT_8(i), OUT_8(i + 8)
#define OUT_32(i) OUT_16(i), OUT_16(i + 16)
#define LIST_32                                                                                                       \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30," \
  "%31"
#define LIST_64                                                                                                       \
  LIST_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
          "%58,%59,%60,%61,%62,%63"
#define LIST_128                                                                                                      \
  LIST_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89," \
          "%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112," \
          "%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// c += a b over a depth of 16: 64 rows, a row of a after the other, by as many columns as c has, a row of depth of b after
// the other. R0 and R1 number the operands that follow the sums. Both come from shared memory while the warp goes on.
#define PRODUCTS(COLUMNS, OUT, LIST, R0, R1)                                                                          \
  __device__ __forceinline__ void multiply(float (&c)[COLUMNS / 8][4], uint64_t a, uint64_t b) {                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32.f16.f16 {" LIST "}, " R0 ", " R1               \
                 ", 1, 1, 1, 0, 1;"                                                                                   \
                 : OUT(0) : "l"(a), "l"(b) : "memory");                                                               \
  }
PRODUCTS(64, OUT_8, LIST_32, "%32", "%33")
PRODUCTS(128, OUT_16, LIST_64, "%64", "%65")
PRODUCTS(256, OUT_32, LIST_128, "%128", "%129")

// Tells the compiler that the sums are only there after the wait before.
__device__ __forceinline__ void take(Sum (&sum)[TILES_M][TILES_N]) {
#pragma unroll
  for (int m = 0; m < TILES_M; m++)
#pragma unroll
    for (int n = 0; n < TILES_N; n++)
      asm volatile("" : "+f"(sum[m][n][0]), "+f"(sum[m][n][1]), "+f"(sum[m][n][2]), "+f"(sum[m][n][3])::"memory");
}

// Adds the products of all steps to this warp's sums.
__device__ __forceinline__ void accumulate(Sum (&sum)[TILES_M][TILES_N], Pipeline& pipeline, uint32_t shared, int steps,
                                           int warp_m, int warp_n) {
  const uint32_t first_a = warp_m / 64 * 64 * (2 * BLOCK_K), first_b = A_STAGE + warp_n / PANEL * (BLOCK_K * PANEL * 2);
  uint32_t stage = shared;
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    pipeline.arrive();
    const Operand<2 * BLOCK_K> rows(stage + first_a, 16);
    const Operand<2 * PANEL> columns(stage + first_b, BLOCK_K * PANEL * 2);
    begin_products();
#pragma unroll
    for (int k = 0; k < DEPTHS; k++)
#pragma unroll
      for (int m = 0; m < TILES_M; m++)
        multiply(sum[m], rows.at(m * 64 * (2 * BLOCK_K) + k * 32), columns.at(k * 16 * (2 * PANEL)));
    commit_products();
    pipeline.start();
    wait_products<AHEAD ? 1 : 0>();
    stage = shared + pipeline.after(stage - shared);
  }
  wait_products<0>();
  take(sum);
}
