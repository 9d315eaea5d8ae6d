// INT16 vectors: 16-bit integers under one power-of-two scale, and products of them that are
// exact on any tensor core.
//
// A vector x is held as x_i ~ q_i * 2^(scale - 127) with |q_i| <= 32767; the scale follows from
// the largest magnitude by its bit pattern. Each q is two balanced halves, exact in f16 and
// bf16, so a dot product of at most kInt16Width elements is four tensor-core products whose
// partial sums are integers of at most 2^24: exact in an f32 accumulator, in any order, under
// every alignment width F >= 23. Source: docs/formats/operators.md, "INT16 vectors".
#pragma once

#include "bitwitness/pinned.h"

namespace bitwitness {

inline constexpr i32 kInt16Max = 32767;
// 1024 products of halves, each at most 2^14, reach 2^24 with the last one at the earliest.
inline constexpr i64 kInt16Width = 1024;
// A largest magnitude has 15 bits before the point; fields below this share the least scale.
inline constexpr u32 kInt16Bits = 14;

// The scale of a vector, 1 ... 240, from the largest bit pattern of its magnitudes (finite).
// The largest q lies in [2^14, 2^15) unless the vector is below 2^-112; zeros have scale 1.
BW_PINNED u32 int16_scale(u32 largest_bits) {
    const u32 field = largest_bits >> 23;
    return (field > kInt16Bits ? field : kInt16Bits + 1) - kInt16Bits;
}

// Nearest integer to x * 2^(127 - scale), ties to even, at most 32767 in magnitude.
BW_PINNED i32 int16_quantise(float x, u32 scale) {
    constexpr float kShift = 0x1.8p23F;  // leaves rint in the low bits of the sum
    const float y = mul_rn(x, float_of((254U - scale) << 23));
    const i32 q = static_cast<i32>(bits_of(add_rn(y, kShift)) - bits_of(kShift));
    const i32 above = q < -kInt16Max ? -kInt16Max : q;
    return above > kInt16Max ? kInt16Max : above;
}

// 2^(scale - 127); its product with any q is exact.
BW_PINNED float int16_unit(u32 scale) { return float_of(scale << 23); }

// q = 256 * high + low, high in [-128, 128], low in [-128, 127].
BW_PINNED i32 int16_high(i32 q) { return (q + 128) >> 8; }
BW_PINNED i32 int16_low(i32 q) { return q - 256 * int16_high(q); }

// The dot product of two vectors of q from the four dot products of their halves.
BW_PINNED i64 int16_join(float high_high, float high_low, float low_high, float low_low) {
    const i64 middle = static_cast<i64>(high_low) + static_cast<i64>(low_high);
    return static_cast<i64>(high_high) * 65536 + middle * 256 + static_cast<i64>(low_low);
}

// sum * 2^exponent, rounded once to nearest even; |sum| < 2^53, |exponent| <= 512.
BW_PINNED float int16_round(i64 sum, i32 exponent) {
    return round_to_f32(mul_rn(static_cast<double>(sum), pow2_f64(static_cast<double>(exponent))));
}

}  // namespace bitwitness
