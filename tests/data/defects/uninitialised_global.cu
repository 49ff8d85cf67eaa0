// The kernel accumulates into an output that nobody cleared.
// launch: grid=2,1,1 block=64,1,1 shared=0
// args: out=f32[128]u in=f32[128]r
// expect: uninitialised initcheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef FIXED
  out[i] = in[i];
#else
  out[i] += in[i];  // BUG
#endif
}
