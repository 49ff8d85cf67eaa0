// Half a warp waits for the other half, which never comes.
// launch: grid=1,1,1 block=32,1,1 shared=0
// args: out=f32[32] in=f32[32]r
// expect: barrier_divergence
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  int t = threadIdx.x;
  float v = in[t];
  if (t < 16) {
#ifdef FIXED
    __syncwarp(0x0000ffff);
#else
    __syncwarp(0xffffffff);  // BUG
#endif
    v += 1.0f;
  } else {
    v -= in[t - 1] * 0.5f;
    out[t] = v;
    return;
  }
  out[t] = v;
}
