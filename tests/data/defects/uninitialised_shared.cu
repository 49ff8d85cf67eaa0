// The load phase covers only part of the tile that is read.
// launch: grid=1,1,1 block=64,1,1 shared=0
// args: out=f32[64] in=f32[64]r n=i32:60
// expect: uninitialised
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in, int n) {
  __shared__ float tile[64];
  int t = threadIdx.x;
  if (t < n) tile[t] = in[t];
#ifdef FIXED
  else tile[t] = 0.0f;
#endif
  __syncthreads();
  out[t] = tile[63 - t];  // BUG
}
