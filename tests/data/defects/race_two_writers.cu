// Two threads write different values to the same slot.
// launch: grid=1,1,1 block=64,1,1 shared=0
// args: out=f32[64] in=f32[64]r
// expect: shared_race racecheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  __shared__ float slot[64];
  int t = threadIdx.x;
  slot[t] = 0.0f;
  __syncthreads();
#ifdef FIXED
  slot[t] = in[t];
#else
  slot[t / 2] = in[t];  // BUG
#endif
  __syncthreads();
  out[t] = slot[t / 2];
}
