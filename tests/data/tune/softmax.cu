// Softmax of each row; one warp for each row, WARPS rows for each block.
__global__ void softmax(const float* x, float* y, int rows, int columns) {
  const int row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float most = -INFINITY, total = 0;
  for (int i = lane; i < columns; i += 32) most = fmaxf(most, x[row * columns + i]);
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  for (int i = lane; i < columns; i += 32) total += expf(x[row * columns + i] - most);
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);
#pragma unroll UNROLL
  for (int i = lane; i < columns; i += 32) y[row * columns + i] = expf(x[row * columns + i] - most) / total;
}
