// Every block writes its own result to the same place.
// launch: grid=4,1,1 block=32,1,1 shared=0
// args: out=f32[128] in=f32[128]r
// expect: global_race
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  int i = blockIdx.x * 32 + threadIdx.x;
#ifdef FIXED
  out[i] = in[i];
#else
  out[threadIdx.x] = in[i];  // BUG
#endif
}
