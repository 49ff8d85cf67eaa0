// Two groups of warps use barriers of their own, and one reads what the other wrote.
// launch: grid=1,1,1 block=128,1,1 shared=0
// args: out=f32[128] in=f32[128]r
// expect: shared_race racecheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  __shared__ float tile[128];
  int t = threadIdx.x, group = t / 64;
  tile[t] = in[t];
  // Written out for each group: racecheck follows named barriers whose number is a constant.
  if (group == 0)
    asm volatile("bar.sync 1, 64;" ::: "memory");
  else
    asm volatile("bar.sync 2, 64;" ::: "memory");
#ifdef FIXED
  int from = group * 64 + (t + 1) % 64;
#else
  int from = (t + 64) % 128;
#endif
  out[t] = tile[from];  // BUG
}
