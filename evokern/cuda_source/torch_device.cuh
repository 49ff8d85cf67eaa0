// Types and functions of PyTorch's headers that device code uses, with the layout of PyTorch's own; see
// c10/util/Half.h, c10/util/BFloat16.h, ATen/core/TensorAccessor.h, ATen/AccumulateType.h and ATen/cuda/Atomic.cuh.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define EVOKERN_FN __host__ __device__ __forceinline__
#define EVOKERN_REAL(NAME, NATIVE, FROM_FLOAT, TO_FLOAT)                                             \
    struct alignas(2) NAME {                                                                         \
        unsigned short x;                                                                            \
        NAME() = default;                                                                            \
        EVOKERN_FN NAME(float value) { *this = NAME(FROM_FLOAT(value)); }                            \
        EVOKERN_FN NAME(const NATIVE& value) : x(*reinterpret_cast<const unsigned short*>(&value)) {} \
        EVOKERN_FN operator NATIVE() const { return *reinterpret_cast<const NATIVE*>(&x); }          \
        EVOKERN_FN operator float() const { return TO_FLOAT(*reinterpret_cast<const NATIVE*>(&x)); } \
    };                                                                                               \
    EVOKERN_FN NAME operator-(NAME a) { return -float(a); }                                          \
    EVOKERN_OPERATOR(NAME, +) EVOKERN_OPERATOR(NAME, -) EVOKERN_OPERATOR(NAME, *) EVOKERN_OPERATOR(NAME, /) \
    EVOKERN_COMPARISON(NAME, <) EVOKERN_COMPARISON(NAME, >) EVOKERN_COMPARISON(NAME, <=)             \
    EVOKERN_COMPARISON(NAME, >=) EVOKERN_COMPARISON(NAME, ==) EVOKERN_COMPARISON(NAME, !=)
#define EVOKERN_OPERATOR(NAME, OP)                                                                   \
    EVOKERN_FN NAME operator OP(NAME a, NAME b) { return float(a) OP float(b); }                     \
    EVOKERN_FN NAME operator OP(NAME a, int b) { return float(a) OP float(NAME(float(b))); }         \
    EVOKERN_FN NAME operator OP(int a, NAME b) { return float(NAME(float(a))) OP float(b); }         \
    EVOKERN_FN float operator OP(NAME a, float b) { return float(a) OP b; }                          \
    EVOKERN_FN float operator OP(float a, NAME b) { return a OP float(b); }                          \
    EVOKERN_FN double operator OP(NAME a, double b) { return float(a) OP b; }                        \
    EVOKERN_FN double operator OP(double a, NAME b) { return a OP float(b); }                        \
    EVOKERN_FN NAME& operator OP##=(NAME& a, NAME b) { return a = float(a) OP float(b); }
#define EVOKERN_COMPARISON(NAME, OP)                                             \
    EVOKERN_FN bool operator OP(NAME a, NAME b) { return float(a) OP float(b); } \
    EVOKERN_COMPARISON_WITH(NAME, OP, int) EVOKERN_COMPARISON_WITH(NAME, OP, float) EVOKERN_COMPARISON_WITH(NAME, OP, double)
#define EVOKERN_COMPARISON_WITH(NAME, OP, OTHER)                              \
    EVOKERN_FN bool operator OP(NAME a, OTHER b) { return float(a) OP b; } \
    EVOKERN_FN bool operator OP(OTHER a, NAME b) { return a OP float(b); }
namespace c10 {
EVOKERN_REAL(Half, __half, __float2half, __half2float)
EVOKERN_REAL(BFloat16, __nv_bfloat16, __float2bfloat16, __bfloat162float)
}  // namespace c10
#undef EVOKERN_REAL
#undef EVOKERN_OPERATOR
#undef EVOKERN_COMPARISON
#undef EVOKERN_COMPARISON_WITH
namespace at {
using c10::BFloat16;
using c10::Half;
template <class T> struct DefaultPtrTraits { typedef T* PtrType; };
template <class T> struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };
template <class T, unsigned long N, template <class> class Traits, class Index> struct TensorAccessor {
    typename Traits<T>::PtrType data_;
    const Index *sizes_, *strides_;
    EVOKERN_FN Index size(Index axis) const { return sizes_[axis]; }
    EVOKERN_FN Index stride(Index axis) const { return strides_[axis]; }
    EVOKERN_FN T* data() const { return data_; }
    EVOKERN_FN TensorAccessor<T, N - 1, Traits, Index> operator[](Index i) const {
        return {data_ + strides_[0] * i, sizes_ + 1, strides_ + 1};
    }
};
template <class T, template <class> class Traits, class Index> struct TensorAccessor<T, 1, Traits, Index> {
    typename Traits<T>::PtrType data_;
    const Index *sizes_, *strides_;
    EVOKERN_FN Index size(Index axis) const { return sizes_[axis]; }
    EVOKERN_FN Index stride(Index axis) const { return strides_[axis]; }
    EVOKERN_FN T* data() const { return data_; }
    EVOKERN_FN T& operator[](Index i) const { return data_[strides_[0] * i]; }
};
template <class T, unsigned long N, template <class> class Traits = DefaultPtrTraits, class Index = long>
struct GenericPackedTensorAccessor {
    typename Traits<T>::PtrType data_;
    Index sizes_[N], strides_[N];
    EVOKERN_FN Index size(Index axis) const { return sizes_[axis]; }
    EVOKERN_FN Index stride(Index axis) const { return strides_[axis]; }
    EVOKERN_FN T* data() const { return data_; }
    EVOKERN_FN decltype(auto) operator[](Index i) const {
        return TensorAccessor<T, N, Traits, Index>{data_, sizes_, strides_}[i];
    }
};
template <class T, unsigned long N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, Traits, int>;
template <class T, unsigned long N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, Traits, long>;
template <class T, unsigned long N, template <class> class Traits = DefaultPtrTraits, class Index = long>
using PackedTensorAccessor = GenericPackedTensorAccessor<T, N, Traits, Index>;
template <class T, bool Cuda = true> struct AccumulateType { typedef T type; };
template <bool Cuda> struct AccumulateType<Half, Cuda> { typedef float type; };
template <bool Cuda> struct AccumulateType<BFloat16, Cuda> { typedef float type; };
template <bool Cuda> struct AccumulateType<float, Cuda> { typedef float type; };
template <class T, bool Cuda> using acc_type = typename AccumulateType<T, Cuda>::type;
template <class T> struct OpMathType { typedef T type; };
template <> struct OpMathType<Half> { typedef float type; };
template <> struct OpMathType<BFloat16> { typedef float type; };
template <class T> using opmath_type = typename OpMathType<T>::type;
}  // namespace at
namespace c10 {
using at::DefaultPtrTraits;
using at::RestrictPtrTraits;
}  // namespace c10
namespace torch {
using namespace at;
}  // namespace torch
template <class T> __device__ __forceinline__ T gpuAtomicAdd(T* address, T value) { return atomicAdd(address, value); }
__device__ __forceinline__ c10::Half gpuAtomicAdd(c10::Half* address, c10::Half value) {
    return atomicAdd(reinterpret_cast<__half*>(address), __half(value));
}
__device__ __forceinline__ c10::BFloat16 gpuAtomicAdd(c10::BFloat16* address, c10::BFloat16 value) {
    return atomicAdd(reinterpret_cast<__nv_bfloat16*>(address), __nv_bfloat16(value));
}
#define CUDA_KERNEL_LOOP_TYPE(i, n, index_type) \
    for (index_type i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)
#undef EVOKERN_FN
