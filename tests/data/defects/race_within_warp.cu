// Lanes of a warp exchange values through shared memory without __syncwarp().
// launch: grid=1,1,1 block=32,1,1 shared=0
// args: out=f32[32] in=f32[32]r
// expect: shared_race racecheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  __shared__ float slot[32];
  int t = threadIdx.x;
  slot[t] = in[t];
#ifdef FIXED
  __syncwarp();
#endif
  out[t] = slot[t ^ 1];  // BUG
}
