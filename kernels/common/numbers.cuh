// Arithmetic of sizes.
#pragma once

__device__ constexpr int at_most(int a, int b) { return a < b ? a : b; }
__device__ constexpr int at_least(int a, int b) { return a > b ? a : b; }
__device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
