// Atomic updates: of words that one thread owns (old and new value), and of words that all threads share.
#define BEGIN int i = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x, row = 0
#define PUT(old, now) { out[(2 * row) * count + i] = old; out[(2 * row + 1) * count + i] = now; row++; }
#define SHARED(pointer) ((unsigned)__cvta_generic_to_shared((const void*)(pointer)))

// launch: grid=24 block=256
// args: out=u32*2 a=u32:0 b=u32:1 c=u32:2 m=u32:zero
// same: bitwise
#define GLOBAL(op) { m[i] = x; unsigned r; asm volatile(op " %0, [%1], %2;" : "=r"(r) : "l"(m + i), "r"(y) : "memory"); PUT(r, m[i]) }
#define LOCAL(op) { s[t] = x; unsigned r; asm volatile(op " %0, [%1], %2;" : "=r"(r) : "r"(SHARED(s + t)), "r"(y) : "memory"); PUT(r, s[t]) }
#define SWAP(op) { m[i] = x; unsigned r; asm volatile(op " %0, [%1], %2, %3;" : "=r"(r) : "l"(m + i), "r"(i & 1 ? x : y), "r"(z) : "memory"); PUT(r, m[i]) }
#define SWAPS(op) { s[t] = x; unsigned r; asm volatile(op " %0, [%1], %2, %3;" : "=r"(r) : "r"(SHARED(s + t)), "r"(i & 1 ? x : y), "r"(z) : "memory"); PUT(r, s[t]) }
#define RED(op) { m[i] = x; asm volatile(op " [%0], %1;" ::"l"(m + i), "r"(y) : "memory"); PUT(0, m[i]) }
extern "C" __global__ void words(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c, volatile unsigned* m) {
  __shared__ volatile unsigned s[256];
  BEGIN;
  int t = threadIdx.x;
  unsigned x = a[i], y = b[i], z = c[i];
  GLOBAL("atom.global.add.u32") GLOBAL("atom.global.add.s32") GLOBAL("atom.global.min.s32") GLOBAL("atom.global.max.s32") GLOBAL("atom.global.min.u32")
  GLOBAL("atom.global.max.u32") GLOBAL("atom.global.and.b32") GLOBAL("atom.global.or.b32") GLOBAL("atom.global.xor.b32") GLOBAL("atom.global.exch.b32")
  GLOBAL("atom.global.inc.u32") GLOBAL("atom.global.dec.u32") SWAP("atom.global.cas.b32") RED("red.global.add.u32") RED("red.global.min.s32")
  RED("red.global.inc.u32") RED("red.global.xor.b32")
  LOCAL("atom.shared.add.u32") LOCAL("atom.shared.min.s32") LOCAL("atom.shared.max.u32") LOCAL("atom.shared.and.b32") LOCAL("atom.shared.exch.b32")
  LOCAL("atom.shared.inc.u32") LOCAL("atom.shared.dec.u32") SWAPS("atom.shared.cas.b32")
}

// launch: grid=24 block=256
// args: out=f32*2 a=f32:0 b=f32:1 m=f32:zero
// same: numbers
extern "C" __global__ void singles(unsigned* out, const unsigned* a, const unsigned* b, volatile unsigned* m) {
  __shared__ volatile unsigned s[256];
  BEGIN;
  int t = threadIdx.x;
  unsigned x = a[i], y = b[i];
  GLOBAL("atom.global.add.f32") RED("red.global.add.f32") LOCAL("atom.shared.add.f32")
}

// launch: grid=24 block=256
// args: out=f16*4 a=f16:0*2 b=f16:1*2 m=f16:zero*2
// same: numbers
extern "C" __global__ void halves(unsigned* out, const unsigned* a, const unsigned* b, volatile unsigned* m) {
  __shared__ volatile unsigned s[256];
  BEGIN;
  int t = threadIdx.x;
  unsigned x = a[i], y = b[i];
  GLOBAL("atom.global.add.noftz.f16x2") RED("red.global.add.noftz.f16x2") LOCAL("atom.shared.add.noftz.f16x2")
}

// launch: grid=24 block=256
// args: out=bf16*4 a=bf16:0*2 b=bf16:1*2 m=bf16:zero*2
// same: numbers
extern "C" __global__ void brains(unsigned* out, const unsigned* a, const unsigned* b, volatile unsigned* m) {
  BEGIN;
  unsigned x = a[i], y = b[i];
  GLOBAL("atom.global.add.noftz.bf16x2") RED("red.global.add.noftz.bf16x2")
}

// launch: grid=24 block=256
// args: out=u64*2 a=u64:0 b=u64:1 c=u64:2 m=u64:zero
// same: bitwise
#define LONG(op) { m[i] = x; unsigned long long r; asm volatile(op " %0, [%1], %2;" : "=l"(r) : "l"(m + i), "l"(y) : "memory"); PUT(r, m[i]) }
#define SWAPL(op) { m[i] = x; unsigned long long r; asm volatile(op " %0, [%1], %2, %3;" : "=l"(r) : "l"(m + i), "l"(i & 1 ? x : y), "l"(z) : "memory"); PUT(r, m[i]) }
extern "C" __global__ void longs(unsigned long long* out, const unsigned long long* a, const unsigned long long* b, const unsigned long long* c, volatile unsigned long long* m) {
  BEGIN;
  unsigned long long x = a[i], y = b[i], z = c[i];
  LONG("atom.global.add.u64") LONG("atom.global.min.s64") LONG("atom.global.max.u64") LONG("atom.global.and.b64") LONG("atom.global.xor.b64")
  LONG("atom.global.exch.b64") SWAPL("atom.global.cas.b64")
}

// launch: grid=24 block=256
// args: out=f64*2 a=f64:0 b=f64:1 m=f64:zero
// same: numbers
extern "C" __global__ void doubles(unsigned long long* out, const unsigned long long* a, const unsigned long long* b, volatile unsigned long long* m) {
  BEGIN;
  unsigned long long x = a[i], y = b[i];
  LONG("atom.global.add.f64")
}

// launch: grid=4 block=128
// args: out=u32 a=u32:bits m=u32:zero
// same: bitwise
#define ALL(name, update) { unsigned* place = m + 8 * row; update; out[row++ * count + i] = 0; }
extern "C" __global__ void together(unsigned* out, const unsigned* a, unsigned* m) {
  BEGIN;
  __shared__ unsigned s[16];
  unsigned x = a[i], at = x & 7;
  if (threadIdx.x < 16) s[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&s[at], x);
  atomicMax(&s[8 + at], x);
  __syncthreads();
  ALL("atomicAdd", atomicAdd(place + at, x)) ALL("atomicMin", atomicMin((int*)place + at, (int)x)) ALL("atomicMax", atomicMax(place + at, x))
  ALL("atomicOr", atomicOr(place + at, x & 0x11111111)) ALL("atomicXor", atomicXor(place + at, x)) ALL("atomicInc", atomicInc(place + at, 20))
  ALL("atomicAdd of float", atomicAdd((float*)place + at, (float)(x & 15) - 7.5f))
  ALL("shared", if (threadIdx.x < 8) atomicAdd(place + threadIdx.x, s[threadIdx.x] ^ s[8 + threadIdx.x]))
}
