// Arithmetic of f16 and bf16, alone and in pairs; registers travel as bits.
#define ROW(...) { __VA_ARGS__; out[row++ * count + i] = r; }
#define BEGIN int i = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x, row = 0
#define ONE(op) ROW(unsigned short r; asm volatile(op " %0, %1;" : "=h"(r) : "h"(x)))
#define TWO(op) ROW(unsigned short r; asm volatile(op " %0, %1, %2;" : "=h"(r) : "h"(x), "h"(y)))
#define THREE(op) ROW(unsigned short r; asm volatile(op " %0, %1, %2, %3;" : "=h"(r) : "h"(x), "h"(y), "h"(z)))
#define PAIR1(op) ROW(unsigned r; asm volatile(op " %0, %1;" : "=r"(r) : "r"(x)))
#define PAIR2(op) ROW(unsigned r; asm volatile(op " %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y)))
#define PAIR3(op) ROW(unsigned r; asm volatile(op " %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z)))
#define COMPARE(op) ROW(unsigned short r; asm volatile("{ .reg .pred p; " op " p, %1, %2; selp.u16 %0, 1, 0, p; }" : "=h"(r) : "h"(x), "h"(y)))
#define COMPARE2(op) \
  ROW(unsigned r; asm volatile("{ .reg .pred p, q; " op " p|q, %1, %2; selp.u32 %0, 1, 0, p; @q add.u32 %0, %0, 2; }" : "=r"(r) : "r"(x), "r"(y)))

// launch: grid=12 block=256
// args: out=f16 a=f16:0 b=f16:1 c=f16:2
// same: numbers
extern "C" __global__ void f16(unsigned short* out, const unsigned short* a, const unsigned short* b, const unsigned short* c) {
  BEGIN;
  unsigned short x = a[i], y = b[i], z = c[i];
  TWO("add.rn.f16") TWO("sub.rn.f16") TWO("mul.rn.f16") THREE("fma.rn.f16") TWO("add.rn.ftz.f16") TWO("mul.rn.ftz.f16") THREE("fma.rn.ftz.f16")
  TWO("add.rn.sat.f16") TWO("mul.rn.ftz.sat.f16") THREE("fma.rn.sat.f16") THREE("fma.rn.relu.f16") THREE("fma.rn.ftz.relu.f16") TWO("min.f16")
  TWO("max.f16") TWO("min.ftz.f16") TWO("min.NaN.f16") TWO("max.NaN.f16") TWO("max.xorsign.abs.f16") ONE("abs.f16") ONE("neg.f16")
  ONE("abs.ftz.f16") ONE("neg.ftz.f16")
  COMPARE("setp.eq.f16") COMPARE("setp.lt.f16") COMPARE("setp.neu.f16") COMPARE("setp.geu.f16") COMPARE("setp.ne.f16") COMPARE("setp.lt.ftz.f16")
  COMPARE("setp.nan.f16") TWO("set.lt.f16.f16") TWO("set.geu.ftz.f16.f16") TWO("set.gt.u16.f16")
}

// launch: grid=12 block=256
// args: out=bf16 a=bf16:0 b=bf16:1 c=bf16:2
// same: numbers
extern "C" __global__ void bf16(unsigned short* out, const unsigned short* a, const unsigned short* b, const unsigned short* c) {
  BEGIN;
  unsigned short x = a[i], y = b[i], z = c[i];
  TWO("add.rn.bf16") TWO("sub.rn.bf16") TWO("mul.rn.bf16") THREE("fma.rn.bf16") THREE("fma.rn.relu.bf16") TWO("min.bf16") TWO("max.bf16")
  TWO("min.NaN.bf16") TWO("max.NaN.xorsign.abs.bf16") ONE("abs.bf16") ONE("neg.bf16") COMPARE("setp.lt.bf16") COMPARE("setp.equ.bf16")
  COMPARE("setp.ne.bf16") TWO("set.lt.bf16.bf16")
}

// launch: grid=12 block=256
// args: out=f16*2 a=f16:0*2 b=f16:1*2 c=f16:2*2
// same: numbers
extern "C" __global__ void f16x2(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c) {
  BEGIN;
  unsigned x = a[i], y = b[i], z = c[i];
  PAIR2("add.rn.f16x2") PAIR2("sub.rn.f16x2") PAIR2("mul.rn.f16x2") PAIR3("fma.rn.f16x2") PAIR2("add.rn.ftz.sat.f16x2") PAIR3("fma.rn.relu.f16x2")
  PAIR2("min.f16x2") PAIR2("max.NaN.f16x2") PAIR1("abs.f16x2") PAIR1("neg.f16x2") PAIR2("set.lt.f16x2.f16x2") PAIR2("set.leu.u32.f16x2")
  COMPARE2("setp.gt.f16x2") COMPARE2("setp.neu.f16x2")
}

// launch: grid=12 block=256
// args: out=bf16*2 a=bf16:0*2 b=bf16:1*2 c=bf16:2*2
// same: numbers
extern "C" __global__ void bf16x2(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c) {
  BEGIN;
  unsigned x = a[i], y = b[i], z = c[i];
  PAIR2("add.rn.bf16x2") PAIR2("sub.rn.bf16x2") PAIR2("mul.rn.bf16x2") PAIR3("fma.rn.bf16x2") PAIR3("fma.rn.relu.bf16x2") PAIR2("max.bf16x2")
  PAIR2("min.NaN.bf16x2") PAIR1("abs.bf16x2") PAIR1("neg.bf16x2") PAIR2("set.lt.bf16x2.bf16x2") COMPARE2("setp.gt.bf16x2")
}
