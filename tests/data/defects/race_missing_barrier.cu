// A tile is read before all threads have written it.
// launch: grid=1,1,1 block=128,1,1 shared=0
// args: out=f32[128] in=f32[128]r
// expect: shared_race racecheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  __shared__ float tile[128];
  int t = threadIdx.x;
  tile[t] = in[t];
#ifdef FIXED
  __syncthreads();
#endif
  out[t] = tile[127 - t];  // BUG
}
