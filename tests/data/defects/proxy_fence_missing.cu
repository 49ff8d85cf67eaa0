// A tile is stored, and the asynchronous proxy, through which wgmma reads, is not told of it.
// launch: grid=1,1,1 block=128,1,1 shared=0
// arch: compute_90a
// args: out=f32[512] in=f16[1536]r
// expect: proxy_fence
// Build with -DFIXED for the clean twin.
#include <cuda_fp16.h>
#define PRODUCT "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 0, 1, 1, 0, 0;"
typedef unsigned long long Descriptor;
__device__ __forceinline__ Descriptor describe(const half* tile) {  // no swizzle: 8 rows of 16 bytes after one another
  const unsigned address = (unsigned)__cvta_generic_to_shared(tile);
  return (address >> 4 & 0x3fff) | Descriptor(128 >> 4) << 16 | Descriptor(256 >> 4) << 32;
}

extern "C" __global__ void kernel(float* out, const half* in) {
  __shared__ __align__(128) half tile[64 * 16 + 8 * 16];
  const int t = threadIdx.x;
  for (int j = t; j < 64 * 16 + 8 * 16; j += 128) tile[j] = in[j];
#ifdef FIXED
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncthreads();
  float d[4];
  const Descriptor left = describe(tile), right = describe(tile + 64 * 16);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  // On one line, for compilers name different ones of several.
  asm volatile(PRODUCT : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "l"(left), "l"(right) : "memory");  // BUG
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
  for (int j = 0; j < 4; j++) out[j * 128 + t] = d[j];
}
