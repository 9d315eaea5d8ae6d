// INT16 vectors: 16-bit integers under one power-of-two scale, and products of them that are
// exact on any tensor core.
//
// A vector x is held as x_i ~ q_i * 2^(scale - 127) with |q_i| <= 32767; the scale follows from
// the largest magnitude by its bit pattern. Each q is two balanced halves, exact in f16 and
// bf16, so a dot product of at most kInt16Width elements is four tensor-core products whose
// partial sums are integers of at most 2^24: exact in an f32 accumulator, in any order, under
// every alignment width F >= 23. Attention's weights are held alike, in 24 bits and three such
// digits. Source: docs/formats/operators.md, "INT16 vectors".
#pragma once

#include "bitwitness/pinned.h"

namespace bitwitness {

inline constexpr i32 kInt16Max = 32767;
// 1024 products of halves, each at most 2^14, reach 2^24 with the last one at the earliest.
inline constexpr i64 kInt16Width = 1024;
inline constexpr i32 kInt24Max = 8388607;
// Products of weights and values are at most 2^38; so many of them add up exactly in f64.
inline constexpr i64 kInt24Keys = 32768;

// The scale of a vector from the largest bit pattern of its magnitudes (finite): the largest
// magnitude lies in [2^point, 2^(point + 1)) units, unless it is too small for a scale of 1.
BW_PINNED u32 fixed_scale(u32 largest_bits, u32 point) {
    const u32 field = largest_bits >> 23;
    return (field > point ? field : point + 1) - point;
}
BW_PINNED u32 int16_scale(u32 largest_bits) { return fixed_scale(largest_bits, 14); }
BW_PINNED u32 int24_scale(u32 largest_bits) { return fixed_scale(largest_bits, 22); }

// Nearest integer to x * 2^(127 - scale), ties to even, at most 32767 in magnitude.
BW_PINNED i32 int16_quantise(float x, u32 scale) {
    constexpr float kShift = 0x1.8p23F;  // leaves rint in the low bits of the sum
    const float y = mul_rn(x, float_of((254U - scale) << 23));
    const i32 q = static_cast<i32>(bits_of(add_rn(y, kShift)) - bits_of(kShift));
    const i32 above = q < -kInt16Max ? -kInt16Max : q;
    return above > kInt16Max ? kInt16Max : above;
}

// The same in 24 bits, at most 2^23 - 1 in magnitude.
BW_PINNED i32 int24_quantise(float x, u32 scale) {
    const double unit = pow2_f64(127.0 - static_cast<double>(scale));
    const auto q = static_cast<i32>(rint_f64(mul_rn(static_cast<double>(x), unit)));
    const i32 above = q < -kInt24Max ? -kInt24Max : q;
    return above > kInt24Max ? kInt24Max : above;
}

// What a code, the bits of a q, says.
BW_PINNED i32 int16_value(unsigned short code) { return static_cast<short>(code); }

// 2^(scale - 127); its product with any q is exact.
BW_PINNED float int16_unit(u32 scale) { return float_of(scale << 23); }

// q = 256 * high + low, high in [-128, 128], low in [-128, 127].
BW_PINNED i32 int16_high(i32 q) { return (q + 128) >> 8; }
BW_PINNED i32 int16_low(i32 q) { return q - 256 * int16_high(q); }

// w = 65536 * top + rest, top in [-128, 128]; rest is split by int16_high and int16_low.
BW_PINNED i32 int24_top(i32 w) { return (w + 32768) >> 16; }
BW_PINNED i32 int24_rest(i32 w) { return w - 65536 * int24_top(w); }

// The dot product of two vectors of q from the four dot products of their halves.
BW_PINNED i64 int16_join(float high_high, float high_low, float low_high, float low_low) {
    const i64 middle = static_cast<i64>(high_low) + static_cast<i64>(low_high);
    return static_cast<i64>(high_high) * 65536 + middle * 256 + static_cast<i64>(low_low);
}

// One digit more of a sum of products: `sum` of a lower order, an integer below 2^24 or at it.
BW_PINNED i64 int16_append(i64 higher, float sum) { return higher * 256 + static_cast<i64>(sum); }

// sum * 2^exponent, rounded once to nearest even; |sum| < 2^53, |exponent| <= 512.
BW_PINNED float int16_round(i64 sum, i32 exponent) {
    return round_to_f32(mul_rn(static_cast<double>(sum), pow2_f64(static_cast<double>(exponent))));
}

}  // namespace bitwitness
