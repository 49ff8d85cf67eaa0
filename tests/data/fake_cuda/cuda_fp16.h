// Half precision for programs that only parse shapes: conversions truncate.
#pragma once
#include <cstdint>

struct __half {
  float value;
};
inline __half __float2half(float value) { return {value}; }
inline float __half2float(__half half) { return half.value; }
