// Rows padded to 33 floats do not keep 16-byte stores aligned.
// launch: grid=1,1,1 block=64,1,1 shared=0
// args: out=f32[64] in=f32[256]r
// expect: misaligned memcheck
// Build with -DFIXED for the clean twin.
#ifdef FIXED
#define PITCH 36
#else
#define PITCH 33
#endif
extern "C" __global__ void kernel(float* out, const float* in) {
  __shared__ __align__(16) float tile[8 * PITCH];
  int row = threadIdx.x / 8, column = threadIdx.x % 8 * 4;
  float4 v = *(const float4*)(in + threadIdx.x * 4);
  unsigned to = (unsigned)__cvta_generic_to_shared(tile + row * PITCH + column);
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");  // BUG
  __syncthreads();
  out[threadIdx.x] = tile[row * PITCH + column];
}
