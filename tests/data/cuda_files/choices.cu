// Vector scaling with choices: what `specialize` has to take apart.
//
//   LOADS   how x is read: one by one, or four at a time
//   TILE    elements of a block

#if !defined(LOADS) || !defined(TILE)
#error "define LOADS and TILE"
#endif
#ifndef SCALE
#define SCALE 2
#endif
#ifdef DEBUG
#include <cstdio>
#endif

namespace choices {

struct Plan {
  int tile, threads;
  bool vector;
};
__host__ __device__ constexpr int least(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int per_thread(Plan p) {
  const int width = p.vector ? 4 : 1;
  if (p.tile < p.threads * width) return 1;
  return p.tile / (p.threads * width);
}
constexpr Plan PLAN = {TILE, least(TILE, 128), LOADS == LOADS_VECTOR};
constexpr int THREADS = PLAN.threads;   // threads of a block
constexpr int WIDTH = LOADS == LOADS_VECTOR ? 4 : 1;
constexpr int STEPS = TILE / THREADS;   // elements of a thread
constexpr bool UNUSED_CHOICE = TILE > 4096;
enum { kNone, kSome = 3 };

static_assert(TILE % 32 == 0, "whole warps");

// Only the vector path needs this.
__device__ __forceinline__ float4 four(const float* x) { return *reinterpret_cast<const float4*>(x); }
__device__ __forceinline__ float one(const float* x) { return *x; }
template <int TILE_SHADOW>
__device__ float shadowed(float x) {
  if constexpr (TILE_SHADOW > 64) return x; else return -x;
}

}  // namespace choices

using namespace choices;

extern "C" __global__ void __launch_bounds__(least(TILE, 128)) scale(const float* x, float* y, int n) {
  const int base = blockIdx.x * TILE + threadIdx.x * per_thread(PLAN) * WIDTH;
  const int first = LOADS == LOADS_VECTOR ? base / 4 * 4 : base;
  float held[LOADS == LOADS_VECTOR ? 4 : 1];
#pragma unroll
  for (int i = 0; i < per_thread(PLAN); ++i) {
    const int at = first + i * WIDTH;
    if (at >= n) break;
    // How x is read.
    if constexpr (LOADS == LOADS_VECTOR) {  // four at a time
      const float4 v = four(x + at);
      held[0] = v.x, held[1] = v.y, held[2] = v.z, held[3] = v.w;
    } else if constexpr (LOADS == LOADS_SCALAR) {
      held[0] = one(x + at);
    } else {
      held[0] = 0.f;
    }
    if constexpr (kSome > 2 && TILE >= 4096) {
      __syncthreads();
    }
    auto store = [&](int offset, float value) {
      if constexpr (SCALE == 2) y[at + offset] = value + value;
      else y[at + offset] = value * SCALE;
    };
    for (int w = 0; w < WIDTH; ++w) store(w, shadowed<TILE>(held[w]));
  }
}

// A second kernel, launched by some choices only.
__global__ void finish(float* y) {
#if TILE > 64
  y[0] = STEPS;
#else
  y[0] = 0.f;
#endif
}
