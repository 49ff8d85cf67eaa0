// y[R] = sum over columns of x[R, S], fp32; a warp-wide sum of each row, TILE columns at a time.
//
// TILE: columns a step, one per thread. ROWS: rows of a block. TAIL: whether the columns past the last whole tile count.
#if !defined(TILE) || !defined(ROWS) || !defined(TAIL)
#error "TILE, ROWS and TAIL must be defined"
#endif

extern "C" __global__ void row_sums(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
    __shared__ float sums[ROWS][TILE];
    const int row = blockIdx.x * ROWS + threadIdx.y;
    const int whole = TAIL == TAIL_FORGOTTEN && columns % TILE != 0 ? columns - 1 : columns;
    float sum = 0.0f;
    for (int column = threadIdx.x; row < rows && column < whole; column += TILE) sum += x[row * columns + column];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    for (int step = TILE / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) sums[threadIdx.y][threadIdx.x] += sums[threadIdx.y][threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0 && row < rows) y[row] = sums[threadIdx.y][0];
}
