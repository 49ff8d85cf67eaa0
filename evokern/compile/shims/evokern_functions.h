// Functions for exact arithmetic (docs/proof.md): their results have the bits of CUDA's function, and as exact value an
// expression of marked functions. They replace CUDA's own, which the compiler expands into instructions on bits.
// `evokern.device.sim.algebra.named_functions` defines the macros that list names.
#pragma once

namespace evokern_exact {

// `slct` with a number that is not negative returns its first operand; exact arithmetic reads the number.
enum { EVOKERN_MARKS };
template <int FUNCTION> __device__ __forceinline__ float marked(float bits, float x) {
    float result;
    asm("slct.f32.s32 %0, %1, %2, %3;" : "=f"(result) : "f"(bits), "f"(x), "n"(FUNCTION));
    return result;
}
template <int FUNCTION> __device__ __forceinline__ double marked(double bits, double x) {
    double result;
    asm("slct.f64.s32 %0, %1, %2, %3;" : "=d"(result) : "d"(bits), "d"(x), "n"(FUNCTION));
    return result;
}

// Constants of float32, also for float64.
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.69314718f, LOG2_10 = 3.32192809f, LOG10_2 = 0.30103f;
constexpr float SQRT_HALF = 0.70710678f, PI = 3.14159265f;

// The bits of an argument of `OF_ex2` count: the exponential of a very low number is zero.
template <class T> __device__ __forceinline__ T exp2(T x) { return marked<OF_ex2>(x, x); }
template <class T> __device__ __forceinline__ T exp(T x) { return exp2(x * T(LOG2_E)); }
template <class T> __device__ __forceinline__ T exp10(T x) { return exp2(x * T(LOG2_10)); }
template <class T> __device__ __forceinline__ T expm1(T x) { return exp(x) - T(1); }
template <class T> __device__ __forceinline__ T log2(T x) { return marked<OF_lg2>(T(::log2(x)), x); }
template <class T> __device__ __forceinline__ T log(T x) { return log2(x) * T(LN_2); }
template <class T> __device__ __forceinline__ T log10(T x) { return log2(x) * T(LOG10_2); }
template <class T> __device__ __forceinline__ T log1p(T x) { return log(T(1) + x); }
template <class T> __device__ __forceinline__ T sinh(T x) { return (exp(x) - exp(-x)) * T(0.5); }
template <class T> __device__ __forceinline__ T cosh(T x) { return (exp(x) + exp(-x)) * T(0.5); }
template <class T> __device__ __forceinline__ T tanh(T x) { return T(1) - T(2) / (exp(x + x) + T(1)); }
template <class T> __device__ __forceinline__ T asinh(T x) { return log(x + sqrt(x * x + T(1))); }
template <class T> __device__ __forceinline__ T acosh(T x) { return log(x + sqrt(x * x - T(1))); }
template <class T> __device__ __forceinline__ T atanh(T x) { return log((T(1) + x) / (T(1) - x)) * T(0.5); }
#define EVOKERN_FORMAL(NAME) template <class T> __device__ __forceinline__ T NAME(T x) { return marked<OF_##NAME>(x, x); }
EVOKERN_FORMALS(EVOKERN_FORMAL)
template <class T> __device__ __forceinline__ T erfc(T x) { return T(1) - erf(x); }
template <class T> __device__ __forceinline__ T normcdf(T x) { return (T(1) + erf(x * T(SQRT_HALF))) * T(0.5); }
template <class T> __device__ __forceinline__ T tan(T x) { return sin(x) / cos(x); }
template <class T> __device__ __forceinline__ T sinpi(T x) { return sin(x * T(PI)); }
template <class T> __device__ __forceinline__ T cospi(T x) { return cos(x * T(PI)); }
// Constant multiples of 1/2 as exponents give products and a square root, so that the sign of x counts.
template <class T> __device__ __forceinline__ T pow(T x, T y, bool constant) {
    const int halves = int(y + y), count = halves < 0 ? -halves : halves;
    if (constant && y + y == T(halves) && count <= 32) {
        T product = count % 2 ? sqrt(x) : T(1);
        for (int i = 0; i < count / 2; i++) product *= x;
        return halves < 0 ? T(1) / product : product;
    }
    return exp2(y * log2(x));
}

}  // namespace evokern_exact

// Macros that replace CUDA's names by the functions below follow this file.
#define EVOKERN_FUNCTION(NAME)                                                                                        \
    __device__ __forceinline__ float evokern_##NAME##f(float x) {                                                     \
        return evokern_exact::marked<evokern_exact::OF_copy>(::NAME##f(x), evokern_exact::NAME(x));                      \
    }                                                                                                                 \
    __device__ __forceinline__ double evokern_##NAME(double x) {                                                      \
        return evokern_exact::marked<evokern_exact::OF_copy>(::NAME(x), evokern_exact::NAME(x));                         \
    }                                                                                                                 \
    __device__ __forceinline__ float evokern_##NAME(float x) { return evokern_##NAME##f(x); }                         \
    template <class T, class = typename std::enable_if<std::is_integral<T>::value>::type>                             \
    __device__ __forceinline__ double evokern_##NAME(T x) {                                                           \
        return evokern_##NAME(double(x));                                                                             \
    }                                                                                                                 \
    namespace std {                                                                                                   \
    using ::evokern_##NAME;                                                                                           \
    using ::evokern_##NAME##f;                                                                                        \
    }
EVOKERN_FUNCTIONS(EVOKERN_FUNCTION)

#define EVOKERN_POWER(TYPE, NAME, ORIGINAL)                                                                           \
    __device__ __forceinline__ TYPE NAME(TYPE x, TYPE y) {                                                            \
        return evokern_exact::marked<evokern_exact::OF_copy>(::ORIGINAL(x, y),                                           \
                                                          evokern_exact::pow(x, y, __builtin_constant_p(y)));         \
    }
EVOKERN_POWER(float, evokern_powf, powf)
EVOKERN_POWER(float, evokern_pow, powf)
EVOKERN_POWER(double, evokern_pow, pow)
template <class T, class U> __device__ __forceinline__ auto evokern_pow(T x, U y) {
    constexpr bool single = std::is_same<T, float>::value && std::is_integral<U>::value;
    using Common = typename std::conditional<single, float, double>::type;
    return evokern_pow(Common(x), Common(y));
}

// Sine and cosine of one angle.
#define EVOKERN_BOTH(TYPE, NAME, SINE, COSINE)                                                                        \
    __device__ __forceinline__ void NAME(TYPE x, TYPE* sine, TYPE* cosine) { *sine = SINE(x), *cosine = COSINE(x); }
EVOKERN_BOTH(float, evokern_sincosf, evokern_sinf, evokern_cosf)
EVOKERN_BOTH(double, evokern_sincos, evokern_sin, evokern_cos)
EVOKERN_BOTH(float, evokern_sincospif, evokern_sinpif, evokern_cospif)
EVOKERN_BOTH(double, evokern_sincospi, evokern_sinpi, evokern_cospi)

namespace std {
using ::evokern_pow;
using ::evokern_powf;
}  // namespace std
