// A consistency check of the kernel fails.
// launch: grid=1,1,1 block=32,1,1 shared=0
// args: out=i32[32] in=i32[32]r:iota
// expect: trap memcheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(int* out, const int* in) {
#ifdef FIXED
  if (in[threadIdx.x] < 0) __trap();
#else
  if (in[threadIdx.x] > 20) __trap();  // BUG
#endif
  out[threadIdx.x] = in[threadIdx.x];
}
