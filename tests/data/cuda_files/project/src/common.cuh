#pragma once
#include <stdexcept>
#include <string>

#define CHECK(call)                                                           \
  if (cudaError_t e = (call); e != cudaSuccess) {                             \
    throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(e));  \
  }
#define EXP(x) __expf(x)

struct Row {
  const float* data;
  int length;
};

inline void synchronise() { CHECK(cudaDeviceSynchronize()); }
inline std::string device_name() {
  cudaDeviceProp prop;
  CHECK(cudaGetDeviceProperties(&prop, 0));
  return prop.name;
}
constexpr int kWarpSize = 32;
