// The launch gives less dynamic shared memory than the kernel uses.
// launch: grid=1,1,1 block=64,1,1 shared=256
// args: out=f32[64] in=f32[64]r
// expect: out_of_bounds memcheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  extern __shared__ float tile[];
  int t = threadIdx.x;
#ifdef FIXED
  int at = t;
#else
  int at = t * 2;
#endif
  tile[at] = in[t];  // BUG
  __syncthreads();
  if (at < 64) out[t] = tile[at];
}
