// The next tile is stored while slower warps still read the old one.
// launch: grid=1,1,1 block=128,1,1 shared=0
// args: out=f32[128] in=f32[512]r
// expect: shared_race racecheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  __shared__ float tile[128];
  int t = threadIdx.x;
  float sum = 0.0f;
#pragma unroll 1
  for (int k = 0; k < 4; k++) {
    tile[t] = in[k * 128 + t];  // BUG
    __syncthreads();
    sum += tile[(t + 64) % 128];
#ifdef FIXED
    __syncthreads();
#endif
  }
  out[t] = sum;
}
