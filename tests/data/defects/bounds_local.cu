// An index into a per-thread array comes from the input and is not clamped.
// launch: grid=1,1,1 block=32,1,1 shared=0
// args: out=i32[32] in=i32[32]r:iota
// expect: out_of_bounds memcheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(int* out, const int* in) {
  int seen[64];  // large enough to stay in local memory: a short array may become registers and comparisons
#pragma unroll 1
  for (int j = 0; j < 64; j++) seen[j] = j * in[j & 31];
#ifdef FIXED
  int at = in[threadIdx.x] & 63;
#else
  int at = in[threadIdx.x] << 16;
#endif
  seen[at] += 1;  // BUG
  int sum = 0;
#pragma unroll 1
  for (int j = 0; j < 64; j++) sum += seen[j];
  out[threadIdx.x] = sum;
}
