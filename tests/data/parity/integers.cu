// Integer arithmetic of 16, 32 and 64 bits.
// Row k of an output is the k-th instruction named below, over all threads.
#define ROW(...) { __VA_ARGS__; out[row++ * count + i] = r; }
#define BEGIN int i = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x, row = 0

// launch: grid=12 block=256
// args: out=u32 a=u32:0 b=u32:1 c=u32:2
// same: bitwise
#define ONE(op) ROW(unsigned r; asm volatile(op " %0, %1;" : "=r"(r) : "r"(x)))
#define TWO(op) ROW(unsigned r; asm volatile(op " %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y)))
#define THREE(op) ROW(unsigned r; asm volatile(op " %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z)))
#define FULL(op) ROW(unsigned r; asm volatile(op " %0, %1, %2, %3, %1;" : "=r"(r) : "r"(x), "r"(y), "r"(z)))
#define CARRY(first, second) \
  ROW(unsigned r, low; asm volatile(first " %1, %2, %3;\n\t" second " %0, %3, %4;" : "=r"(r), "=r"(low) : "r"(x), "r"(y), "r"(z)); r ^= low)
#define MULTIPLY(first, second) \
  ROW(unsigned r, low; asm volatile(first " %1, %2, %3, %4;\n\t" second " %0, %2, %3, %4;" : "=r"(r), "=r"(low) : "r"(x), "r"(y), "r"(z)); r ^= low)
extern "C" __global__ void words(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c) {
  BEGIN;
  unsigned x = a[i], y = b[i], z = c[i];
  TWO("add.u32") TWO("sub.s32") TWO("add.sat.s32") TWO("sub.sat.s32") TWO("mul.lo.s32") TWO("mul.hi.s32") TWO("mul.hi.u32")
  TWO("mul24.lo.s32") TWO("mul24.lo.u32") TWO("mul24.hi.s32") TWO("mul24.hi.u32") TWO("div.s32") TWO("div.u32") TWO("rem.s32")
  TWO("rem.u32") TWO("min.s32") TWO("max.s32") TWO("min.u32") TWO("max.u32") TWO("min.relu.s32") TWO("max.relu.s32")
  TWO("min.u16x2") TWO("max.s16x2") TWO("add.u16x2")
  THREE("mad.lo.s32") THREE("mad.hi.s32") THREE("mad.hi.u32") THREE("mad.hi.sat.s32") THREE("mad24.lo.s32") THREE("mad24.hi.u32")
  THREE("sad.u32") THREE("sad.s32") THREE("slct.u32.s32") THREE("dp4a.s32.s32") THREE("dp4a.u32.u32") THREE("dp4a.s32.u32")
  THREE("dp4a.u32.s32") THREE("dp2a.lo.s32.s32") THREE("dp2a.hi.u32.u32") THREE("dp2a.hi.s32.u32") THREE("dp2a.lo.u32.s32")
  ONE("abs.s32") ONE("neg.s32")
  CARRY("add.cc.u32", "addc.u32") CARRY("sub.cc.u32", "subc.u32") CARRY("add.cc.s32", "addc.cc.s32")
  MULTIPLY("mad.lo.cc.u32", "madc.hi.u32") MULTIPLY("mad.hi.cc.u32", "madc.lo.u32")
  THREE("vadd4.u32.u32.u32") THREE("vsub4.s32.s32.s32.sat") THREE("vavrg4.u32.u32.u32") THREE("vabsdiff4.u32.u32.u32.add")
  THREE("vmin4.s32.s32.s32") THREE("vmax2.u32.u32.u32") THREE("vadd2.s32.s32.s32.sat") THREE("vavrg2.s32.s32.s32")
}

// launch: grid=12 block=256
// args: out=u32 a=u32:0 b=u32:1 c=u32:2
// same: bitwise
extern "C" __global__ void bits(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c) {
  BEGIN;
  unsigned x = a[i], y = b[i], z = c[i];
  TWO("and.b32") TWO("or.b32") TWO("xor.b32") ONE("not.b32") ONE("cnot.b32") TWO("shl.b32") TWO("shr.u32") TWO("shr.s32")
  THREE("shf.l.clamp.b32") THREE("shf.l.wrap.b32") THREE("shf.r.clamp.b32") THREE("shf.r.wrap.b32")
  THREE("bfe.u32") THREE("bfe.s32") FULL("bfi.b32") ONE("popc.b32") ONE("clz.b32") ONE("brev.b32")
  ONE("bfind.u32") ONE("bfind.s32") ONE("bfind.shiftamt.u32") ONE("bfind.shiftamt.s32")
  TWO("szext.wrap.u32") TWO("szext.wrap.s32") TWO("szext.clamp.u32") TWO("szext.clamp.s32") TWO("bmsk.wrap.b32") TWO("bmsk.clamp.b32")
  THREE("prmt.b32") THREE("prmt.b32.f4e") THREE("prmt.b32.b4e") THREE("prmt.b32.rc8") THREE("prmt.b32.ecl") THREE("prmt.b32.ecr")
  THREE("prmt.b32.rc16")
#define LOGIC(table) ROW(unsigned r; asm volatile("lop3.b32 %0, %1, %2, %3, " table ";" : "=r"(r) : "r"(x), "r"(y), "r"(z)))
  LOGIC("0x96") LOGIC("0xE8") LOGIC("0xCA") LOGIC("0x01") LOGIC("0x3C") LOGIC("0x80")
#define NTH(op) ROW(unsigned r; asm volatile(op " %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y & 31), "r"((int)(z & 15) - 8)))
  NTH("fns.b32")
}

