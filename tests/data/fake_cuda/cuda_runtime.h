// A CUDA runtime that is no GPU: memory is the host's, and a launch walks the grid thread by thread. It runs kernels
// without barriers and without shared memory whose arguments are FAKE_KERNEL_TYPES, so that the host part of an exported
// program (inputs, reference, comparison, exit code) can be tested anywhere; each launch leaves a line on stderr.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __global__
#define __device__
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 blockIdx, threadIdx, gridDim, blockDim;
struct float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using cudaError_t = int;
using cudaStream_t = int;
using cudaGraph_t = int;
using cudaGraphExec_t = int;
using cudaEvent_t = int;
constexpr cudaError_t cudaSuccess = 0;
enum { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaStreamCaptureModeThreadLocal };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize };

inline const char* cudaGetErrorString(cudaError_t) { return "fake error"; }
inline cudaError_t cudaGetLastError() { return 1; }
inline cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return 0;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, int) { return std::memcpy(to, from, bytes), 0; }
inline cudaError_t cudaMemset(void* to, int value, size_t bytes) { return std::memset(to, value, bytes), 0; }
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, int) { return std::memset(to, value, bytes), 0; }
template <typename T> cudaError_t cudaGetSymbolAddress(void** pointer, T& symbol) {
  return *pointer = const_cast<void*>(static_cast<const volatile void*>(&symbol)), 0;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, int) {
  return std::memcpy(to, from, bytes), 0;
}
inline cudaError_t cudaFuncSetAttribute(const void*, int, int) { return 0; }
inline cudaError_t cudaStreamCreate(cudaStream_t*) { return 0; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return 0; }
inline int captured = 0;  // launches in the graph captured last; each takes 10 us
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, int) { return captured = 0; }
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return 0; }
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, int) { return 0; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return 0; }
inline cudaError_t cudaEventCreate(cudaEvent_t*) { return 0; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return 0; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return 0; }
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) { return *milliseconds = 0.01f * captured, 0; }

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = 0;
};

template <typename... Types> struct Call {
  template <size_t... I> static void with(const void* entry, void** arguments, std::index_sequence<I...>) {
    reinterpret_cast<void (*)(Types...)>(const_cast<void*>(entry))(*static_cast<Types*>(arguments[I])...);
  }
};

inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* entry, void** arguments) {
  captured++;
  std::fprintf(stderr, "a launch\n");
  gridDim = config->gridDim, blockDim = config->blockDim;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)
      Call<FAKE_KERNEL_TYPES>::with(entry, arguments, std::make_index_sequence<FAKE_KERNEL_COUNT>());
  return 0;
}
