// y[i] = 2 * x[i] for n floats, by as many steps of v = v / 2 + x as are asked for: time that can be dialled.
//
// STEPS   each is one fused multiply-add that waits for the one before
#ifndef STEPS
#error "dial needs the macro STEPS"
#endif

extern "C" __global__ void __launch_bounds__(128) dial(const float* x, float* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  const float own = x[i];
  float v = own;
#pragma unroll 1
  for (int step = 0; step < STEPS; step += 10) {
    // Written out: ten steps for one comparison and branch.
    v = fmaf(v, 0.5f, own), v = fmaf(v, 0.5f, own), v = fmaf(v, 0.5f, own), v = fmaf(v, 0.5f, own);
    v = fmaf(v, 0.5f, own), v = fmaf(v, 0.5f, own), v = fmaf(v, 0.5f, own), v = fmaf(v, 0.5f, own);
    v = fmaf(v, 0.5f, own), v = fmaf(v, 0.5f, own);
  }
  y[i] = v;
}
