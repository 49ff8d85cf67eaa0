// Asynchronous copies of 8 rows of 128 bytes that start OFFSET pieces of 16 bytes into their lines of shared memory.
extern "C" __global__ void shifted_copies(unsigned* out, const uint4* in) {
  __shared__ __align__(128) unsigned char tile[64 * 128 + 128];
  unsigned base = (unsigned)__cvta_generic_to_shared(tile) + OFFSET * 16;
  for (int k = threadIdx.x; k < 512; k += 128)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(base + k * 16), "l"(in + blockIdx.x * 512 + k) : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  out[blockIdx.x * 128 + threadIdx.x] = *(unsigned*)(tile + OFFSET * 16 + threadIdx.x * 64);
}
