// Products of warp-wide fragments: loaded, multiplied and stored in both layouts.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda::wmma;

#define PITCH(length) (sizeof(S) == 1 && (length) < 16 ? 16 : (length))  // rows of a factor start at multiples of 16 bytes

template <class, class>
constexpr bool same = false;
template <class T>
constexpr bool same<T, T> = true;

// Each warp multiplies one pair of matrices; a row of the output is one product of every warp.
template <class D, class T, class S, int M, int N, int K, class RA, class RB>
__device__ void product(D* out, const S* a, const S* b, const D* c, int& row, layout_t order) {
  int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
  fragment<matrix_a, M, N, K, T, RA> fa;
  fragment<matrix_b, M, N, K, T, RB> fb;
  fragment<accumulator, M, N, K, D> fc;
  load_matrix_sync(fa, a + warp * 512, PITCH((same<RA, row_major> ? K : M)));
  load_matrix_sync(fb, b + warp * 512, PITCH((same<RB, row_major> ? N : K)));
  load_matrix_sync(fc, c + warp * 256, order == mem_row_major ? N : M, order);
  for (int k = 0; k < fc.num_elements; k++) fc.x[k] = fc.x[k] + fc.x[k];
  mma_sync(fc, fa, fb, fc);
  store_matrix_sync(out + (row * warps + warp) * 256, fc, order == mem_row_major ? N : M, order);
  row++;
}
#define TILE(name, M, N, K, RA, RB, order) product<TYPES, M, N, K, RA##_major, RB##_major>(out, a, b, c, row, mem_##order##_major);

// launch: grid=2 block=64
// args: out=f32*8 a=f16:ints*16 b=f16:ints*16 c=f32:ints*8
// same: bitwise
// args: out=f32*8 a=f16:near*16 b=f16:near*16 c=f32:near*8
// same: accumulation
#define TYPES float, half, half
extern "C" __global__ void f16_f32(float* out, const half* a, const half* b, const float* c) {
  int row = 0;
  TILE("m16n16k16.row.col", 16, 16, 16, row, col, row) TILE("m16n16k16.col.row", 16, 16, 16, col, row, col)
  TILE("m32n8k16.row.row", 32, 8, 16, row, row, row) TILE("m8n32k16.col.col", 8, 32, 16, col, col, row)
}
#undef TYPES

// launch: grid=2 block=64
// args: out=f16*8 a=f16:ints*16 b=f16:ints*16 c=f16:ints*8
// same: bitwise
#define TYPES half, half, half
extern "C" __global__ void f16_f16(half* out, const half* a, const half* b, const half* c) {
  int row = 0;
  TILE("m16n16k16.row.col", 16, 16, 16, row, col, row) TILE("m16n16k16.col.row", 16, 16, 16, col, row, col)
  TILE("m32n8k16.row.row", 32, 8, 16, row, row, row) TILE("m8n32k16.col.col", 8, 32, 16, col, col, row)
}
#undef TYPES

// launch: grid=2 block=64
// args: out=f32*8 a=bf16:ints*16 b=bf16:ints*16 c=f32:ints*8
// same: bitwise
#define TYPES float, __nv_bfloat16, __nv_bfloat16
extern "C" __global__ void bf16_f32(float* out, const __nv_bfloat16* a, const __nv_bfloat16* b, const float* c) {
  int row = 0;
  TILE("m16n16k16.row.col", 16, 16, 16, row, col, row) TILE("m16n16k16.col.row", 16, 16, 16, col, row, col)
  TILE("m32n8k16.row.row", 32, 8, 16, row, row, row) TILE("m8n32k16.col.col", 8, 32, 16, col, col, row)
}
#undef TYPES

// launch: grid=2 block=64
// args: out=u32*8 a=u8:bits*16 b=u8:bits*16 c=u32:bits*8
// same: bitwise
#define TYPES int, signed char, signed char
extern "C" __global__ void s8_s32(int* out, const signed char* a, const signed char* b, const int* c) {
  int row = 0;
  TILE("m16n16k16.row.col", 16, 16, 16, row, col, row) TILE("m16n16k16.col.row", 16, 16, 16, col, row, col)
  TILE("m32n8k16.row.row", 32, 8, 16, row, row, row) TILE("m8n32k16.col.col", 8, 32, 16, col, col, row)
}
#undef TYPES

// launch: grid=2 block=64
// args: out=u32*8 a=u8:bits*16 b=u8:bits*16 c=u32:bits*8
// same: bitwise
#define TYPES int, unsigned char, unsigned char
extern "C" __global__ void u8_s32(int* out, const unsigned char* a, const unsigned char* b, const int* c) {
  int row = 0;
  TILE("m16n16k16.row.col", 16, 16, 16, row, col, row) TILE("m16n16k16.col.row", 16, 16, 16, col, row, col)
  TILE("m32n8k16.row.row", 32, 8, 16, row, row, row) TILE("m8n32k16.col.col", 8, 32, 16, col, col, row)
}
#undef TYPES

// launch: grid=2 block=64
// args: out=f32*8 a=f32:ints*16 b=f32:ints*16 c=f32:ints*8
// same: bitwise
#define TYPES float, precision::tf32, float
extern "C" __global__ void tf32_f32(float* out, const float* a, const float* b, const float* c) {
  int row = 0;
  TILE("m16n16k8.row.col", 16, 16, 8, row, col, row) TILE("m16n16k8.col.row", 16, 16, 8, col, row, col)
}
#undef TYPES
