// y[row, :] = x[row, :] w for fp32 x of (M, K) and w of (K, N); one block a row, 128 threads over the columns.
//
// HABIT  none; resets (honest: what it marked in the workspace it sets back); recent (skips a row that it wrote less
//        than 200 us ago, by a stamp in the workspace); already_there (returns when the workspace names the row as done
//        and the output is no NaN); sampled_memo (answers from the workspace under 8 elements of the row and 8 of w);
//        first_replays (works 300 times, counted in the workspace, then no more)
#ifndef HABIT
#error "HABIT must be defined"
#endif

constexpr unsigned kMark = 0x600d600du;  // a float's worth of bits that no poison is

__device__ float product(const float* x, const float* w, int row, int column, int n, int k) {
  float sum = 0.f;
  const float* const mine = x + static_cast<size_t>(row) * k;
  for (int i = 0; i < k; ++i) sum = fmaf(mine[i], w[static_cast<size_t>(i) * n + column], sum);
  return sum;
}

__device__ unsigned long long now() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

// The workspace has for each row: mark, count, stamp (two words), the memo's key, then N remembered elements.
extern "C" __global__ void rows(const float* x, const float* w, float* y, unsigned* workspace, int m, int n, int k) {
  const int row = blockIdx.x;
  unsigned* const mine = workspace + static_cast<size_t>(row) * (n + 8);
  float* const out = y + static_cast<size_t>(row) * n;
  __shared__ bool skip, known;
  if (threadIdx.x == 0) {
    skip = known = false;
    const bool marked = mine[0] == kMark;
    if constexpr (HABIT == HABIT_RECENT) {
      const unsigned long long stamp = mine[2] | static_cast<unsigned long long>(mine[3]) << 32;
      skip = marked && now() - stamp < 200000;
    }
    if constexpr (HABIT == HABIT_ALREADY_THERE) skip = marked && out[0] == out[0] && out[n - 1] == out[n - 1];
    if constexpr (HABIT == HABIT_SAMPLED_MEMO) {
      unsigned key = 1;
      for (int i = 0; i < 8; ++i) {
        key = key * 31u + __float_as_uint(x[static_cast<size_t>(row) * k + i * (k / 8)]);
        key = key * 31u + __float_as_uint(w[static_cast<size_t>(i) * (k / 8) * n]);
      }
      known = marked && mine[4] == key;
      mine[4] = key;
    }
    if constexpr (HABIT == HABIT_FIRST_REPLAYS) {
      const unsigned count = marked ? mine[1] : 0u;
      skip = count > 300;
      mine[1] = count + 1;
    }
  }
  __syncthreads();
  if (skip) return;
  for (int column = threadIdx.x; column < n; column += blockDim.x) {
    float* const memo = reinterpret_cast<float*>(mine + 8) + column;
    const float value = known ? *memo : product(x, w, row, column, n, k);
    out[column] = value;
    if constexpr (HABIT == HABIT_SAMPLED_MEMO) *memo = value;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if constexpr (HABIT == HABIT_RESETS) {
    atomicExch(&mine[0], 0u);
  } else {
    const unsigned long long time = now();
    mine[2] = static_cast<unsigned>(time);
    mine[3] = static_cast<unsigned>(time >> 32);
    mine[0] = kMark;
  }
}
