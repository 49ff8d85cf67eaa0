// C = A B for row-major matrices whose extents are multiples of the tiles.
template <int TILE_M, int TILE_N, int TILE_K>
__global__ void gemm(const float* a, const float* b, float* c, int n, int k) {
  __shared__ float left[TILE_M][TILE_K], right[TILE_K][TILE_N];
  const int row = blockIdx.y * TILE_M, column = blockIdx.x * TILE_N, threads = blockDim.x;
  float sums[TILE_M * TILE_N / THREADS] = {};
  for (int first = 0; first < k; first += TILE_K) {
    for (int i = threadIdx.x; i < TILE_M * TILE_K; i += threads)
      left[i / TILE_K][i % TILE_K] = a[(row + i / TILE_K) * k + first + i % TILE_K];
    for (int i = threadIdx.x; i < TILE_K * TILE_N; i += threads)
      right[i / TILE_N][i % TILE_N] = b[(first + i / TILE_N) * n + column + i % TILE_N];
    __syncthreads();
    for (int each = 0; each < TILE_M * TILE_N / THREADS; each++) {
      const int place = threadIdx.x + each * THREADS;
      for (int i = 0; i < TILE_K; i++) sums[each] += left[place / TILE_N][i] * right[i][place % TILE_N];
    }
    __syncthreads();
  }
  for (int each = 0; each < TILE_M * TILE_N / THREADS; each++) {
    const int place = threadIdx.x + each * THREADS;
    c[(row + place / TILE_N) * n + column + place % TILE_N] = sums[each];
  }
}
