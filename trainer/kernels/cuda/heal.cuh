// Scaling of the heal profile (NUMERICS 2): what the planes and the product must agree on.
#pragma once

#include "device.cuh"

// floor(log2 of the largest magnitude) - 14, so that the maximum lands in [2^14, 2^15); 0 for
// an all-zero row. `amax` is the maximum's bits.
__device__ __forceinline__ int heal_exponent(u32 amax) {
    if (amax == 0U) return 0;
    const int field = static_cast<int>(amax >> 23);
    const int log2 = field != 0 ? field - 127 : 31 - __clz(static_cast<int>(amax)) - 149;
    return log2 - 14;
}

__device__ __forceinline__ float power_of_two(int e) {  // -126 <= e <= 127
    return __uint_as_float(static_cast<u32>(e + 127) << 23);
}

// x * 2^-e; where 2^-e is no f32 the row is so small that both multiplications are exact.
__device__ __forceinline__ float scaled(float x, int e) {
    if (-e <= 127) return __fmul_rn(x, power_of_two(-e));
    return __fmul_rn(__fmul_rn(x, power_of_two(127)), power_of_two(-e - 127));
}

// v * 2^e rounded once. f64 holds the product exactly for every v and e of the profile.
__device__ __forceinline__ float ldexp_rn(float v, int e) {
    const double scale = __longlong_as_double(static_cast<i64>(e + 1023) << 52);
    return __double2float_rn(__dmul_rn(static_cast<double>(v), scale));
}

// What the sums over all blocks of K become.
__device__ __forceinline__ float heal_result(float main, float corr, int exponent) {
    return ldexp_rn(__fadd_rn(main, __fmul_rn(corr, 0x1p-11f)), exponent);
}
