// The arithmetic under every pinned function: IEEE 754 operations with their rounding
// spelled out, compiled by g++, clang++, nvcc and NVRTC alike (no standard headers here).
//
// On CUDA they are the _rn intrinsics, which the compiler never fuses; on the host they are
// plain operators, and the build forbids contraction (-ffp-contract=off). Source:
// NUMERICS section 3.
#pragma once

// Internal linkage and forced inlining: the same function is compiled for several
// instruction sets, and the linker must never merge one's code into another's.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define BW_PINNED __host__ __device__ static __forceinline__
#else
#define BW_PINNED [[gnu::always_inline]] static inline
#endif

namespace bitwitness {

using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

#if defined(__CUDA_ARCH__)

BW_PINNED float add_rn(float a, float b) { return __fadd_rn(a, b); }
BW_PINNED float sub_rn(float a, float b) { return __fsub_rn(a, b); }
BW_PINNED float mul_rn(float a, float b) { return __fmul_rn(a, b); }
BW_PINNED float div_rn(float a, float b) { return __fdiv_rn(a, b); }
BW_PINNED float sqrt_rn(float a) { return __fsqrt_rn(a); }
BW_PINNED float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
BW_PINNED float ceil_exact(float a) { return ceilf(a); }
BW_PINNED double add_rn(double a, double b) { return __dadd_rn(a, b); }
BW_PINNED double sub_rn(double a, double b) { return __dsub_rn(a, b); }
BW_PINNED double mul_rn(double a, double b) { return __dmul_rn(a, b); }
BW_PINNED double div_rn(double a, double b) { return __ddiv_rn(a, b); }
BW_PINNED double fma_rn(double a, double b, double c) { return __fma_rn(a, b, c); }
BW_PINNED float round_to_f32(double a) { return __double2float_rn(a); }
BW_PINNED u32 bits_of(float a) { return __float_as_uint(a); }
BW_PINNED u64 bits_of(double a) { return static_cast<u64>(__double_as_longlong(a)); }
BW_PINNED float float_of(u32 a) { return __uint_as_float(a); }
BW_PINNED double double_of(u64 a) { return __longlong_as_double(static_cast<i64>(a)); }

#else

BW_PINNED float add_rn(float a, float b) { return a + b; }
BW_PINNED float sub_rn(float a, float b) { return a - b; }
BW_PINNED float mul_rn(float a, float b) { return a * b; }
BW_PINNED float div_rn(float a, float b) { return a / b; }
BW_PINNED float sqrt_rn(float a) { return __builtin_sqrtf(a); }
BW_PINNED float fma_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
BW_PINNED float ceil_exact(float a) { return __builtin_ceilf(a); }
BW_PINNED double add_rn(double a, double b) { return a + b; }
BW_PINNED double sub_rn(double a, double b) { return a - b; }
BW_PINNED double mul_rn(double a, double b) { return a * b; }
BW_PINNED double div_rn(double a, double b) { return a / b; }
BW_PINNED double fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
BW_PINNED float round_to_f32(double a) { return static_cast<float>(a); }
BW_PINNED u32 bits_of(float a) { return __builtin_bit_cast(u32, a); }
BW_PINNED u64 bits_of(double a) { return __builtin_bit_cast(u64, a); }
BW_PINNED float float_of(u32 a) { return __builtin_bit_cast(float, a); }
BW_PINNED double double_of(u64 a) { return __builtin_bit_cast(double, a); }

#endif

// Order-preserving integer key of a float: a < b as numbers gives key(a) < key(b), and -0
// comes just below +0. A NaN with a clear sign bit is above everything.
BW_PINNED i32 order_key(float a) {
    const auto bits = static_cast<i32>(bits_of(a));
    return bits >= 0 ? bits : bits ^ 0x7fffffff;
}

// Inverse of order_key.
BW_PINNED float from_order_key(i32 key) {
    return float_of(static_cast<u32>(key >= 0 ? key : key ^ 0x7fffffff));
}

// 1 if the value is NaN or infinite, else 0; integer only, so no compiler flag changes it.
BW_PINNED u32 is_nonfinite(float a) { return (bits_of(a) & 0x7f800000U) == 0x7f800000U ? 1U : 0U; }

}  // namespace bitwitness
