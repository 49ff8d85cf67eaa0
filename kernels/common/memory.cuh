// Loads and stores. Vector accesses use inline PTX, because the compiler splits *(uint4*)p = make_uint4(...) into 4-byte
// stores, and copies of 16-byte structures into narrower ones. Shared memory has 32-bit addresses, as in PTX.
#pragma once

#include "../common/types.cuh"

/// Pins a base pointer in registers and hides its computation. Otherwise the compiler merges offsets into it and repeats
/// 64-bit additions.
template <typename T>
__device__ __forceinline__ void pin_base(const T*& pointer) {
  asm("" : "+l"(pointer));
}
__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// ---- shared memory

__device__ __forceinline__ u32 load_shared_word(u32 address) {
  u32 word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
__device__ __forceinline__ Chunk load_shared_chunk(u32 address) {
  Chunk c;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(c.v[0]), "=r"(c.v[1]), "=r"(c.v[2]), "=r"(c.v[3]) : "r"(address) : "memory");
  return c;
}
__device__ __forceinline__ void load_shared_floats(u32 address, float& x, float& y) {
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}
__device__ __forceinline__ void store_shared_floats(u32 address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void store_shared_byte(u32 address, u32 byte) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(byte) : "memory");
}
__device__ __forceinline__ void store_shared_half(u32 address, Half half) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(half) : "memory");
}
/// 1, 2 or 4 consecutive words.
__device__ __forceinline__ void store_shared(u32 address, u32 word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
__device__ __forceinline__ void store_shared(u32 address, const u32 (&v)[1]) { store_shared(address, v[0]); }
__device__ __forceinline__ void store_shared(u32 address, const u32 (&v)[2]) {
  asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(address), "r"(v[0]), "r"(v[1]) : "memory");
}
__device__ __forceinline__ void store_shared(u32 address, const u32 (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};"
               ::"r"(address), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// ---- global memory

__device__ __forceinline__ Chunk load_global_chunk(const void* pointer) {
  Chunk c;
  asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(c.v[0]), "=r"(c.v[1]), "=r"(c.v[2]), "=r"(c.v[3]) : "l"(pointer) : "memory");
  return c;
}
/// Loads 4, 8 or 16 bytes by the read-only (non-coherent) path, for memory that is not written during the launch.
template <int BYTES>
__device__ __forceinline__ void load_global_nc(u32* v, const void* pointer) {
  if constexpr (BYTES == 16)
    asm volatile("ld.global.nc.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(pointer));
  else if constexpr (BYTES == 8)
    asm volatile("ld.global.nc.v2.b32 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "l"(pointer));
  else
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v[0]) : "l"(pointer));
}
/// The same for data that is read once, without allocation in L1. FETCH_256 also prefetches the surrounding 256 bytes to L2.
template <int BYTES, bool FETCH_256>
__device__ __forceinline__ void load_global_once(u32* v, const void* pointer) {
  if constexpr (BYTES == 16 && FETCH_256)
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(pointer));
  else if constexpr (BYTES == 16)
    asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(pointer));
  else if constexpr (BYTES == 8 && FETCH_256)
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v2.b32 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "l"(pointer));
  else if constexpr (BYTES == 8)
    asm volatile("ld.global.nc.L1::no_allocate.v2.b32 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "l"(pointer));
  else if constexpr (FETCH_256)
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.b32 %0, [%1];" : "=r"(v[0]) : "l"(pointer));
  else
    asm volatile("ld.global.nc.L1::no_allocate.b32 %0, [%1];" : "=r"(v[0]) : "l"(pointer));
}
/// Returns a cache policy with first eviction from L2, so that streamed data does not displace other lines.
__device__ __forceinline__ u64 evict_first_policy() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// Like load_global_once() with FETCH_256, with a cache policy.
template <int BYTES>
__device__ __forceinline__ void load_global_once_policy(u32* v, const void* pointer, u64 policy) {
  if constexpr (BYTES == 16)
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.b32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(pointer), "l"(policy));
  else if constexpr (BYTES == 8)
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v2.b32 {%0,%1}, [%2], %3;"
                 : "=r"(v[0]), "=r"(v[1]) : "l"(pointer), "l"(policy));
  else
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.b32 %0, [%1], %2;"
                 : "=r"(v[0]) : "l"(pointer), "l"(policy));
}
__device__ __forceinline__ Chunk load_global_nc_chunk(const void* pointer) {
  Chunk c;
  load_global_nc<16>(c.v, pointer);
  return c;
}
/// 1, 2 or 4 consecutive words.
__device__ __forceinline__ void store_global(void* pointer, u32 word) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(pointer), "r"(word) : "memory");
}
__device__ __forceinline__ void store_global(void* pointer, const u32 (&v)[1]) { store_global(pointer, v[0]); }
__device__ __forceinline__ void store_global(void* pointer, const u32 (&v)[2]) {
  asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(pointer), "r"(v[0]), "r"(v[1]) : "memory");
}
__device__ __forceinline__ void store_global(void* pointer, const u32 (&v)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};"
               ::"l"(pointer), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}
