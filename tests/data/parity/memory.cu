// Loads and stores of all widths, local memory, calls, tables and control flow.
#define ROW(name, ...) { unsigned r; __VA_ARGS__; out[row++ * count + i] = r; }
#define BEGIN int i = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x, row = 0

__constant__ int weights[8] = {3, -1, 4, 1, -5, 9, 2, -6};
__device__ unsigned seeds[4] = {1, 10, 100, 1000};
struct Entry {
  short key;
  double value;
  unsigned char tag[3];
};
__device__ __noinline__ unsigned mixed(Entry e, const unsigned* table) { return table[e.tag[1] & 7] ^ (unsigned)e.key + (unsigned)(int)e.value; }
__device__ unsigned twice(unsigned x) { return 2 * x + 1; }
__device__ unsigned folded(unsigned x) { return x ^ x >> 16; }
typedef unsigned (*Function)(unsigned);
__device__ Function functions[2] = {twice, folded};

// launch: grid=4 block=128
// args: out=u32 a=u32:bits*4
// same: bitwise
extern "C" __global__ void memory(unsigned* out, const unsigned* a) {
  BEGIN;
  unsigned x = a[i];
  ROW("signed bytes", r = ((const signed char*)a)[i] + 1)
  ROW("unsigned shorts", r = ((const unsigned short*)a)[i] * 3)
  ROW("vectors", uint4 v = ((const uint4*)a)[i]; r = v.x ^ v.y * 3 ^ v.z * 5 ^ v.w * 7)
  ROW("read-only path", r = __ldg(a + (i * 7) % count))
  ROW("constants", r = weights[x & 7] * (int)seeds[x >> 3 & 3])
  ROW("local words", unsigned s[16]; for (int k = 0; k < 16; k++) s[k] = a[(i + k) % count]; for (int k = 0; k < 16; k++) s[s[k] & 15] += s[k] >> 4; r = s[x & 15])
  ROW("local bytes", unsigned char s[24]; for (int k = 0; k < 24; k++) s[k] = x >> k; for (int k = 0; k < 16; k++) s[s[k] % 24] ^= k; r = *(unsigned*)(s + (x & 4)))
  ROW("structures by value", Entry e; e.key = x; e.value = (int)x * 0.5; e.tag[1] = x >> 9; r = mixed(e, a))
  ROW("functions by pointer", r = functions[x >> 7 & 1](x))
  ROW("switch", switch (x % 9) { case 0: r = 5; break; case 1: r = x; break; case 2: r = x / 3; break; case 3: r = ~x; break; case 5: r = x * x; break; case 6: r = 1; break; default: r = x % 7; })
  ROW("loops", r = 0; for (unsigned k = x & 31; k; k -= k & 1 ? 1 : k / 2) { r = r * 5 + k; if (r % 11 == 3) break; })
  ROW("shared", __shared__ unsigned char s[128]; s[threadIdx.x] = x; __syncthreads(); r = s[(threadIdx.x * 37 + 5) % 128])
}

// launch: grid=1 block=2
// args: out=u32 a=u32:iota
// same: printed
extern "C" __global__ void print(unsigned* out, const unsigned* a) {
  BEGIN;
  ROW("printf", r = printf("thread %u of %s: %6.2f %+d %c %#x %lld%% %e|%-5d|%05d\n", a[i], "block", 1.5 * i, -7 * i, 'z', 255, 1LL << 40, 1e-9, i, i))
}
