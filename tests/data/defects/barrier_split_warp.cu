// Lanes of one warp wait at two different barriers.
// launch: grid=1,1,1 block=64,1,1 shared=0
// args: out=f32[64] in=f32[64]r
// expect: barrier_divergence synccheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  __shared__ float tile[64];
  int t = threadIdx.x;
  float sum;
#ifdef FIXED
  int odd = blockIdx.x & 1;
#else
  int odd = t & 1;
#endif
  if (odd) {
    tile[t] = in[t];
    __syncthreads();  // BUG
    sum = tile[t] * 3.0f;
  } else {
    tile[t] = in[t] + 1.0f;
    __syncthreads();  // BUG
    sum = tile[t] + in[t ^ 2];
  }
  out[t] = sum;
}
