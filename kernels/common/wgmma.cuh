// Hopper's tensor cores: the four warps of a warpgroup multiply together asynchronously, with operands in shared memory
// (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"). In a wgmma of 64 rows, warp w has rows 16 w to 16 w + 15;
// its accumulators, and operands in registers, have the layout of mma.m16n8k16.
#pragma once

#include "../common/half.cuh"

/// Descriptor of an operand in shared memory: rows of BYTES_OF_ROW with 16-byte chunks swizzled in patterns of eight rows
/// (PTX ISA, "Matrix Descriptor Format"). Lengths are in units of 16 bytes.
template <int BYTES_OF_ROW>
struct MatrixDescriptor {
  u32 low;

  /// `panel_stride` is the distance in bytes to the next 64 columns, for instructions wider than a row. A descriptor has
  /// 18 address bits; in a cluster, addresses also hold the rank of the block from bit 24 on.
  __device__ __forceinline__ MatrixDescriptor(u32 address, u32 panel_stride = 16)
      : low((address & 0x3ffff) / 16 | panel_stride / 16 << 16) {}
  /// Returns the descriptor for an address `bytes` further on.
  __device__ __forceinline__ u64 at(u32 bytes) const {
    constexpr u64 SWIZZLE = BYTES_OF_ROW == 128 ? 1 : BYTES_OF_ROW == 64 ? 2 : 3, PATTERN = 8 * BYTES_OF_ROW / 16;
    return SWIZZLE << 62 | PATTERN << 32 | (low + bytes / 16);
  }
};

/// Orders register accesses before wgmma. Required before the first wgmma, and after writing registers that a wgmma reads.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/// Pins accumulators, which wgmma writes asynchronously. A call after the wait prevents the compiler from moving uses of
/// the accumulators before the wait.
template <int COUNT>
__device__ __forceinline__ void pin_accumulators(float (&c)[COUNT][4]) {
#pragma unroll
  for (int n = 0; n < COUNT; ++n) asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}

// ---- products with a depth of 16: 64 rows per warpgroup, and the columns of c

#define FACTORS HALF_TYPE "." HALF_TYPE
#define OUT_1(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define OUT_2(i) OUT_1(i), OUT_1(i + 1)
#define OUT_4(i) OUT_2(i), OUT_2(i + 2)
#define OUT_8(i) OUT_4(i), OUT_4(i + 4)
#define OUT_16(i) OUT_8(i), OUT_8(i + 8)
#define OUT_10(i) OUT_8(i), OUT_2(i + 8)
#define OUT_12(i) OUT_8(i), OUT_4(i + 8)
#define OUT_14(i) OUT_12(i), OUT_2(i + 12)
#define OUT_18(i) OUT_16(i), OUT_2(i + 16)
#define OUT_20(i) OUT_16(i), OUT_4(i + 16)
#define OUT_22(i) OUT_20(i), OUT_2(i + 20)
#define OUT_24(i) OUT_16(i), OUT_8(i + 16)
#define OUT_26(i) OUT_24(i), OUT_2(i + 24)
#define OUT_28(i) OUT_24(i), OUT_4(i + 24)
#define OUT_30(i) OUT_28(i), OUT_2(i + 28)
#define OUT_32(i) OUT_16(i), OUT_16(i + 16)
#define LIST_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define LIST_16 LIST_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define LIST_32 LIST_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LIST_40 LIST_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define LIST_48 LIST_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define LIST_56 LIST_48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define LIST_64 LIST_56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define LIST_72 LIST_64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define LIST_80 LIST_72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define LIST_88 LIST_80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define LIST_96 LIST_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define LIST_104 LIST_96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define LIST_112 LIST_104 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define LIST_120 LIST_112 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define LIST_128 LIST_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
                         ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

/// wgmma computes c = a b, or c += a b with `add`; wgmma_accumulate computes c += a b. Rows of a come from fragments or
/// shared memory. In shared memory, the rows of b are columns of the product, or depths if TRANSPOSED. R0 ... are the
/// numbers of the operands after the accumulators.
#define WGMMA_OF(COLUMNS, OUT, LIST, R0, R1, R2, R3, R4, R5, R6)                                                      \
  template <int TRANSPOSED>                                                                                           \
  __device__ __forceinline__ void wgmma(float (&c)[COLUMNS / 8][4], const u32 (&a)[4], u64 b, bool add) {             \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, " R5 ", 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS           \
                 "k16.f32." FACTORS " {" LIST "}, {" R0 "," R1 "," R2 "," R3 "}, " R4 ", add, 1, 1, " R6 "; }"        \
                 : OUT(0)                                                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<u32>(add)), "n"(TRANSPOSED)    \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  template <int TRANSPOSED, int A_TRANSPOSED = 0>                                                                     \
  __device__ __forceinline__ void wgmma(float (&c)[COLUMNS / 8][4], u64 a, u64 b, bool add) {                         \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, " R2 ", 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS           \
                 "k16.f32." FACTORS " {" LIST "}, " R0 ", " R1 ", add, 1, 1, " R4 ", " R3 "; }"                       \
                 : OUT(0) : "l"(a), "l"(b), "r"(static_cast<u32>(add)), "n"(TRANSPOSED), "n"(A_TRANSPOSED) : "memory"); \
  }                                                                                                                   \
  template <int TRANSPOSED>                                                                                           \
  __device__ __forceinline__ void wgmma_accumulate(float (&c)[COLUMNS / 8][4], u64 a, u64 b) {                        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." FACTORS " {" LIST "}, " R0 ", " R1           \
                 ", 1, 1, 1, 0, " R2 ";" : OUT(0) : "l"(a), "l"(b), "n"(TRANSPOSED) : "memory");                      \
  }
WGMMA_OF(16, OUT_2, LIST_8, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
WGMMA_OF(32, OUT_4, LIST_16, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
WGMMA_OF(64, OUT_8, LIST_32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
WGMMA_OF(80, OUT_10, LIST_40, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
WGMMA_OF(96, OUT_12, LIST_48, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
WGMMA_OF(112, OUT_14, LIST_56, "%56", "%57", "%58", "%59", "%60", "%61", "%62")
WGMMA_OF(128, OUT_16, LIST_64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
WGMMA_OF(144, OUT_18, LIST_72, "%72", "%73", "%74", "%75", "%76", "%77", "%78")
WGMMA_OF(160, OUT_20, LIST_80, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
WGMMA_OF(176, OUT_22, LIST_88, "%88", "%89", "%90", "%91", "%92", "%93", "%94")
WGMMA_OF(192, OUT_24, LIST_96, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
WGMMA_OF(208, OUT_26, LIST_104, "%104", "%105", "%106", "%107", "%108", "%109", "%110")
WGMMA_OF(224, OUT_28, LIST_112, "%112", "%113", "%114", "%115", "%116", "%117", "%118")
WGMMA_OF(240, OUT_30, LIST_120, "%120", "%121", "%122", "%123", "%124", "%125", "%126")
WGMMA_OF(256, OUT_32, LIST_128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
