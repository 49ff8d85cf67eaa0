// A tile is read one element beyond its declared size.
// launch: grid=1,1,1 block=64,1,1 shared=0
// args: out=f32[64] in=f32[64]r
// expect: out_of_bounds memcheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  __shared__ float tile[64];
  int t = threadIdx.x;
  tile[t] = in[t];
  __syncthreads();
#ifdef FIXED
  int right = t < 63 ? t + 1 : 63;
#else
  int right = t + 1;
#endif
  out[t] = tile[right];  // BUG
}
