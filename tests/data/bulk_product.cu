// A product of fp16 matrices for Hopper, with tensor copies into a ring of tiles; -DBUG=1 to 5 plants a fault.
#include <cuda_fp16.h>
#define PTX(text, ...) asm volatile(text :: __VA_ARGS__ : "memory")
typedef unsigned long long u64;
struct alignas(64) Map { u64 opaque[16]; };
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void init(u64* b, int n) { PTX("mbarrier.init.shared::cta.b64 [%0], %1;", "r"(at(b)), "r"(n)); }
__device__ __forceinline__ void expect(u64* b, int n) { PTX("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", "r"(at(b)), "r"(n)); }
__device__ __forceinline__ void wait(u64* b, int p) {
  PTX("{ .reg .pred P1; LAB_WAIT: mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1; @P1 bra DONE; bra LAB_WAIT; DONE: }", "r"(at(b)), "r"(p)); }
__device__ __forceinline__ void arrive_remote(u64* b, unsigned cta, unsigned pred) {
  PTX("{ .reg .pred p; .reg .b32 remAddr32; setp.eq.u32 p, %2, 1; @p mapa.shared::cluster.u32 remAddr32, %0, %1; @p mbarrier.arrive.shared::cluster.b64 _, [remAddr32]; }", "r"(at(b)), "r"(cta), "r"(pred)); }
__device__ __forceinline__ void tma(void* to, const Map* m, int x, int y, u64* b) {
  PTX("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];", "r"(at(to)), "l"(m), "r"(at(b)), "r"(x), "r"(y)); }
__device__ __forceinline__ void tma_multi(void* to, const Map* m, int x, int y, u64* b, unsigned short mask) {
  PTX("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;", "r"(at(to)), "l"(m), "r"(at(b)), "h"(mask), "r"(x), "r"(y)); }
__device__ __forceinline__ u64 desc(const half* p) { u64 a = at(p); return (a & 0x3ffff) >> 4 | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62; }
#define W(n) "+f"(d[n]), "+f"(d[n+1]), "+f"(d[n+2]), "+f"(d[n+3]), "+f"(d[n+4]), "+f"(d[n+5]), "+f"(d[n+6]), "+f"(d[n+7])
__device__ __forceinline__ void mma(float (&d)[32], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
    : W(0), W(8), W(16), W(24) : "l"(a), "l"(b) : "memory");
}
#define STAGES 3
struct Shared { half a[STAGES][64 * 64], b[STAGES][64 * 64]; float c[64 * 64]; u64 full[STAGES], empty[STAGES]; };
// Two blocks of a cluster share the tile of B: each loads half of it for both.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(256, 1)
gemm(const __grid_constant__ Map A, const __grid_constant__ Map B, const __grid_constant__ Map C, int tiles_n, int K) {
  extern __shared__ __align__(1024) unsigned char raw[];
  Shared& s = *(Shared*)raw;
  const int t = threadIdx.x, wg = t / 128, steps = K / 64;
  unsigned rank; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (t == 0) {
    for (int i = 0; i < STAGES; i++) { init(&s.full[i], 1); init(&s.empty[i], 2); }
    PTX("fence.mbarrier_init.release.cluster;", "r"(0));
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  const int m0 = blockIdx.x * 64;
  if (wg == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (t == 0) {
      int stage = 0, phase = 1;
      for (int n = 0; n < tiles_n; n++)
        for (int k = 0; k < steps; k++) {
          wait(&s.empty[stage], phase);
          expect(&s.full[stage], (BUG == 5 ? 5 : 4) * 64 * 64);
          tma(s.a[stage], &A, k * 64, m0, &s.full[stage]);
          tma_multi(s.b[stage] + rank * 32 * 64, &B, k * 64, n * 64 + rank * 32, &s.full[stage], 3);
          if (++stage == STAGES) { stage = 0; phase ^= 1; }
        }
      for (int i = 0; i < STAGES && BUG != 4; i++) {  // otherwise a block may end before the last release arrives
        wait(&s.empty[stage], phase);
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 256;" );
    int stage = 0, phase = 0;
    const int q = t - 128, warp = q / 32, lane = q % 32;
    for (int n = 0; n < tiles_n; n++) {
      float d[32] = {};
      for (int k = 0; k < steps; k++) {
        wait(&s.full[stage], phase);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int kk = 0; kk < 4; kk++) mma(d, desc(s.a[stage] + 16 * kk), desc(s.b[stage] + 16 * kk));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (BUG == 1) arrive_remote(&s.empty[stage], q, q < 2);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (BUG != 1) arrive_remote(&s.empty[stage], q, q < 2);
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
      }
      if (BUG != 3 && q == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      asm volatile("bar.sync 1, 128;" ::: "memory");
      for (int j = 0; j < 8; j++) for (int h = 0; h < 2; h++) {
        float* p = s.c + (warp * 16 + lane / 4 + 8 * h) * 64 + 8 * j + (lane % 4) * 2;
        p[0] = d[4 * j + 2 * h]; p[1] = d[4 * j + 2 * h + 1];
      }
      if (BUG != 2) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      asm volatile("bar.sync 1, 128;" ::: "memory");
      if (q == 0) {
        PTX("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];", "l"(&C), "r"(at(s.c)), "r"(n * 64), "r"(m0));
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      }
    }
    if (q == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
