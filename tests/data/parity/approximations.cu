// Approximate functions: the ISA bounds their error, and says what comes of zeros, infinities and NaN.
#define ROW(...) { __VA_ARGS__; out[row++ * count + i] = r; }
#define BEGIN int i = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x, row = 0

// launch: grid=24 block=256
// args: out=f32 a=f32:1 b=f32:0
// same: bound f32
#define ONE(op) ROW(unsigned r; asm volatile(op " %0, %1;" : "=r"(r) : "r"(x)))
#define TWO(op) ROW(unsigned r; asm volatile(op " %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y)))
extern "C" __global__ void of_everything(unsigned* out, const unsigned* a, const unsigned* b) {
  BEGIN;
  unsigned x = a[i], y = b[i];
  ONE("ex2.approx.f32") ONE("ex2.approx.ftz.f32") ONE("lg2.approx.f32") ONE("lg2.approx.ftz.f32") ONE("rcp.approx.f32") ONE("rcp.approx.ftz.f32")
  ONE("sqrt.approx.f32") ONE("sqrt.approx.ftz.f32") ONE("rsqrt.approx.f32") ONE("rsqrt.approx.ftz.f32") ONE("tanh.approx.f32")
  TWO("div.approx.f32") TWO("div.approx.ftz.f32") TWO("div.full.f32") TWO("div.full.ftz.f32")
}

// launch: grid=16 block=256
// args: out=f32 a=f32:turn
// same: bound f32
extern "C" __global__ void of_angles(unsigned* out, const unsigned* a) {
  BEGIN;
  unsigned x = a[i];
  ONE("sin.approx.f32") ONE("cos.approx.f32") ONE("sin.approx.ftz.f32") ONE("cos.approx.ftz.f32") ONE("ex2.approx.f32") ONE("tanh.approx.f32")
}

// launch: grid=256 block=256
// args: out=f16 a=f16:iota
// same: bound f16
#define HALF(op) ROW(unsigned short r; asm volatile(op " %0, %1;" : "=h"(r) : "h"(x)))
extern "C" __global__ void of_f16(unsigned short* out, const unsigned short* a) {
  BEGIN;
  unsigned short x = a[i];
  HALF("ex2.approx.f16") HALF("tanh.approx.f16")
}

// launch: grid=256 block=256
// args: out=bf16 a=bf16:iota
// same: bound bf16
extern "C" __global__ void of_bf16(unsigned short* out, const unsigned short* a) {
  BEGIN;
  unsigned short x = a[i];
  HALF("ex2.approx.ftz.bf16") HALF("tanh.approx.bf16")
}

// launch: grid=16 block=256
// args: out=f32 a=f32:near
// same: relative 2e-6
#define CALL(name, value) ROW(float r = value)
extern "C" __global__ void library(float* out, const float* a) {
  BEGIN;
  float x = a[i];
  CALL("sinf", sinf(x)) CALL("cosf", cosf(x)) CALL("expf", expf(x)) CALL("logf", logf(fabsf(x))) CALL("tanhf", tanhf(x)) CALL("erff", erff(x)) CALL("powf", powf(fabsf(x), 1.7f))
  CALL("rsqrtf", rsqrtf(fabsf(x))) CALL("cbrtf", cbrtf(x)) CALL("exp2f", exp2f(x)) CALL("log1pf", log1pf(fabsf(x))) CALL("__expf", __expf(x)) CALL("atan2f", atan2f(x, 2.0f))
}
