// Programmatic dependent launch, and cache eviction policies: hints about time.
extern "C" __global__ void dependent(float* out, const float* in) {
  cudaGridDependencySynchronize();
  const float value = in[threadIdx.x];
  cudaTriggerProgrammaticLaunchCompletion();
  out[threadIdx.x] = value + 1;
}

extern "C" __global__ void policies(float* out, const float* in, float* total) {
  __shared__ alignas(16) float staged[64 * 4];
  const int t = threadIdx.x;
  unsigned long long last, first, range, converted;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
  asm volatile("createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %0, 0.5;" : "=l"(first));
  asm volatile("createpolicy.range.global.L2::evict_last.L2::evict_unchanged.b64 %0, [%1], 128, 256;"
               : "=l"(range) : "l"(in));
  asm volatile("createpolicy.cvt.L2.b64 %0, 0x12F0000000000000;" : "=l"(converted));
  const unsigned place = (unsigned)__cvta_generic_to_shared(staged + 4 * t);
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(place), "l"(in + 4 * t), "l"(last)
               : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  float one, a, b, c, d, old;
  asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(one) : "l"(in + t), "l"(last));
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
               : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "l"(in + 4 * t), "l"(first));
  asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(out + t), "f"(a + b + c + d + staged[4 * t] + one),
               "l"(range) : "memory");
  asm volatile("st.global.L1::no_allocate.L2::cache_hint.v2.f32 [%0], {%1, %2}, %3;" ::"l"(out + 64 + 2 * t), "f"(b),
               "f"(c), "l"(converted) : "memory");
  asm volatile("red.global.add.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(total), "f"(1.f), "l"(last) : "memory");
  asm volatile("atom.global.add.L2::cache_hint.f32 %0, [%1], %2, %3;" : "=f"(old) : "l"(total + 1), "f"(1.f), "l"(last)
               : "memory");
}
