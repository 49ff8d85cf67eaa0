// Saved by an editor on Windows.
#include "cuda_runtime.h"
#include "device_launch_parameters.h"
#include <windows.h>
#include <stdio.h>

#define SCALE(x) \
    ((x) * 2)

cudaError_t addWithCuda(int *c, const int *a, const int *b, unsigned int size);

__global__ void addKernel(int *c, const int *a, const int *b)
{
    int i = threadIdx.x;
    c[i] = SCALE(a[i]) + b[i]; // café
}

int main()
{
    const int arraySize = 5;
    addKernel<<<1, arraySize>>>(0, 0, 0);
    return 0;
}

cudaError_t addWithCuda(int *c, const int *a, const int *b, unsigned int size)
{
    return cudaSetDevice(0);
}