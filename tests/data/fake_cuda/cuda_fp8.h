// 8-bit floating point for programs that only parse shapes.
#pragma once

struct __nv_fp8_e4m3 {
  signed char value = 0;
  __nv_fp8_e4m3() = default;
  explicit __nv_fp8_e4m3(float number) : value(static_cast<signed char>(number)) {}
  explicit operator float() const { return value; }
};
