// Sealing and comparison of large inputs, references and outputs, each in one pass over memory. torch's operations need
// ten or more passes (evokern/gate/sealed.py, evokern/gate/comparison.py).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr unsigned kThreads = 256;

// ---- XOR with the stream of a counter-based generator (Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). Block i of the stream, 16 bytes, is the generator's output for the counter i.
// A second application with the same key restores the data.

struct Block { unsigned a, b, c, d; };

__device__ __forceinline__ Block philox(unsigned long long counter, unsigned key0, unsigned key1) {
    Block x{static_cast<unsigned>(counter), static_cast<unsigned>(counter >> 32), 0u, 0u};
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned high0 = __umulhi(0xD2511F53u, x.a), low0 = 0xD2511F53u * x.a;
        const unsigned high1 = __umulhi(0xCD9E8D57u, x.c), low1 = 0xCD9E8D57u * x.c;
        x = Block{high1 ^ x.b ^ key0, low1, high0 ^ x.d ^ key1, low0};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return x;
}

__device__ __forceinline__ unsigned long long joined(unsigned low, unsigned high) {
    return static_cast<unsigned long long>(high) << 32 | low;
}

extern "C" __global__ void __launch_bounds__(kThreads) xor_stream(
    const unsigned long long* words, unsigned long long* out, unsigned long long count, unsigned key0, unsigned key1) {
    const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; 2 * i < count;
         i += stride) {
        const Block block = philox(i, key0, key1);
        out[2 * i] = words[2 * i] ^ joined(block.a, block.b);
        if (2 * i + 1 < count) out[2 * i + 1] = words[2 * i + 1] ^ joined(block.c, block.d);
    }
}

// ---- comparison of an output with its float64 reference, equivalent to `_compare_part` in comparison.py: every block
// writes ten numbers about its elements.

enum Dtype : unsigned { kF16, kBF16, kF32 };
// Check of elements whose reference is an infinity or NaN: not expected, skipped, or must be equal.
enum NonFinite : unsigned { kUnexpected, kPassedOver, kJudged };

struct Found {
    double bad, index, got, expected, allowed, excess, most, errors, scale, shares;

    // NaN counts as larger than any number, as in torch's argmax and amax.
    __device__ void take(const Found& other) {
        bad += other.bad;
        errors += other.errors;
        scale += other.scale;
        shares += other.shares;
        if (other.most > most || other.most != other.most) most = other.most;
        const bool worse = other.excess > excess || (other.excess != other.excess && excess == excess);
        const bool earlier = other.excess == excess && other.index < index;
        if (worse || earlier) {
            index = other.index;
            got = other.got;
            expected = other.expected;
            allowed = other.allowed;
            excess = other.excess;
        }
    }
};

__device__ __forceinline__ double value_at(const void* values, unsigned long long i, unsigned dtype) {
    if (dtype == kF16) return static_cast<double>(__half2float(static_cast<const __half*>(values)[i]));
    if (dtype == kBF16) return static_cast<double>(__bfloat162float(static_cast<const __nv_bfloat16*>(values)[i]));
    return static_cast<double>(static_cast<const float*>(values)[i]);
}

__device__ __forceinline__ double clamped(double value, double limit) {
    return value > limit ? limit : value < -limit ? -limit : value;  // keeps NaN
}

extern "C" __global__ void __launch_bounds__(kThreads) compare(
    const void* values, const double* references, const void* errors, unsigned error_bytes, unsigned long long count,
    unsigned dtype, double atol, double rtol,
    double limit, unsigned nonfinite, double* out) {
    constexpr double kTiny = 2.2250738585072014e-308;  // the smallest normal number
    const double infinity = __longlong_as_double(0x7FF0000000000000ll), nan = infinity - infinity;
    Found found{0, 0, 0, 0, 0, -infinity, -infinity, 0, 0, 0};
    const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += stride) {
        const double reference = references[i], value = value_at(values, i, dtype);
        const bool odd = nonfinite != kUnexpected && !(fabs(reference) < infinity);
        const bool same = value == reference || (value != value && reference != reference);
        const bool alike = odd && (nonfinite == kPassedOver || same);
        double got = alike ? 0.0 : clamped(value, limit);
        double expected = alike ? 0.0 : odd ? nan : clamped(reference, limit);
        double allowed = __dadd_rn(__dmul_rn(fabs(expected), rtol), atol);  // rounded twice, as torch does
        if (error_bytes == 2) allowed = __dadd_rn(allowed, value_at(errors, i, kBF16));
        if (error_bytes == 8) allowed = __dadd_rn(allowed, static_cast<const double*>(errors)[i]);
        if (allowed != allowed) allowed = 0.0;
        const double error = fabs(got - expected), share = error / fmax(allowed, kTiny);
        if (nonfinite != kUnexpected && error != error) got = value, expected = reference;  // report the original values
        found.take(Found{error <= allowed ? 0.0 : 1.0, static_cast<double>(i), got, expected, allowed, error - allowed,
                         share, error * error, expected * expected, share * share});
    }
    __shared__ Found of_threads[kThreads];
    of_threads[threadIdx.x] = found;
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) of_threads[threadIdx.x].take(of_threads[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) {
        const Found& all = of_threads[0];
        const double numbers[] = {all.bad, all.index, all.got, all.expected, all.allowed,
                                  all.excess, all.most, all.errors, all.scale, all.shares};
        for (int n = 0; n < 10; ++n) out[n * gridDim.x + blockIdx.x] = numbers[n];
    }
}
