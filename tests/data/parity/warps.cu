// Exchange between the lanes of a warp.
#define ROW(...) { __VA_ARGS__; out[row++ * count + i] = r; }
#define BEGIN int i = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x, row = 0

// launch: grid=4 block=128
// args: out=u32 a=u32:bits b=u32:bits c=u32:bits
// same: bitwise
#define SHUFFLE(op) \
  ROW(unsigned r; asm volatile("{ .reg .pred p; " op " %0|p, %1, %2, %3, 0xffffffff; @p xor.b32 %0, %0, 0x5a5a0000; }" : "=&r"(r) : "r"(x), "r"(y), "r"(z)))
#define BROADCAST(op, mask) ROW(unsigned r; asm volatile(op " %0, %1, " mask ";" : "=r"(r) : "r"(x)))
#define VOTE(op) ROW(unsigned r; asm volatile("{ .reg .pred p, q; setp.lt.u32 p, %1, %2; " op " q, p, 0xffffffff; selp.u32 %0, 1, 0, q; }" : "=r"(r) : "r"(x), "r"(limit)))
#define BALLOT(op) ROW(unsigned r; asm volatile("{ .reg .pred p; setp.lt.u32 p, %1, %2; " op " %0, p, 0xffffffff; }" : "=r"(r) : "r"(x), "r"(limit)))
#define MATCH(op) ROW(unsigned r; asm volatile(op " %0, %1, 0xffffffff;" : "=r"(r) : "r"(few)))
#define MATCH64(op) ROW(unsigned r; asm volatile(op " %0, %1, 0xffffffff;" : "=r"(r) : "l"((unsigned long long)few << 40)))
#define MATCHALL(op) ROW(unsigned r; asm volatile("{ .reg .pred p; " op " %0|p, %1, 0xffffffff; @p xor.b32 %0, %0, 1; }" : "=r"(r) : "r"(few)))
#define REDUCE(op) ROW(unsigned r; asm volatile(op " %0, %1, 0xffffffff;" : "=r"(r) : "r"(x)))
#define ELECT(op) ROW(unsigned r; asm volatile("{ .reg .pred p; " op " %0|p, 0xffffffff; @p xor.b32 %0, %0, 0x100; }" : "=r"(r)))
extern "C" __global__ void lanes(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c) {
  BEGIN;
  unsigned x = a[i], y = b[i], z = c[i], few = i / 32 % 3 ? x & 3 : 7;
  unsigned warp = i / 32, limit = warp % 3 == 0 ? 0 : warp % 3 == 1 ? 0x80000000u : 0xffffffffu;
  SHUFFLE("shfl.sync.up.b32") SHUFFLE("shfl.sync.down.b32") SHUFFLE("shfl.sync.bfly.b32") SHUFFLE("shfl.sync.idx.b32")
  z &= 31;
  SHUFFLE("shfl.sync.up.b32 ") SHUFFLE("shfl.sync.down.b32 ") SHUFFLE("shfl.sync.bfly.b32 ") SHUFFLE("shfl.sync.idx.b32 ")
  z = 0x1f, y &= 7;
  SHUFFLE("shfl.sync.down.b32  ") SHUFFLE("shfl.sync.bfly.b32  ") SHUFFLE("shfl.sync.idx.b32  ")
  z = 0x1818;
  SHUFFLE("shfl.sync.down.b32   ") SHUFFLE("shfl.sync.bfly.b32   ") SHUFFLE("shfl.sync.idx.b32   ")
  z = 0;
  SHUFFLE("shfl.sync.up.b32   ")
  VOTE("vote.sync.all.pred") VOTE("vote.sync.any.pred") VOTE("vote.sync.uni.pred") BALLOT("vote.sync.ballot.b32")
  MATCH("match.any.sync.b32") MATCH64("match.any.sync.b64") MATCHALL("match.all.sync.b32")
  REDUCE("redux.sync.add.s32") REDUCE("redux.sync.add.u32") REDUCE("redux.sync.min.s32") REDUCE("redux.sync.max.s32") REDUCE("redux.sync.min.u32")
  REDUCE("redux.sync.max.u32") REDUCE("redux.sync.and.b32") REDUCE("redux.sync.or.b32") REDUCE("redux.sync.xor.b32") ELECT("elect.sync")
}

// launch: grid=4 block=128
// args: out=u32 a=u32:bits
// same: bitwise
#define SOME(name, value) ROW(unsigned r = 0; if (i & 1) r = value(0xaaaaaaaau); else r = value(0x55555555u))
extern "C" __global__ void halves_of_a_warp(unsigned* out, const unsigned* a) {
  BEGIN;
  unsigned x = a[i];
#define BALLOT_OF(mask) __ballot_sync(mask, x & 4)
#define ALL_OF(mask) __all_sync(mask, x & 0xff)
#define SUM_OF(mask) __reduce_add_sync(mask, x)
#define SHUFFLE_OF(mask) __shfl_xor_sync(mask, x, 6)
#define MATCH_OF(mask) __match_any_sync(mask, x & 3)
  SOME("__ballot_sync", BALLOT_OF) SOME("__all_sync", ALL_OF) SOME("__reduce_add_sync", SUM_OF) SOME("__shfl_xor_sync", SHUFFLE_OF)
  SOME("__match_any_sync", MATCH_OF)
#define BLOCK(name, value) ROW(unsigned r = value)
  BLOCK("__syncthreads_count", __syncthreads_count(x & 1)) BLOCK("__syncthreads_or", __syncthreads_or(x % 97 == 0))
  BLOCK("__syncthreads_and", __syncthreads_and(x % 197 != 0))
}
