// A loop waits for a flag that nobody sets.
// launch: grid=1,1,1 block=32,1,1 shared=0
// args: out=i32[32] flag=i32[1]
// expect: instruction_limit
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(int* out, volatile int* flag) {
#ifdef FIXED
  if (threadIdx.x == 0) *flag = 1;
  __syncthreads();
#endif
  while (*flag == 0) {  // BUG
  }
  out[threadIdx.x] = *flag;
}
