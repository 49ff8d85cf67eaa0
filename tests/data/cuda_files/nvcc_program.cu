/*
 * A whole program for nvcc: kernels, host reference, timing, main.
 *   nvcc -O3 -o gemm nvcc_program.cu
 */
#include <stdio.h>
#include <stdlib.h>
#include <assert.h>
#include <math.h>
#include <float.h>
#include <time.h>
#include <sys/time.h>
#include <cuda_runtime.h>
#include <cublas_v2.h>

#define TILE 16
#define N_ITER 10
#ifndef UNROLL
#define UNROLL 4
#endif

#define CUDA_CHECK(call)                                                    \
  do {                                                                      \
    cudaError_t status = (call);                                            \
    if (status != cudaSuccess) {                                            \
      fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(status)); \
      exit(EXIT_FAILURE);                                                   \
    }                                                                       \
  } while (0)

#if 0
This text isn't code at all: don't read it { ( [ <<<
#endif

static float *h_A, *h_B, *h_C;
int device_id = 0;
const char *names[] = {"naive", "tiled"};
const int kMaxRows = 1 << 12, kMaxCols = 4096;
__constant__ float c_scale[4];
__device__ unsigned int d_counter = 0;

typedef struct {
  int width;
  int height;
  float *elements;
} Matrix;

double wall_time() {
  struct timeval tv;
  gettimeofday(&tv, NULL);
  return tv.tv_sec + 1e-6 * tv.tv_usec;
}

__device__ float get_element(const Matrix A, int row, int col) { return A.elements[row * A.width + col]; }

__global__ void gemm_naive(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
  const uint x = blockIdx.x * blockDim.x + threadIdx.x;
  const uint y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < M && y < N) {
    float tmp = 0.0;
    for (int i = 0; i < K; ++i) tmp += A[x * K + i] * B[i * N + y];
    C[x * N + y] = alpha * tmp + beta * C[x * N + y];
  }
}

__global__ void
gemm_tiled(const Matrix A, const Matrix B, Matrix C)
{
  __shared__ float As[TILE][TILE + 1], Bs[TILE][TILE + 1];
  int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
  float acc = 0.f;
  assert(row < kMaxRows);
  for (int t = 0; t < (A.width + TILE - 1) / TILE; t++) {
    As[threadIdx.y][threadIdx.x] = get_element(A, row, t * TILE + threadIdx.x);
    Bs[threadIdx.y][threadIdx.x] = get_element(B, t * TILE + threadIdx.y, col);
    __syncthreads();
#pragma unroll UNROLL
    for (int k = 0; k < TILE; k++) acc += As[threadIdx.y][k] * Bs[k][threadIdx.x];
    __syncthreads();
  }
  if (acc > FLT_MAX) printf("overflow at %d\n", row);
  acc = fminf(acc, INFINITY) * c_scale[0];
  if (threadIdx.x == 0) atomicAdd(&d_counter, 1u);
  C.elements[row * C.width + col] = acc;
}

void reference(const float *A, const float *B, float *C, int M, int N, int K) {
#pragma omp parallel for
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
#ifdef USE_DOUBLE
      double sum = 0;
#else
      float sum = 0;
#endif
      for (int k = 0; k < K; k++) sum += A[i * K + k] * B[k * N + j];
      C[i * N + j] = sum;
    }
}

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

int main(int argc, char **argv) {
  int size = argc > 1 ? atoi(argv[1]) : 1024;
  Matrix A = {size, size, NULL}, B = A, C = A;
  CUDA_CHECK(cudaSetDevice(device_id));
  CUDA_CHECK(cudaMalloc(&A.elements, size * size * sizeof(float)));
  dim3 threads(TILE, TILE);
  dim3 blocks((size + TILE - 1) / TILE, (size + TILE - 1) / TILE);
  double start = wall_time();
  for (int i = 0; i < N_ITER; i++) gemm_tiled<<<blocks, threads>>>(A, B, C);
  gemm_naive<<<dim3((size + 31) / 32, (size + 31) / 32, 1), dim3(32, 32)>>>(size, size, size, 1.f, h_A, h_B, 0.f, h_C);
  void *args[] = {&A, &B, &C};
  cudaLaunchKernel((void *)gemm_tiled, blocks, threads, args, 0, 0);
  printf("%s: %f s\n", names[1], wall_time() - start);
  return 0;
}
