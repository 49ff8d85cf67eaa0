// y[i] = 2 * x[i], with faults on request: a study over FAULT x VARIANT must record each for what it is.
//
//   x, y    float [n]
//   FAULT   none, out_of_bounds and misaligned (crash), endless (never ends), wrong and nan (wrong answers)
//   VARIANT makes the machine code of each candidate its own, so that none is a duplicate

#if !defined(FAULT) || !defined(VARIANT)
#error "FAULT and VARIANT must be defined"
#endif

extern "C" __global__ void twice(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float result = 2.f * x[i];
  if constexpr (FAULT == FAULT_WRONG) result += 1.f + VARIANT;
  if constexpr (FAULT == FAULT_NAN) result = i % 32 == VARIANT ? __int_as_float(0x7fc00000) : result;
  if constexpr (FAULT == FAULT_OUT_OF_BOUNDS) y[i + (1ll << (32 + VARIANT))] = result;
  if constexpr (FAULT == FAULT_MISALIGNED) {
    *reinterpret_cast<float2*>(reinterpret_cast<char*>(y) + 4 + 8 * VARIANT) = make_float2(result, result);
    return;
  }
  if constexpr (FAULT == FAULT_ENDLESS) {
    volatile float* flag = y;
    while (flag[i] != 3.f + VARIANT) flag[i] = 0.f;
  }
  if constexpr (FAULT == FAULT_NONE) result = result * (VARIANT + 1.f) / (VARIANT + 1.f);
  y[i] = result;
}
