// A vector load starts at an odd element.
// launch: grid=1,1,1 block=16,1,1 shared=0
// args: out=f32[16] in=f32[80]r
// expect: misaligned memcheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
#ifdef FIXED
  const float* start = in + 4;
#else
  const float* start = in + 1;
#endif
  float4 v = *(const float4*)(start + threadIdx.x * 4);  // BUG
  out[threadIdx.x] = v.x + v.y + v.z + v.w;
}
