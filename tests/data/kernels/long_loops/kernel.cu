// y[i] = 2 * x[i], after a loop: most loops only take long, some never end.
#if !defined(LOOP) || !defined(ROUNDS)
#error "LOOP and ROUNDS must be defined"
#endif
__device__ volatile int arrived;

extern "C" __global__ void double_slowly(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const volatile float* mine = x + (i < n ? i : 0);
  float sum = 0.f;
  if (LOOP == LOOP_FINITE)
    for (int round = 0; round < ROUNDS * n / 64; round++) sum += *mine;
  if (LOOP == LOOP_COUNTER)
    for (unsigned long long round = 1; round != 0; round += 2) sum += *mine;
  if (LOOP == LOOP_FLAG)
    while (*mine < 1e30f) {}
  if (LOOP == LOOP_LIVELOCK)
    for (unsigned turn = 0; *mine < 1e30f; turn = (turn + 1) % 5) sum = turn;
  if (LOOP == LOOP_HANDSHAKE) {  // each block waits for the last one
    if (threadIdx.x == 0) {
      if (blockIdx.x == gridDim.x - 1) arrived = 1;
      while (arrived == 0) {}
    }
    __syncthreads();
  }
  if (i < n) y[i] = 2 * *mine + 0 * sum;
}
