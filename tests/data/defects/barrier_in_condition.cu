// Only some of the threads reach the barrier.
// launch: grid=1,1,1 block=128,1,1 shared=0
// args: out=f32[128] in=f32[128]r n=i32:70
// expect: barrier_divergence synccheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in, int n) {
  __shared__ float tile[128];
  int t = threadIdx.x;
  float sum = in[t];
#ifndef FIXED
  if (t < n) {
#endif
    tile[t] = in[t];
    __syncthreads();  // BUG
    sum += tile[t ^ 1];
#ifndef FIXED
  }
#endif
  out[t] = sum * 2.0f;
}
