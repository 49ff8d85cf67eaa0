// A PyTorch extension: bindings, tensor checks and dispatch around two kernels.
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <pybind11/pybind11.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_fp16.h>

#include <vector>

namespace py = pybind11;
using namespace torch::indexing;

#define CHECK_CUDA(x) TORCH_CHECK(x.device().is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) \
  CHECK_CUDA(x);       \
  CHECK_CONTIGUOUS(x)

#define WARP_SIZE 32
constexpr int kThreads = 256;

namespace {

template <typename scalar_t>
__device__ __forceinline__ scalar_t sigmoid(scalar_t z) {
  return 1.0 / (1.0 + exp(-z));
}

__inline__ __device__ float warp_reduce_sum(float val) {
#pragma unroll
  for (int mask = WARP_SIZE / 2; mask > 0; mask >>= 1) {
    val += __shfl_xor_sync(0xffffffff, val, mask);
  }
  return val;
}

template <typename scalar_t>
__global__ void swish_forward_kernel(const scalar_t* __restrict__ input, scalar_t* __restrict__ output, size_t state_size) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int index = blockIdx.y * state_size + column;
  if (column < state_size) {
    output[index] = input[index] * sigmoid(input[index]);
  }
}

template <typename scalar_t>
__global__ void lltm_accessor_kernel(
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> gates,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> out) {
  out[blockIdx.x][threadIdx.x] = gates[blockIdx.x][threadIdx.x];
}

}  // namespace

__global__ void __launch_bounds__(kThreads) rms_norm_kernel(
    half* __restrict__ out, const half* __restrict__ input, const half* __restrict__ weight, float epsilon, int hidden) {
  __shared__ float partial[WARP_SIZE];
  float sum = 0.f;
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
    float x = __half2float(input[blockIdx.x * hidden + i]);
    sum += x * x;
  }
  sum = warp_reduce_sum(sum);
  if (threadIdx.x % WARP_SIZE == 0) partial[threadIdx.x / WARP_SIZE] = sum;
  __syncthreads();
  sum = threadIdx.x < kThreads / WARP_SIZE ? partial[threadIdx.x] : 0.f;
  sum = warp_reduce_sum(sum);
  if (threadIdx.x == 0) partial[0] = rsqrtf(sum / hidden + epsilon);
  __syncthreads();
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
    out[blockIdx.x * hidden + i] = __float2half(__half2float(input[blockIdx.x * hidden + i]) * partial[0] * __half2float(weight[i]));
  }
}

static std::vector<at::Tensor> cache;

torch::Tensor swish_forward(torch::Tensor input) {
  CHECK_INPUT(input);
  auto output = torch::empty_like(input);
  const int threads = 1024;
  const dim3 blocks((input.size(1) + threads - 1) / threads, input.size(0));
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "swish_forward", ([&] {
    swish_forward_kernel<scalar_t><<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
        input.data_ptr<scalar_t>(), output.data_ptr<scalar_t>(), input.size(1));
  }));
  return output;
}

void rms_norm(torch::Tensor& out, torch::Tensor& input, torch::Tensor& weight, double epsilon) {
  int hidden_size = input.size(-1);
  int num_tokens = input.numel() / hidden_size;
  dim3 grid(num_tokens);
  dim3 block(std::min(hidden_size, kThreads));
  const at::cuda::OptionalCUDAGuard device_guard(device_of(input));
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  rms_norm_kernel<<<grid, block, 0, stream>>>(
      reinterpret_cast<half*>(out.data_ptr()), reinterpret_cast<half*>(input.data_ptr()),
      reinterpret_cast<half*>(weight.data_ptr()), epsilon, hidden_size);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("swish_forward", &swish_forward, "Swish forward (CUDA)");
  m.def("rms_norm", &rms_norm);
}

TORCH_LIBRARY(my_ops, m) {
  m.def("rms_norm(Tensor! out, Tensor input, Tensor weight, float epsilon) -> ()");
}
TORCH_LIBRARY_IMPL(my_ops, CUDA, m) { m.impl("rms_norm", &rms_norm); }
