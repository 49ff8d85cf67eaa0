// Floating-point arithmetic of 32 and 64 bits, in every rounding mode; registers travel as bits.
#define ROW(...) { __VA_ARGS__; out[row++ * count + i] = r; }
#define BEGIN int i = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x, row = 0

// launch: grid=24 block=256
// args: out=f32 a=f32:0 b=f32:1 c=f32:2
// same: numbers
#define ONE(op) ROW(unsigned r; asm volatile(op " %0, %1;" : "=r"(r) : "r"(x)))
#define TWO(op) ROW(unsigned r; asm volatile(op " %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y)))
#define THREE(op) ROW(unsigned r; asm volatile(op " %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z)))
extern "C" __global__ void singles(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c) {
  BEGIN;
  unsigned x = a[i], y = b[i], z = c[i];
  TWO("add.rn.f32") TWO("add.rz.f32") TWO("add.rm.f32") TWO("add.rp.f32") TWO("add.rn.ftz.f32") TWO("add.rz.ftz.f32") TWO("add.rn.sat.f32")
  TWO("add.rn.ftz.sat.f32") TWO("sub.rn.f32") TWO("sub.rm.f32") TWO("sub.rp.ftz.f32") TWO("mul.rn.f32") TWO("mul.rz.f32") TWO("mul.rm.f32")
  TWO("mul.rp.f32") TWO("mul.rn.ftz.f32") TWO("mul.rp.ftz.f32") TWO("mul.rn.sat.f32") THREE("fma.rn.f32") THREE("fma.rz.f32") THREE("fma.rm.f32")
  THREE("fma.rp.f32") THREE("fma.rn.ftz.f32") THREE("fma.rz.ftz.f32") THREE("fma.rn.sat.f32") THREE("fma.rn.ftz.sat.f32")
  TWO("div.rn.f32") TWO("div.rz.f32") TWO("div.rm.f32") TWO("div.rp.f32") TWO("div.rn.ftz.f32") ONE("rcp.rn.f32") ONE("rcp.rz.f32")
  ONE("rcp.rm.f32") ONE("rcp.rp.f32") ONE("rcp.rn.ftz.f32") ONE("sqrt.rn.f32") ONE("sqrt.rz.f32") ONE("sqrt.rm.f32") ONE("sqrt.rp.f32")
  ONE("sqrt.rn.ftz.f32") TWO("min.f32") TWO("max.f32") TWO("min.ftz.f32") TWO("max.ftz.f32") TWO("min.NaN.f32") TWO("max.NaN.f32")
  TWO("min.xorsign.abs.f32") TWO("max.NaN.xorsign.abs.f32") TWO("copysign.f32")
  ONE("abs.f32") ONE("neg.f32") ONE("abs.ftz.f32") ONE("neg.ftz.f32") THREE("slct.f32.f32") THREE("slct.ftz.u32.f32")
}

// launch: grid=24 block=256
// args: out=f64 a=f64:0 b=f64:1 c=f64:2
// same: numbers
#define ONE64(op) ROW(unsigned long long r; asm volatile(op " %0, %1;" : "=l"(r) : "l"(x)))
#define TWO64(op) ROW(unsigned long long r; asm volatile(op " %0, %1, %2;" : "=l"(r) : "l"(x), "l"(y)))
#define THREE64(op) ROW(unsigned long long r; asm volatile(op " %0, %1, %2, %3;" : "=l"(r) : "l"(x), "l"(y), "l"(z)))
extern "C" __global__ void doubles(unsigned long long* out, const unsigned long long* a, const unsigned long long* b, const unsigned long long* c) {
  BEGIN;
  unsigned long long x = a[i], y = b[i], z = c[i];
  TWO64("add.rn.f64") TWO64("add.rz.f64") TWO64("add.rm.f64") TWO64("add.rp.f64") TWO64("sub.rn.f64") TWO64("sub.rm.f64") TWO64("mul.rn.f64")
  TWO64("mul.rz.f64") TWO64("mul.rm.f64") TWO64("mul.rp.f64") THREE64("fma.rn.f64") THREE64("fma.rz.f64") THREE64("fma.rm.f64")
  THREE64("fma.rp.f64") TWO64("div.rn.f64") TWO64("div.rz.f64") TWO64("div.rm.f64") TWO64("div.rp.f64") ONE64("rcp.rn.f64") ONE64("rcp.rz.f64")
  ONE64("rcp.rm.f64") ONE64("rcp.rp.f64") ONE64("sqrt.rn.f64") ONE64("sqrt.rz.f64") ONE64("sqrt.rm.f64") ONE64("sqrt.rp.f64")
  TWO64("min.f64") TWO64("max.f64") TWO64("copysign.f64") ONE64("abs.f64") ONE64("neg.f64")
}

