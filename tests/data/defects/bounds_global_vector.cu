// The last vector load of a row whose length is no multiple of four runs past the end.
// launch: grid=1,1,1 block=32,1,1 shared=0
// args: out=f32[128] in=f32[126]r n=i32:126
// expect: out_of_bounds memcheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in, int n) {
  int i = threadIdx.x * 4;
#ifdef FIXED
  if (i + 4 > n) return;
#endif
  float4 v = *(const float4*)(in + i);  // BUG
  out[i] = v.x + v.y + v.z + v.w;
}
