// A device assert fails.
// launch: grid=1,1,1 block=32,1,1 shared=0
// args: out=i32[32] in=i32[32]r:iota
// expect: assert memcheck
// Build with -DFIXED for the clean twin.
#ifndef __CUDACC_RTC__
#include <cassert>
#endif
extern "C" __global__ void kernel(int* out, const int* in) {
#ifdef FIXED
  assert(in[threadIdx.x] < 32);
#else
  assert(in[threadIdx.x] < 20);  // BUG
#endif
  out[threadIdx.x] = in[threadIdx.x];
}
