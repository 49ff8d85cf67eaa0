// Instructions as functions, one each, and what the accumulators of a tensor core hold.
#pragma once

// ---- shared memory

template <int BYTES>
__device__ __forceinline__ void copy_async(uint32_t target, const char* source, bool inside) {
  const int size = inside ? BYTES : 0;  // 0: the target is filled with zeros, and nothing is read
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(size) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(BYTES), "r"(size) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void store_chunk(uint32_t target, const uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(target), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

__device__ __forceinline__ void load_chunk(uint32_t (&v)[4], uint32_t source) {
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(source) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&f)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&f)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(address) : "memory");
}

// What this thread wrote to shared memory before is there for wgmma, which reads by another way, after a barrier.
__device__ __forceinline__ void show_to_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- global memory. Vector accesses are spelled out: the compiler may split others into narrow ones.

template <int BYTES>
__device__ __forceinline__ void load_global(uint32_t* v, const char* source) {
  if constexpr (BYTES == 16)
    asm volatile("ld.global.nc.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(source));
  else if constexpr (BYTES == 8)
    asm volatile("ld.global.nc.v2.b32 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "l"(source));
  else
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v[0]) : "l"(source));
}

__device__ __forceinline__ void store_global_chunk(uint16_t* target, const uint32_t (&v)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(target), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// ---- tensor cores. PTX ISA, "Matrix Fragments for mma.m16n8k16": accumulator element i of a lane stands at row
// lane / 4 + 8 * (i / 2), column 2 * (lane % 4) + i % 2; fp16 accumulators hold two elements to a register.

__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply(uint32_t (&c)[2], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
      : "+r"(c[0]), "+r"(c[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

__device__ __forceinline__ float to_float(uint32_t half) {  // the lower 16 bits
  float value;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(half));
  return value;
}

// A lane's two neighbouring elements in the tile's upper (half 0) or lower rows.
__device__ __forceinline__ float low_element(const float (&c)[4], int half) { return c[2 * half]; }
__device__ __forceinline__ float high_element(const float (&c)[4], int half) { return c[2 * half + 1]; }
__device__ __forceinline__ float low_element(const uint32_t (&c)[2], int half) { return to_float(c[half]); }
__device__ __forceinline__ float high_element(const uint32_t (&c)[2], int half) { return to_float(c[half] >> 16); }
