// A block reads what its neighbour writes in the same launch.
// launch: grid=4,1,1 block=32,1,1 shared=0
// args: out=f32[128] state=f32[128] in=f32[128]r
// expect: global_race
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, float* state, const float* in) {
  int i = blockIdx.x * 32 + threadIdx.x;
  state[i] = in[i] * 2.0f;
#ifdef FIXED
  int from = i;
#else
  int from = i >= 32 ? i - 32 : i;
#endif
  __syncthreads();
  out[i] = state[from];  // BUG
}
