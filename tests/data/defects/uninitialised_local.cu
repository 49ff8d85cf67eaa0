// A per-thread array is read where no loop has written it.
// launch: grid=1,1,1 block=32,1,1 shared=0
// args: out=i32[32] in=i32[32]r:iota n=i32:6
// expect: uninitialised
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(int* out, const int* in, int n) {
  int history[8];
#ifdef FIXED
  for (int j = 0; j < 8; j++) history[j] = 0;
#endif
#pragma unroll 1
  for (int j = 0; j < n; j++) history[j] = in[j];
  int at = in[threadIdx.x] & 7;
  out[threadIdx.x] = history[at];  // BUG
}
