// The sum of each row: a block adds a row with shared memory.
__global__ void row_sums(const float* x, float* sums, int columns) {
  __shared__ float part[BLOCK];
  float total = 0;
  for (int i = threadIdx.x; i < columns; i += BLOCK) total += x[blockIdx.x * columns + i];
  part[threadIdx.x] = total;
  for (int half = BLOCK / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}
