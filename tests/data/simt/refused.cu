// What the simulator does not execute, one kernel each, beside one that it does.
extern "C" __global__ void texture(cudaTextureObject_t t, float* out) {
  out[threadIdx.x] = tex2D<float>(t, threadIdx.x, 0);
}
extern "C" __global__ void surface(cudaSurfaceObject_t s, float* out) {
  surf2Dwrite(1.f, s, threadIdx.x * 4, 0);
}
__device__ __noinline__ int ackermann(int m, int n) {
  return n < 2 ? m : ackermann(m, n - 1) + ackermann(m - 1, n - 2);
}
extern "C" __global__ void recursive(int* out) { out[threadIdx.x] = ackermann(2, threadIdx.x); }
extern "C" __global__ void allocates(float* out) {
  float* own = (float*)malloc(4 * threadIdx.x + 4);
  own[threadIdx.x] = out[0];
  out[threadIdx.x] = own[out[1] > 0];
  free(own);
}
extern "C" __global__ void news(float* out) {
  float* own = new float[threadIdx.x + 1];
  own[threadIdx.x] = out[0];
  out[threadIdx.x] = own[out[1] > 0];
  delete[] own;
}
extern "C" __global__ void plain(float* out) { out[threadIdx.x] = 1; }
