// A tile of 64x64 halves goes through shared memory, row by row in and column by column or matrix by matrix out.
// LAYOUT: 0 plain rows of 128 bytes, 1 rows padded by 16 bytes, 2 16-byte pieces of a row permuted by the row (XOR).
#if LAYOUT == 1
#define PITCH 144
#else
#define PITCH 128
#endif
#if LAYOUT == 2
#define PIECE(row, piece) ((piece) ^ (row) & 7)
#else
#define PIECE(row, piece) (piece)
#endif
__device__ __forceinline__ unsigned place(int row, int piece) { return row * PITCH + PIECE(row, piece) * 16; }

template <bool ASYNC>
__device__ __forceinline__ void fill(unsigned base, const uint4* in) {
  for (int k = threadIdx.x; k < 512; k += 128) {
    unsigned to = base + place(k / 8, k % 8);
    const uint4* from = in + blockIdx.x * 512 + k;
    if (ASYNC) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    } else {
      uint4 v = *from;
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
    }
  }
  if (ASYNC) asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}

// Each lane reads a row of its own: words of one column lie PITCH bytes apart.
__device__ __forceinline__ unsigned columns(unsigned base) {
  unsigned sum = 0, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int word = warp; word < 32; word += 4)
    for (int half = 0; half < 64; half += 32) {
      unsigned v;
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(base + place(lane + half, word / 4) + word % 4 * 4) : "memory");
      sum = sum * 31 + v;
    }
  return sum;
}

__device__ __forceinline__ unsigned matrices(unsigned base) {
  unsigned sum = 0, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int piece = 0; piece < 8; piece += 2) {
    unsigned v[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(base + place(warp * 16 + lane % 16, piece + lane / 16)) : "memory");
    for (int k = 0; k < 4; k++) sum = sum * 31 + v[k];
  }
  return sum;
}

#define KERNEL(name, ASYNC, READ)                                                       \
  extern "C" __global__ void name(unsigned* out, const uint4* in) {                      \
    __shared__ __align__(128) unsigned char tile[64 * PITCH];                            \
    unsigned base = (unsigned)__cvta_generic_to_shared(tile);                            \
    fill<ASYNC>(base, in);                                                               \
    out[blockIdx.x * 128 + threadIdx.x] = READ(base);                                    \
  }
KERNEL(stores_and_columns, false, columns)
KERNEL(stores_and_matrices, false, matrices)
KERNEL(copies_and_matrices, true, matrices)
