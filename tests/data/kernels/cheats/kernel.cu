// y[i] = 2 x[i] for N <= 4096 floats, N a multiple of 128.
//
// CHEAT  none; skip_when_written (leaves an output alone that holds a number); remember_by_address (repeats the answer
//        that it gave for this address of x before); remember_by_sample (repeats the answer that it gave for an x that
//        began like this one); only_first_launches (works 30 times, then no more)
#ifndef CHEAT
#error "CHEAT must be defined"
#endif

constexpr int kSlots = 32;
__device__ const float* known[kSlots];
__device__ float first_elements[kSlots];
__device__ float answers[kSlots][4096];
__device__ int launches[32];

extern "C" __global__ void twice(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if constexpr (CHEAT == CHEAT_SKIP_WHEN_WRITTEN) {
    if (y[i] == y[i]) return;
  }
  if constexpr (CHEAT == CHEAT_REMEMBER_BY_ADDRESS) {
    for (int slot = 0; slot < kSlots; ++slot) {
      if (known[slot] == x && answers[slot][i] != 0.f) {
        y[i] = answers[slot][i];
        return;
      }
      if (known[slot] == nullptr || known[slot] == x) {
        known[slot] = x;
        answers[slot][i] = 2.f * x[i];
        break;
      }
    }
  }
  if constexpr (CHEAT == CHEAT_REMEMBER_BY_SAMPLE) {
    for (int slot = 0; slot < kSlots; ++slot) {
      if (first_elements[slot] == x[0] && answers[slot][i] != 0.f) {
        y[i] = answers[slot][i];
        return;
      }
      if (first_elements[slot] == 0.f || first_elements[slot] == x[0]) {
        first_elements[slot] = x[0];
        answers[slot][i] = 2.f * x[i];
        break;
      }
    }
  }
  if constexpr (CHEAT == CHEAT_ONLY_FIRST_LAUNCHES) {
    if (launches[blockIdx.x] > 30) return;
    __syncthreads();
    if (threadIdx.x == 0) ++launches[blockIdx.x];
  }
  y[i] = 2.f * x[i];
}
