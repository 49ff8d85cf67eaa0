// A histogram of bytes that is added to `counts`; PRIVATE counts in shared memory first.
#include <cstdint>

__global__ void histogram(const uint8_t* data, int* counts, int n) {
  __shared__ int own[256];
  int* into = PRIVATE ? own : counts;
  if (PRIVATE) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) own[i] = 0;
    __syncthreads();
  }
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&into[data[i]], 1);
  if (PRIVATE) {
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&counts[i], own[i]);
  }
}