// launch: grid=12 block=256
// args: out=u64 a=u64:0 b=u64:1 c=u64:2
// same: bitwise
extern "C" __global__ void longs(unsigned long long* out, const unsigned long long* a, const unsigned long long* b, const unsigned long long* c) {
  BEGIN;
  unsigned long long x = a[i], y = b[i], z = c[i];
  unsigned low = (unsigned)x, other = (unsigned)y, place = (unsigned)z, from = other & 255, length = place & 255;  // all that the ISA defines
#define ONE64(op) ROW(unsigned long long r; asm volatile(op " %0, %1;" : "=l"(r) : "l"(x)))
#define TWO64(op) ROW(unsigned long long r; asm volatile(op " %0, %1, %2;" : "=l"(r) : "l"(x), "l"(y)))
#define THREE64(op) ROW(unsigned long long r; asm volatile(op " %0, %1, %2, %3;" : "=l"(r) : "l"(x), "l"(y), "l"(z)))
#define SHIFT64(op) ROW(unsigned long long r; asm volatile(op " %0, %1, %2;" : "=l"(r) : "l"(x), "r"(place)))
#define SMALL64(op) ROW(unsigned r; asm volatile(op " %0, %1;" : "=r"(r) : "l"(x)))
#define FIELD64(op) ROW(unsigned long long r; asm volatile(op " %0, %1, %2, %3;" : "=l"(r) : "l"(x), "r"(from), "r"(length)))
#define INSERT64(op) ROW(unsigned long long r; asm volatile(op " %0, %1, %2, %3, %4;" : "=l"(r) : "l"(x), "l"(y), "r"(from), "r"(length)))
#define WIDE(op) ROW(unsigned long long r; asm volatile(op " %0, %1, %2;" : "=l"(r) : "r"(low), "r"(other)))
#define WIDEADD(op) ROW(unsigned long long r; asm volatile(op " %0, %1, %2, %3;" : "=l"(r) : "r"(low), "r"(other), "l"(z)))
  TWO64("add.s64") TWO64("sub.u64") TWO64("mul.lo.u64") TWO64("mul.hi.s64") TWO64("mul.hi.u64") TWO64("div.s64") TWO64("div.u64")
  TWO64("rem.s64") TWO64("rem.u64") TWO64("min.s64") TWO64("max.s64") TWO64("min.u64") TWO64("max.u64") TWO64("and.b64") TWO64("or.b64")
  TWO64("xor.b64") THREE64("mad.lo.s64") THREE64("mad.hi.s64") THREE64("mad.hi.u64") THREE64("sad.s64") THREE64("sad.u64")
  ONE64("abs.s64") ONE64("neg.s64") ONE64("not.b64") ONE64("cnot.b64") ONE64("brev.b64") SHIFT64("shl.b64") SHIFT64("shr.u64")
  SHIFT64("shr.s64") SMALL64("popc.b64") SMALL64("clz.b64") SMALL64("bfind.u64") SMALL64("bfind.s64") SMALL64("bfind.shiftamt.s64")
  FIELD64("bfe.u64") FIELD64("bfe.s64") INSERT64("bfi.b64") WIDE("mul.wide.s32") WIDE("mul.wide.u32") WIDEADD("mad.wide.s32")
  WIDEADD("mad.wide.u32")
}

// launch: grid=12 block=256
// args: out=u32 a=u16:0 b=u16:1 c=u16:2
// same: bitwise
extern "C" __global__ void shorts(unsigned* out, const unsigned short* a, const unsigned short* b, const unsigned short* c) {
  BEGIN;
  unsigned short x = a[i], y = b[i], z = c[i];
#define ONE16(op) ROW(unsigned short r; asm volatile(op " %0, %1;" : "=h"(r) : "h"(x)))
#define TWO16(op) ROW(unsigned short r; asm volatile(op " %0, %1, %2;" : "=h"(r) : "h"(x), "h"(y)))
#define THREE16(op) ROW(unsigned short r; asm volatile(op " %0, %1, %2, %3;" : "=h"(r) : "h"(x), "h"(y), "h"(z)))
#define WIDE16(op) ROW(unsigned r; asm volatile(op " %0, %1, %2;" : "=r"(r) : "h"(x), "h"(y)))
#define SHIFT16(op) ROW(unsigned short r; asm volatile(op " %0, %1, %2;" : "=h"(r) : "h"(x), "r"((unsigned)y)))
  TWO16("add.s16") TWO16("sub.u16") TWO16("mul.lo.u16") TWO16("mul.hi.s16") TWO16("mul.hi.u16") TWO16("div.s16") TWO16("div.u16")
  TWO16("rem.s16") TWO16("rem.u16") TWO16("min.s16") TWO16("max.u16") TWO16("and.b16") TWO16("xor.b16") THREE16("mad.lo.s16")
  THREE16("mad.hi.u16") THREE16("sad.s16") ONE16("abs.s16") ONE16("neg.s16") ONE16("not.b16") ONE16("cnot.b16") WIDE16("mul.wide.s16")
  WIDE16("mul.wide.u16") SHIFT16("shl.b16") SHIFT16("shr.u16") SHIFT16("shr.s16")
}
