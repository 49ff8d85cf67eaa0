// y = 2x, one element a thread. THREADS: threads of a block. BOUND: what the source promises about the block; the
// bound behind the #if is known to the compiler alone.
#if !defined(THREADS) || !defined(BOUND)
#error "THREADS and BOUND must be defined"
#endif
#if BOUND == 0
#define PROMISE
#elif BOUND == 1
#define PROMISE __launch_bounds__(256)
#else
#define PROMISE __block_size__((128, 1, 1))
#endif

extern "C" __global__ void PROMISE bounded(const float* x, float* y, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) y[i] = 2.f * x[i];
}
