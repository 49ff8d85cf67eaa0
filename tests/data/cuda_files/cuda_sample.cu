/* In the style of NVIDIA's samples: helpers, extern "C" launchers, cooperative groups, macros with values. */
// System includes
#include <assert.h>
#include <stdio.h>

// CUDA runtime
#include <cooperative_groups.h>
#include <cuda_runtime.h>
#include <cuda_profiler_api.h>
#include <device_launch_parameters.h>

// Helper functions
#include <helper_cuda.h>
#include <helper_functions.h>
#include "helper_timer.h"

namespace cg = cooperative_groups;

#define BLOCK_DIM 16  // threads along one side
#define MUL(a, b) __mul24(a, b)
#define IMAD(a, b, c) (__mul24((a), (b)) + (c))
#define DEVICE_INLINE __device__ __forceinline__
#define KERNEL extern "C" __global__ void

typedef unsigned int word_t;
inline __host__ __device__ float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
inline __host__ __device__ float dot(float2 a, float2 b) { return a.x * b.x + a.y * b.y; }
inline int iDivUp(int a, int b) { return (a % b != 0) ? (a / b + 1) : (a / b); }

class Timer {
 public:
  Timer() { cudaEventCreate(&start_); }
  ~Timer();
  float elapsed() const;

 private:
  cudaEvent_t start_, stop_;
};
Timer::~Timer() { cudaEventDestroy(start_); }

extern "C" {
void launch_transpose(float *odata, float *idata, int size_x, int size_y);

__global__ void transpose(float *odata, float *idata, int width, int height) {
  cg::thread_block cta = cg::this_thread_block();
  __shared__ float block[BLOCK_DIM][BLOCK_DIM + 1];
  unsigned int xIndex = IMAD(blockIdx.x, BLOCK_DIM, threadIdx.x);
  unsigned int yIndex = blockIdx.y * BLOCK_DIM + threadIdx.y;
  if ((xIndex < width) && (yIndex < height)) {
    unsigned int index_in = yIndex * width + xIndex;
    block[threadIdx.y][threadIdx.x] = idata[index_in];
  }
  cg::sync(cta);
  xIndex = blockIdx.y * BLOCK_DIM + threadIdx.x;
  yIndex = blockIdx.x * BLOCK_DIM + threadIdx.y;
  if ((xIndex < height) && (yIndex < width)) {
    odata[yIndex * height + xIndex] = block[threadIdx.x][threadIdx.y];
  }
}

void launch_transpose(float *odata, float *idata, int size_x, int size_y) {
  dim3 grid(iDivUp(size_x, BLOCK_DIM), iDivUp(size_y, BLOCK_DIM), 1);
  dim3 threads(BLOCK_DIM, BLOCK_DIM, 1);
  transpose<<<grid, threads>>>(odata, idata, size_x, size_y);
  getLastCudaError("Kernel execution failed");
}
}

DEVICE_INLINE word_t bit(word_t x, int i) { return (x >> i) & 1u; }

KERNEL count_bits(const word_t *in, word_t *out, int n) {
  extern __shared__ word_t sums[];
  float2 acc = make_float2(0.f, 0.f) + make_float2(1.f, 2.f);
  word_t sum = 0;
  for (int i = 0; i < 32; ++i) sum += bit(in[threadIdx.x], i);
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0] + (word_t)dot(acc, acc);
}

#ifdef USE_FAST_PATH
KERNEL finish(float *x, int n) {
#else
KERNEL finish(float *x, float scale, int n) {
#endif
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2.0f;
}

int main(int argc, char **argv) {
  printf("[Transpose] - Starting...\n");
  findCudaDevice(argc, (const char **)argv);
  size_t smem = 128 * sizeof(word_t);
  count_bits<<<dim3(4), 128, smem>>>(nullptr, nullptr, 0);
  checkCudaErrors(cudaDeviceSynchronize());
  const char *text = R"(not a kernel: __global__ void fake() { <<< )";
  exit(EXIT_SUCCESS);
}
