// A transposed matrix through a tile in shared memory; PADDING avoids bank conflicts.
extern "C" __global__ void transpose(const float* __restrict__ in, float* __restrict__ out, int rows, int columns) {
  __shared__ float tile[TILE][TILE + PADDING];
  int x = blockIdx.x * TILE + threadIdx.x;
  for (int j = threadIdx.y; j < TILE; j += ROWS) {
    int y = blockIdx.y * TILE + j;
    if (x < columns && y < rows) tile[j][threadIdx.x] = in[y * columns + x];
  }
  __syncthreads();
  int row = blockIdx.y * TILE + threadIdx.x;
  for (int j = threadIdx.y; j < TILE; j += ROWS) {
    int column = blockIdx.x * TILE + j;
    if (row < rows && column < columns) out[column * rows + row] = tile[threadIdx.x][j];
  }
}
