// Moves of 8x8 matrices, and tensor-core products of every type and shape.
#define ROW1(name, ...) { unsigned d0 = 0, d1 = 0, d2 = 0, d3 = 0; __VA_ARGS__; PUT }
#define PUT { unsigned d[4] = {d0, d1, d2, d3}; for (int k = 0; k < 4; k++) out[(4 * row + k) * count + i] = d[k]; row++; }
#define BEGIN int i = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x, row = 0

// launch: grid=2 block=64
// args: out=u32*4 a=u32:bits*4
// same: bitwise
#define LOAD1(op) { unsigned d0, d1 = 0, d2 = 0, d3 = 0; asm volatile(op " {%0}, [%1];" : "=r"(d0) : "r"(from) : "memory"); PUT }
#define LOAD2(op) { unsigned d0, d1, d2 = 0, d3 = 0; asm volatile(op " {%0, %1}, [%2];" : "=r"(d0), "=r"(d1) : "r"(from) : "memory"); PUT }
#define LOAD4(op) { unsigned d0, d1, d2, d3; asm volatile(op " {%0, %1, %2, %3}, [%4];" : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3) : "r"(from) : "memory"); PUT }
#define STORE(code) { clear(mine, lane); code; __syncwarp(); unsigned d0 = mine[lane], d1 = mine[lane + 32], d2 = mine[lane + 64], d3 = mine[lane + 96]; PUT __syncwarp(); }
#define STORE1(op) STORE(asm volatile(op " [%0], {%1};" ::"r"(to), "r"(w[0]) : "memory"))
#define STORE2(op) STORE(asm volatile(op " [%0], {%1, %2};" ::"r"(to), "r"(w[0]), "r"(w[1]) : "memory"))
#define STORE4(op) STORE(asm volatile(op " [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory"))
#define TURN(op) { unsigned d0, d1 = 0, d2 = 0, d3 = 0; asm volatile(op " %0, %1;" : "=r"(d0) : "r"(w[0])); PUT }
__device__ void clear(unsigned* mine, int lane) {
  __syncwarp();
  for (int k = lane; k < 128; k += 32) mine[k] = 0;
  __syncwarp();
}
extern "C" __global__ void moves(unsigned* out, const unsigned* a) {
  __shared__ __align__(16) unsigned source[256], result[256];
  BEGIN;
  int t = threadIdx.x, lane = t % 32;
  unsigned w[4];
  for (int k = 0; k < 4; k++) source[4 * t + k] = w[k] = a[4 * i + k];
  __syncthreads();
  unsigned* mine = result + t / 32 * 128;
  unsigned from = (unsigned)__cvta_generic_to_shared(source + 4 * (t * 5 % 64)), to = (unsigned)__cvta_generic_to_shared(mine + 4 * (lane * 11 % 32));
  LOAD1("ldmatrix.sync.aligned.m8n8.x1.shared.b16") LOAD2("ldmatrix.sync.aligned.m8n8.x2.shared.b16")
  LOAD4("ldmatrix.sync.aligned.m8n8.x4.shared.b16") LOAD1("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16")
  LOAD2("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16") LOAD4("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16")
  STORE1("stmatrix.sync.aligned.m8n8.x1.shared.b16") STORE2("stmatrix.sync.aligned.m8n8.x2.shared.b16")
  STORE4("stmatrix.sync.aligned.m8n8.x4.shared.b16") STORE1("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16")
  STORE2("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16") STORE4("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16")
  TURN("movmatrix.sync.aligned.m8n8.trans.b16")
}

// Products: the letters count the registers of D, A and B; C has as many as D.
#define D4 "{%0, %1, %2, %3}"
#define D2 "{%0, %1}"
#define OUT4 "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3)
#define OUT2 "=r"(d0), "=r"(d1)
#define A(k) "r"(a[4 * i + k])
#define B(k) "r"(b[2 * i + k])
#define C(k) "r"(c[4 * i + k])
#define MMA442(op) ROW1(op, asm volatile("mma.sync.aligned." op " " D4 ", {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};" : OUT4 : A(0), A(1), A(2), A(3), B(0), B(1), C(0), C(1), C(2), C(3)))
#define MMA421(op) ROW1(op, asm volatile("mma.sync.aligned." op " " D4 ", {%4, %5}, {%6}, {%7, %8, %9, %10};" : OUT4 : A(0), A(1), B(0), C(0), C(1), C(2), C(3)))
#define MMA242(op) ROW1(op, asm volatile("mma.sync.aligned." op " " D2 ", {%2, %3, %4, %5}, {%6, %7}, {%8, %9};" : OUT2 : A(0), A(1), A(2), A(3), B(0), B(1), C(0), C(1)))
#define MMA221(op) ROW1(op, asm volatile("mma.sync.aligned." op " " D2 ", {%2, %3}, {%4}, {%5, %6};" : OUT2 : A(0), A(1), B(0), C(0), C(1)))
#define MMA211(op) ROW1(op, asm volatile("mma.sync.aligned." op " " D2 ", {%2}, {%3}, {%4, %5};" : OUT2 : A(0), B(0), C(0), C(1)))

