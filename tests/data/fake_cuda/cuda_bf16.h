// bfloat16 for programs that only parse shapes: conversions keep the float.
#pragma once

struct __nv_bfloat16 {
  float value;
};
inline __nv_bfloat16 __float2bfloat16(float value) { return {value}; }
inline float __bfloat162float(__nv_bfloat16 brain) { return brain.value; }
