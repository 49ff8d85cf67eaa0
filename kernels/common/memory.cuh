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

/// Statements that load or store 4, 8 or 16 bytes. The operands of a load, and the constraint of a store's address, follow.
#define LOAD_BYTES(BYTES, V, OPERATION, ...)                                                                                \
  if constexpr (BYTES == 16)                                                                                          \
    asm volatile(OPERATION ".v4.b32 {%0,%1,%2,%3}, [%4];"                                                             \
                 : "=r"(V[0]), "=r"(V[1]), "=r"(V[2]), "=r"(V[3]) : __VA_ARGS__);                                     \
  else if constexpr (BYTES == 8)                                                                                      \
    asm volatile(OPERATION ".v2.b32 {%0,%1}, [%2];" : "=r"(V[0]), "=r"(V[1]) : __VA_ARGS__);                          \
  else                                                                                                                \
    asm volatile(OPERATION ".b32 %0, [%1];" : "=r"(V[0]) : __VA_ARGS__);
#define STORE_BYTES(BYTES, TO, V, OPERATION, CONSTRAINT)                                                                    \
  if constexpr (BYTES == 16)                                                                                          \
    asm volatile(OPERATION ".v4.b32 [%0], {%1,%2,%3,%4};"                                                             \
                 ::CONSTRAINT(TO), "r"(V[0]), "r"(V[1]), "r"(V[2]), "r"(V[3]) : "memory");                            \
  else if constexpr (BYTES == 8)                                                                                      \
    asm volatile(OPERATION ".v2.b32 [%0], {%1,%2};" ::CONSTRAINT(TO), "r"(V[0]), "r"(V[1]) : "memory");               \
  else                                                                                                                \
    asm volatile(OPERATION ".b32 [%0], %1;" ::CONSTRAINT(TO), "r"(V[0]) : "memory");

/// Defines NAME<BYTES>(u32* v, address).
#define LOAD_FUNCTION(NAME, ADDRESS, OPERATION, ...)                                                                  \
  template <int BYTES>                                                                                                \
  __device__ __forceinline__ void NAME(u32* v, ADDRESS from) {                                                        \
    LOAD_BYTES(BYTES, v, OPERATION, __VA_ARGS__)                                                                            \
  }
/// Defines NAME(address, words) for 1, 2 or 4 words, and NAME(address, word).
#define STORE_FUNCTION(NAME, ADDRESS, OPERATION, CONSTRAINT)                                                          \
  template <int COUNT>                                                                                                \
  __device__ __forceinline__ void NAME(ADDRESS to, const u32 (&v)[COUNT]) {                                           \
    STORE_BYTES(4 * COUNT, to, v, OPERATION, CONSTRAINT)                                                                    \
  }                                                                                                                   \
  __device__ __forceinline__ void NAME(ADDRESS to, u32 word) {                                                        \
    const u32 v[] = {word};                                                                                           \
    NAME(to, v);                                                                                                      \
  }

// ---- shared memory

LOAD_FUNCTION(load_shared, u32, "ld.shared", "r"(from) : "memory")
STORE_FUNCTION(store_shared, u32, "st.shared", "r")
__device__ __forceinline__ u32 load_shared_word(u32 address) {
  u32 word;
  load_shared<4>(&word, address);
  return word;
}
__device__ __forceinline__ Chunk load_shared_chunk(u32 address) {
  Chunk c;
  load_shared<16>(c.v, address);
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

// ---- global memory

LOAD_FUNCTION(load_global, const void*, "ld.global", "l"(from))
STORE_FUNCTION(store_global, void*, "st.global", "l")
/// By the read-only (non-coherent) path, for memory that is not written during the launch.
LOAD_FUNCTION(load_global_nc, const void*, "ld.global.nc", "l"(from))
/// The same for data that is read once, without allocation in L1; then also with a prefetch of the surrounding 256 bytes to L2.
LOAD_FUNCTION(load_global_once, const void*, "ld.global.nc.L1::no_allocate", "l"(from))
LOAD_FUNCTION(load_global_once_256, const void*, "ld.global.nc.L1::no_allocate.L2::256B", "l"(from))
/// Returns a cache policy with first eviction from L2, so that streamed data does not displace other lines.
__device__ __forceinline__ u64 evict_first_policy() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// Like load_global_once_256(), with a cache policy.
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
__device__ __forceinline__ Chunk load_global_chunk(const void* pointer) {
  Chunk c;
  load_global<16>(c.v, pointer);
  return c;
}
__device__ __forceinline__ Chunk load_global_nc_chunk(const void* pointer) {
  Chunk c;
  load_global_nc<16>(c.v, pointer);
  return c;
}
/// 16 bytes of floats. With words instead, the compiler may keep sums in integer registers.
__device__ __forceinline__ void load_global_floats(float (&v)[4], const float* from) {
  asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "l"(from) : "memory");
}
__device__ __forceinline__ void load_shared_floats(float (&v)[4], u32 from) {
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void store_global_floats(float* to, const float (&v)[4]) {
  asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}
