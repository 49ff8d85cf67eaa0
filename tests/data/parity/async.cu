// Asynchronous copies with zero fill, and mbarriers.
#define BEGIN int i = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x, row = 0, t = threadIdx.x
#define PUT { for (int k = 0; k < 4; k++) out[(4 * row + k) * count + i] = s[4 * t + k]; row++; }
#define WAIT asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory"); __syncthreads();

// launch: grid=2 block=128
// args: out=u32*4 a=u32:bits*4 b=u32:bits
// same: bitwise
#define COPY(op, bytes) { FILL asm volatile(op " [%0], [%1], " bytes ";" ::"r"(to), "l"(from) : "memory"); WAIT PUT }
#define PART(op, bytes, most) { FILL asm volatile(op " [%0], [%1], " bytes ", %2;" ::"r"(to), "l"(from), "r"(part % (most + 1)) : "memory"); WAIT PUT }
#define IGNORE(op, bytes) { FILL asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; " op " [%0], [%1], " bytes ", p; }" ::"r"(to), "l"(from), "r"(part & 1) : "memory"); WAIT PUT }
#define FILL __syncthreads(); for (int k = 0; k < 4; k++) s[4 * t + k] = ~t; __syncthreads();
extern "C" __global__ void copies(unsigned* out, const unsigned* a, const unsigned* b) {
  __shared__ __align__(16) unsigned s[512];
  BEGIN;
  unsigned part = b[i], to = (unsigned)__cvta_generic_to_shared(s + 4 * t);
  const unsigned* from = a + 4 * (i ^ 5);
  COPY("cp.async.ca.shared.global", "4") COPY("cp.async.ca.shared.global", "8") COPY("cp.async.ca.shared.global", "16") COPY("cp.async.cg.shared.global", "16")
  COPY("cp.async.cg.shared.global.L2::128B", "16")
  PART("cp.async.ca.shared.global", "4", 4) PART("cp.async.ca.shared.global", "8", 8) PART("cp.async.ca.shared.global", "16", 16)
  PART("cp.async.cg.shared.global", "16", 16)
  IGNORE("cp.async.ca.shared.global", "4") IGNORE("cp.async.cg.shared.global", "16")
}

// launch: grid=2 block=128
// args: out=u32 a=u32:bits*4
// same: bitwise
extern "C" __global__ void pipeline(unsigned* out, const unsigned* a) {
  __shared__ unsigned s[3][128];
  BEGIN;
  unsigned sum = 0;
  for (int k = 0; k < 6; k++) {
    if (k < 4) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(&s[k % 3][t])), "l"(a + k * count + i) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (k < 2) continue;
    asm volatile("cp.async.wait_group 2;" ::: "memory");
    __syncthreads();
    sum = sum * 31 + s[(k - 2) % 3][t ^ 33];
    __syncthreads();
  }
#define RESULT(name) out[i] = sum;
  RESULT("pipeline of three stages")
}

// launch: grid=2 block=128
// args: out=u32 a=u32:bits
// same: bitwise
extern "C" __global__ void barriers(unsigned* out, const unsigned* a) {
  __shared__ unsigned s[128];
  __shared__ unsigned long long full, empty;
  BEGIN;
  unsigned f = (unsigned)__cvta_generic_to_shared(&full), e = (unsigned)__cvta_generic_to_shared(&empty), sum = 0;
  if (t == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 64;" ::"r"(f) : "memory");
    asm volatile("mbarrier.init.shared.b64 [%0], 64;" ::"r"(e) : "memory");
  }
  __syncthreads();
  for (int k = 0; k < 5; k++) {
    unsigned phase = k & 1;
    if (t < 64) {
      for (int n = 0; n < 2; n++) s[t + 64 * n] = a[(i + 17 * k + 64 * n) % count];
      asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(f) : "memory");
      asm volatile("{ .reg .pred p;\nW%=: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra W%=; }" ::"r"(e), "r"(phase) : "memory");
    } else {
      asm volatile("{ .reg .pred p;\nW%=: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra W%=; }" ::"r"(f), "r"(phase) : "memory");
      sum = sum * 31 + s[(t * 3) % 128];
      asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(e) : "memory");
    }
  }
  RESULT("mbarriers of a producer and a consumer")
}
