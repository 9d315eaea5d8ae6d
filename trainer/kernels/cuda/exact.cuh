// Arithmetic of the exact profile (NUMERICS 2): blocks of 64 along K share an exponent, values
// become three digits in base 512, and sums of digit products are integers below 2^24.
#pragma once

#include "heal.cuh"

constexpr int kExactBlock = 64;
constexpr int kDigits = 3;
constexpr int kDigitBits = 9;
constexpr i32 kHalfDigit = 1 << (kDigitBits - 1);
constexpr i32 kDigitMask = (1 << kDigitBits) - 1;
constexpr int kSignificantBits = 26;

// e such that every magnitude of the block lies below 2^e; `amax` is the greatest one's bits.
__device__ __forceinline__ int exact_exponent(u32 amax) {
    return max(static_cast<int>(amax >> 23), 1) - 126;
}

// rint(x * 2^(26 - e)). The scale is infinite for the smallest blocks: two exact factors then.
__device__ __forceinline__ i32 exact_integer(float x, int exponent) {
    return __float2int_rn(scaled(x, exponent - kSignificantBits));
}

// Balanced digits in [-256, 256], the most significant first.
__device__ __forceinline__ void exact_digits(i32 q, i32 (&digits)[kDigits]) {
    const i32 rest = (q + kHalfDigit) >> kDigitBits;
    digits[2] = ((q + kHalfDigit) & kDigitMask) - kHalfDigit;
    digits[1] = ((rest + kHalfDigit) & kDigitMask) - kHalfDigit;
    digits[0] = (rest + kHalfDigit) >> kDigitBits;
}

// c + sum * 2^unit, rounded once. 2^unit may lie beyond f32 on either side, so it is two normal
// factors, the first of which multiplies the integer exactly. Below -252 no sum reaches half
// of the least subnormal, above 231 any but 0 overflows: clamping there changes no result.
__device__ __forceinline__ float exact_combine(float c, float sum, int unit) {
    const int s = min(max(unit, -252), 231);
    const int first = min(s >> 1, 104);
    return __fmaf_rn(__fmul_rn(sum, power_of_two(first)), power_of_two(s - first), c);
}