// launch: grid=4 block=64
// args: out=u32*4 a=u8:bits*16 b=u8:bits*8 c=u32:bits*4
// same: bitwise
extern "C" __global__ void mma_integers(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c) {
  BEGIN;
  MMA211("m8n8k16.row.col.s32.s8.s8.s32") MMA211("m8n8k16.row.col.satfinite.s32.u8.s8.s32") MMA421("m16n8k16.row.col.s32.s8.u8.s32")
  MMA421("m16n8k16.row.col.satfinite.s32.u8.u8.s32") MMA442("m16n8k32.row.col.s32.s8.s8.s32") MMA442("m16n8k32.row.col.s32.u8.s8.s32")
  MMA442("m16n8k32.row.col.satfinite.s32.u8.u8.s32") MMA442("m16n8k32.row.col.satfinite.s32.s8.s8.s32")
}

// launch: grid=4 block=64
// args: out=f32*4 a=f16:ints*8 b=f16:ints*4 c=f32:ints*4
// same: bitwise
// args: out=f32*4 a=f16:near*8 b=f16:near*4 c=f32:near*4
// same: accumulation
// args: out=f32*4 a=f16:wide*8 b=f16:wide*4 c=f32:near*4
// same: accumulation
extern "C" __global__ void mma_f16_f32(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c) {
  BEGIN;
  MMA421("m16n8k8.row.col.f32.f16.f16.f32") MMA442("m16n8k16.row.col.f32.f16.f16.f32")
}

// launch: grid=4 block=64
// args: out=f16*8 a=f16:ints*8 b=f16:ints*4 c=f16:ints*8
// same: bitwise
// args: out=f16*8 a=f16:near*8 b=f16:near*4 c=f16:near*8
// same: accumulation
extern "C" __global__ void mma_f16_f16(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c) {
  BEGIN;
  MMA221("m16n8k8.row.col.f16.f16.f16.f16") MMA242("m16n8k16.row.col.f16.f16.f16.f16")
}

// launch: grid=4 block=64
// args: out=f32*4 a=bf16:ints*8 b=bf16:ints*4 c=f32:ints*4
// same: bitwise
// args: out=f32*4 a=bf16:near*8 b=bf16:near*4 c=f32:near*4
// same: accumulation
// args: out=f32*4 a=bf16:wide*8 b=bf16:wide*4 c=f32:near*4
// same: accumulation
extern "C" __global__ void mma_bf16(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c) {
  BEGIN;
  MMA421("m16n8k8.row.col.f32.bf16.bf16.f32") MMA442("m16n8k16.row.col.f32.bf16.bf16.f32")
}

// launch: grid=4 block=64
// args: out=f32*4 a=f32:ints*4 b=f32:ints*2 c=f32:ints*4
// same: bitwise
// args: out=f32*4 a=f32:near*4 b=f32:near*2 c=f32:near*4
// same: accumulation
extern "C" __global__ void mma_tf32(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c) {
  BEGIN;
  MMA421("m16n8k4.row.col.f32.tf32.tf32.f32") MMA442("m16n8k8.row.col.f32.tf32.tf32.f32")
}

// launch: grid=4 block=64
// args: out=f32*4 a=e4m3:ints*16 b=e4m3:ints*8 c=f32:ints*4
// same: bitwise
// args: out=f32*4 a=e4m3:near*16 b=e4m3:near*8 c=f32:near*4
// same: accumulation
extern "C" __global__ void mma_e4m3(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c) {
  BEGIN;
  MMA442("m16n8k32.row.col.f32.e4m3.e4m3.f32")
}

// launch: grid=4 block=64
// args: out=f32*4 a=e5m2:ints*16 b=e5m2:ints*8 c=f32:ints*4
// same: bitwise
// args: out=f32*4 a=e5m2:near*16 b=e5m2:near*8 c=f32:near*4
// same: accumulation
extern "C" __global__ void mma_e5m2(unsigned* out, const unsigned* a, const unsigned* b, const unsigned* c) {
  BEGIN;
  MMA442("m16n8k32.row.col.f32.e5m2.e5m2.f32") MMA442("m16n8k32.row.col.f32.e5m2.e4m3.f32")
}

// launch: grid=4 block=64
// args: out=f64*2 a=f64:ints*2 b=f64:ints c=f64:ints*2
// same: bitwise
// args: out=f64*2 a=f64:near*2 b=f64:near c=f64:near*2
// same: accumulation
#define MMA64(op) { double d0, d1; asm volatile("mma.sync.aligned." op " {%0, %1}, {%2}, {%3}, {%4, %5};" : "=d"(d0), "=d"(d1) : "d"(a[i]), "d"(b[i]), "d"(c[2 * i]), "d"(c[2 * i + 1])); out[2 * row * count + i] = d0; out[(2 * row + 1) * count + i] = d1; row++; }
extern "C" __global__ void mma_f64(double* out, const double* a, const double* b, const double* c) {
  BEGIN;
  MMA64("m8n8k4.row.col.f64.f64.f64.f64")
}
