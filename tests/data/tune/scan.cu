// Inclusive prefix sums of rows: each thread adds ITEMS elements, then the block scans the threads' sums.
__global__ void scan(const float* x, float* sums, int columns) {
  extern __shared__ float part[];
  const float* row = x + blockIdx.x * columns;
  float before = 0;
  for (int first = 0; first < columns; first += THREADS * ITEMS) {
    float own[ITEMS], total = 0;
    for (int i = 0; i < ITEMS; i++) {
      const int at = first + threadIdx.x * ITEMS + i;
      own[i] = total += at < columns ? row[at] : 0.f;
    }
    part[threadIdx.x] = total;
    __syncthreads();
    for (int step = 1; step < THREADS; step *= 2) {
      const float left = threadIdx.x >= step ? part[threadIdx.x - step] : 0.f;
      __syncthreads();
      part[threadIdx.x] += left;
      __syncthreads();
    }
    const float left = before + (threadIdx.x > 0 ? part[threadIdx.x - 1] : 0.f);
    for (int i = 0; i < ITEMS; i++) {
      const int at = first + threadIdx.x * ITEMS + i;
      if (at < columns) sums[blockIdx.x * columns + at] = left + own[i];
    }
    before += part[THREADS - 1];
    __syncthreads();
  }
}
