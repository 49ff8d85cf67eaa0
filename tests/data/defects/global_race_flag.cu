// A flag between blocks is passed on without a fence before it and a volatile read after it.
// launch: grid=2,1,1 block=32,1,1 shared=0
// args: out=f32[32] state=f32[32] flag=i32[1] in=f32[32]r
// expect: global_race
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, float* state, int* flag, const float* in) {
  int t = threadIdx.x;
  if (blockIdx.x == 0) {
    state[t] = in[t];
#ifdef FIXED
    __threadfence();
    __syncthreads();
#endif
    if (t == 0) atomicExch(flag, 1);
  } else {
    if (t == 0)
      while (atomicAdd(flag, 0) == 0) {
      }
    __syncthreads();
#ifdef FIXED
    __threadfence();
#endif
    out[t] = state[t];  // BUG
  }
}
