// Small kernels of plain CUDA for the tests of the PTX machine; no headers.
extern "C" __global__ void saxpy(float* y, const float* __restrict__ x, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

#define T 16
extern "C" __global__ void matmul(float* C, const float* A, const float* B, int n) {
  __shared__ float a[T][T], b[T][T];
  int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * T + ty, column = blockIdx.x * T + tx;
  float sum = 0;
  for (int k = 0; k < n; k += T) {
    a[ty][tx] = A[row * n + k + tx];
    b[ty][tx] = B[(k + ty) * n + column];
    __syncthreads();
    for (int j = 0; j < T; j++) sum += a[ty][j] * b[j][tx];
    __syncthreads();
  }
  C[row * n + column] = sum;
}

extern "C" __global__ void reduction(float* out, const float* x, int n) {
  __shared__ float s[256];
  float v = 0;
  for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += blockDim.x * gridDim.x) v += x[i];
  s[threadIdx.x] = v;
  __syncthreads();
  for (int o = 128; o > 0; o >>= 1) {
    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = s[0];
}

extern "C" __global__ void table(int* x, int n) {
  int i = threadIdx.x, v = x[i];
  switch (v) {
    case 0: v = 3; break;
    case 1: v = v * 7; break;
    case 2: v += n; break;
    case 3: v = n / (v + 1); break;
    case 4: v = 9; break;
    case 5: v = v * v; break;
    case 6: v = n - v; break;
    case 7: v = n ^ v; break;
    default: v = -1;
  }
  x[i] = v;
}

extern "C" __global__ void collatz(int* steps) {
  int v = threadIdx.x + 1, n = 0;
  while (v != 1) {
    v = v & 1 ? 3 * v + 1 : v / 2;
    n++;
  }
  steps[threadIdx.x] = n;
}

__device__ __noinline__ float2 turned(float2 v, int quarter, const float* table) {
  if (quarter & 1) return make_float2(-v.y * table[0], v.x * table[1]);
  return make_float2(v.x, v.y);
}
extern "C" __global__ void calls(float* out, const float* in) {
  float scale[2] = {in[0], in[1]};
  float2 r = turned(make_float2(in[threadIdx.x], 1.0f), threadIdx.x, scale);
  out[threadIdx.x] = r.x + 2 * r.y;
}

__device__ float twice(float x) { return x * 2; }
__device__ float squared(float x) { return x * x; }
typedef float (*Function)(float);
__device__ Function functions[2] = {twice, squared};
extern "C" __global__ void indirect(float* x) { x[threadIdx.x] = functions[threadIdx.x & 1](x[threadIdx.x]); }

__device__ int below(int n) { return n < 2 ? n : below(n - 1) + below(n - 2); }
extern "C" __global__ void recursive(int* x) { x[threadIdx.x] = below(x[threadIdx.x]); }

__constant__ float weights[4] = {1.5f, -2.0f, 0.25f, 8.0f};
__device__ int counter = 40;
__device__ const char* names[2] = {"even", "odd"};
struct Pair {
  int a[3];
  double b;
};
extern "C" __global__ void data(double* out, Pair p, int step) {
  int i = threadIdx.x;
  out[i] = weights[i & 3] + p.a[i % 3] * p.b + names[i & 1][0];
  if (i == 0) counter += step;
  __syncthreads();
  if (i == 31) out[31] = counter;
}

extern "C" __global__ void print(int n) {
  if (threadIdx.x < n) printf("thread %d of %s: %5.2f %c %x %lld%%\n", threadIdx.x, "block", 1.5 * threadIdx.x, 'z', 255, 1LL << 40);
}

extern "C" __global__ void integers(int* x, long long* l, const int* y, int n) {
  int i = threadIdx.x, a = y[i], b = y[i + 1];
  unsigned u = a, w = b;
  long long p = (long long)a * b;
  unsigned long long q = (unsigned long long)p;
  int k = 0;
#define PUT(e) x[32 * k++ + i] = (int)(e)
  PUT(a / (b | 1)); PUT(a % (b | 1)); PUT(u / (w | 1)); PUT(u % (w | 1)); PUT(__mulhi(a, b)); PUT(__umulhi(u, w));
  PUT(__popc(a)); PUT(__clz(a)); PUT(__ffs(a)); PUT(__brev(a)); PUT(__byte_perm(a, b, 0x3715)); PUT(__byte_perm(a, b, b));
  PUT(__funnelshift_l(a, b, n)); PUT(__funnelshift_rc(a, b, 40)); PUT(__dp4a(a, b, n)); PUT(__usad(u, w, n)); PUT(min(a, b));
  PUT(max(u, w)); PUT(abs(a)); PUT(a << (b & 31)); PUT(a >> (b & 31)); PUT(u >> (b & 31)); PUT((a ^ b) & (n | ~a)); PUT(__mul24(a, b));
  PUT(__vabsdiffu4(a, b)); PUT(__vadd4(a, b)); PUT(__vmaxs2(a, b)); PUT(__vavgu4(a, b));
  k = 0;
#define PUTL(e) l[32 * k++ + i] = (long long)(e)
  PUTL(p); PUTL(p / (b | 3)); PUTL(p % (a | 5)); PUTL(__mul64hi(p, p + 7)); PUTL(__umul64hi(q, q + 9)); PUTL(p >> n); PUTL(q << n);
  PUTL(__clzll(p)); PUTL(__popcll(p)); PUTL(__ffsll(p)); PUTL(__brevll(p)); PUTL(q >> n);
}

extern "C" __global__ void floats(float* x, double* d, const float* y) {
  int i = threadIdx.x, k = 0;
  float v = y[i], w = y[i + 1];
  double e = v;
#undef PUT
#define PUT(e) x[32 * k++ + i] = (e)
  PUT(v + w); PUT(v * w); PUT(v / w); PUT(fmaf(v, w, v)); PUT(sqrtf(fabsf(v))); PUT(1.0f / v); PUT(__fadd_ru(v, w)); PUT(__fmul_rd(v, w));
  PUT(__fmaf_rz(v, w, w)); PUT(__fsqrt_ru(fabsf(v))); PUT(floorf(v)); PUT(rintf(v)); PUT(truncf(v)); PUT(ceilf(v)); PUT(fminf(v, w));
  PUT(fmaxf(v, w)); PUT(copysignf(v, w)); PUT((float)(int)v); PUT((float)(unsigned)__float2uint_rn(fabsf(w))); PUT((float)__float2ll_rd(v));
  k = 0;
#undef PUT
#define PUT(f) d[32 * k++ + i] = (f)
  PUT(e / 3.0); PUT(fma(e, e, 0.1)); PUT(sqrt(fabs(e))); PUT(e * w); PUT(floor(e)); PUT((double)(long long)(e * 1e10)); PUT(fmin(e, 0.5));
  PUT(__ddiv_rz(e, 7.0));
}

extern "C" __global__ void library(float* x, double* d, const float* y) {
  int i = threadIdx.x, k = 0;
  float v = y[i];
  double e = v;
#undef PUT
#define PUT(e) x[32 * k++ + i] = (e)
  PUT(sinf(v)); PUT(cosf(v)); PUT(tanf(v)); PUT(expf(v)); PUT(logf(fabsf(v))); PUT(powf(fabsf(v), 1.7f)); PUT(erff(v)); PUT(tanhf(v));
  PUT(rsqrtf(fabsf(v))); PUT(cbrtf(v)); PUT(atan2f(v, 2.0f)); PUT(exp2f(v)); PUT(sinf(1e6f * v)); PUT(fmodf(v, 0.3f)); PUT(lgammaf(fabsf(v) + 1));
  k = 0;
#undef PUT
#define PUT(f) d[32 * k++ + i] = (f)
  PUT(sin(e)); PUT(exp(e)); PUT(log(fabs(e))); PUT(pow(fabs(e), 2.5)); PUT(tanh(e)); PUT(erf(e));
}

extern "C" __global__ void warps(unsigned* x) {
  int i = threadIdx.x, k = 0, agreed;
#undef PUT
#define PUT(e) x[64 * k++ + i] = (e)
  PUT(__ballot_sync(~0u, i % 3 == 0)); PUT(__any_sync(~0u, i > 40)); PUT(__all_sync(~0u, i < 32)); PUT(__match_any_sync(~0u, i / 4));
  PUT(__match_all_sync(~0u, i / 32, &agreed) + agreed); PUT(__reduce_add_sync(~0u, i)); PUT(__reduce_max_sync(~0u, (unsigned)i));
  PUT(__shfl_up_sync(~0u, i, 3)); PUT(__shfl_down_sync(~0u, i, 5, 8)); PUT(__shfl_sync(~0u, i, i * 7)); PUT(__shfl_xor_sync(~0u, i, 6, 16));
  PUT(__syncthreads_count(i & 1)); PUT(__syncthreads_or(i == 3)); PUT(__syncthreads_and(i < 9)); PUT(__activemask());
  unsigned inside = 0;
  if (i & 1) inside = __activemask();
  PUT(inside);
}

extern "C" __global__ void atomics(int* n, float* f, double* d, unsigned long long* q) {
  int i = threadIdx.x;
  __shared__ int s[4];
  if (i < 4) s[i] = 0;
  __syncthreads();
  atomicAdd(&s[i & 3], i);
  __syncthreads();
  n[16 + i] = atomicAdd(&n[0], s[i & 3]);
  atomicExch(&n[1], i);
  atomicCAS(&n[2], 0, i + 7);
  atomicInc((unsigned*)&n[3], 5);
  atomicDec((unsigned*)&n[4], 9);
  atomicMin(&n[5], -i);
  atomicOr(&n[6], 1 << (i & 31));
  atomicXor(&n[7], i);
  atomicAnd(&n[8], ~i);
  atomicMax(&n[9], i);
  atomicAdd(f, 0.5f);
  atomicAdd(d, 0.25);
  atomicAdd(q, 1ull << 33);
  atomicMax(q + 1, (unsigned long long)i);
}

extern "C" __global__ void spinlock(int* out) {
  __shared__ int lock, count;
  if (threadIdx.x == 0) lock = count = 0;
  __syncthreads();
  bool done = false;
  while (!done) {
    if (atomicCAS(&lock, 0, 1) == 0) {
      volatile int* shared_count = &count;
      *shared_count = *shared_count + 1;
      __threadfence_block();
      atomicExch(&lock, 0);
      done = true;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) *out = count;
}

extern "C" __global__ void last_block(float* total, float* partial, unsigned* arrived) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = blockIdx.x + 1.0f;
    __threadfence();
    last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    __threadfence();
    float sum = 0;
    for (int b = 0; b < gridDim.x; b++) sum += partial[b];
    *total = sum;
  }
}

extern "C" __global__ void conflicts(float* out, int stride) {
  __shared__ float s[32 * 33];
  for (int i = threadIdx.x; i < 32 * 33; i += 32) s[i] = i;
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x * stride];
}