// launch: grid=24 block=256
// args: out=u32 a=f32:0 b=f32:1 c=u32:2 d=f64:0 e=f64:1
// same: bitwise
#define COMPARE(op) \
  ROW(unsigned r; asm volatile("{ .reg .pred p, q, s; setp.lt.s32 s, %3, 0; setp." op " p|q, %1, %2, s; selp.u32 %0, 1, 0, p; @q add.u32 %0, %0, 2; }" \
      : "=r"(r) : "r"(x), "r"(y), "r"(z)))
#define TEST(op) ROW(unsigned r; asm volatile("{ .reg .pred p; " op " p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(r) : "r"(x)))
#define PLAIN(op) ROW(unsigned r; asm volatile("{ .reg .pred p; " op " p, %1, %2; selp.u32 %0, 1, 0, p; }" : "=r"(r) : "r"(x), "r"(y)))
#define PLAIN64(op) ROW(unsigned r; asm volatile("{ .reg .pred p; " op " p, %1, %2; selp.u32 %0, 1, 0, p; }" : "=r"(r) : "l"(u), "l"(v)))
extern "C" __global__ void comparisons(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c, const unsigned long long* d,
                                       const unsigned long long* e) {
  BEGIN;
  unsigned x = a[i], y = b[i], z = c[i];
  unsigned long long u = d[i], v = e[i];
  PLAIN("setp.eq.f32") PLAIN("setp.ne.f32") PLAIN("setp.lt.f32") PLAIN("setp.le.f32") PLAIN("setp.gt.f32") PLAIN("setp.ge.f32")
  PLAIN("setp.equ.f32") PLAIN("setp.neu.f32") PLAIN("setp.ltu.f32") PLAIN("setp.leu.f32") PLAIN("setp.gtu.f32") PLAIN("setp.geu.f32")
  PLAIN("setp.num.f32") PLAIN("setp.nan.f32") PLAIN("setp.lt.ftz.f32") PLAIN("setp.eq.ftz.f32") PLAIN("setp.geu.ftz.f32")
  PLAIN("setp.eq.s32") PLAIN("setp.ne.b32") PLAIN("setp.lt.s32") PLAIN("setp.ge.s32") PLAIN("setp.lo.u32") PLAIN("setp.ls.u32") PLAIN("setp.hi.u32")
  PLAIN("setp.hs.u32") PLAIN64("setp.lt.f64") PLAIN64("setp.ne.f64") PLAIN64("setp.neu.f64") PLAIN64("setp.leu.f64") PLAIN64("setp.nan.f64")
  PLAIN64("setp.gt.s64") PLAIN64("setp.lo.u64") PLAIN64("setp.eq.b64")
  COMPARE("lt.and.f32") COMPARE("geu.or.f32") COMPARE("ne.xor.f32") COMPARE("gt.and.s32") COMPARE("ls.xor.u32")
  TEST("testp.finite.f32") TEST("testp.infinite.f32") TEST("testp.number.f32") TEST("testp.notanumber.f32") TEST("testp.normal.f32")
  TEST("testp.subnormal.f32") TWO("set.lt.u32.f32") TWO("set.geu.f32.f32") TWO("set.gt.u32.s32") TWO("set.lt.ftz.f32.f32")
}

// launch: grid=24 block=256
// args: out=f64 a=f64:0
// same: relative 1e-6
extern "C" __global__ void gross(unsigned long long* out, const unsigned long long* a) {
  BEGIN;
  unsigned long long x = a[i];
  ONE64("rcp.approx.ftz.f64") ONE64("rsqrt.approx.ftz.f64")
}
