// The pinned scalar functions: exp2, log2, tanh, erf, sigmoid, and what softmax needs.
//
// Each converts its f32 argument to f64, evaluates one fixed fma polynomial, and rounds once
// to f32. The f64 error is a few 2^-52, so the result is correctly rounded except where the
// exact value lies within about 2^-28 units in the last place of a rounding boundary, and is
// faithfully rounded always. What
// matters more: it has the same bits wherever IEEE 754 holds. Source: NUMERICS section 3;
// bounds and measured errors: docs/formats/operators.md.
//
// Branches are written as selections, so that a host compiler can vectorise loops over them.
#pragma once

#include "bitwitness/pinned_arith.h"
#include "bitwitness/pinned_polynomials.h"

namespace bitwitness {

// Adding this to |x| < 2^51 leaves rint(x) in the low bits, as two's complement.
inline constexpr double kRintShift = 0x1.8p52;
inline constexpr double kLog2e = 0x1.71547652b82fep+0;
inline constexpr float kLog2eF32 = 0x1.715476p+0F;
inline constexpr float kLn2F32 = 0x1.62e430p-1F;

BW_PINNED double rint_f64(double x) { return sub_rn(add_rn(x, kRintShift), kRintShift); }

// NaN passes through: both comparisons are false.
BW_PINNED double clamp_f64(double x, double low, double high) {
    const double above = x < low ? low : x;
    return above > high ? high : above;
}

// 2^k for an integral k in [-1022, 1023].
BW_PINNED double pow2_f64(double k) {
    return double_of(bits_of(add_rn(k, kRintShift + 1023.0)) << 52);
}

// 2^x for |x| <= 1000, in f64; NaN gives NaN.
BW_PINNED double exp2_f64(double x) {
    const double whole = rint_f64(x);
    const double r = sub_rn(x, whole);
    return mul_rn(fma_rn(r, poly_exp2m1_over_r(r), 1.0), pow2_f64(whole));
}

// 2^(t - shift), rounded once; `shift` is integral. The fraction is split off t before the
// shift is applied, so exp2_shifted(t, s) = exp2_shifted(t, s') * 2^(s'-s) to the bit while
// neither is subnormal: an online softmax may rescale exactly. Infinite or NaN t gives NaN.
BW_PINNED float exp2_shifted(float t, float shift) {
    const double x = t;
    // From 2^23 on every f32 is an integer.
    const bool has_fraction = (x < 0x1p23) & (x > -0x1p23);
    const double whole = has_fraction ? rint_f64(x) : x;
    const double r = sub_rn(x, whole);
    const double k = clamp_f64(sub_rn(whole, static_cast<double>(shift)), -300.0, 300.0);
    return round_to_f32(mul_rn(fma_rn(r, poly_exp2m1_over_r(r), 1.0), pow2_f64(k)));
}

// 2^x: exact at integers, +Inf from 128 on, subnormals rounded once, 0 at -Inf.
BW_PINNED float exp2(float x) { return round_to_f32(exp2_f64(clamp_f64(x, -300.0, 300.0))); }

// log2(x): exact at powers of two, -Inf at 0 of either sign, NaN below.
BW_PINNED float log2(float x) {
    constexpr u64 kRootHalf = 0x3fe6a09e667f3bcdULL;  // the bits of sqrt(1/2)
    constexpr u64 kBias = 1024;
    const u64 bits = bits_of(static_cast<double>(x));
    const u64 biased = (bits - kRootHalf + (kBias << 52)) >> 52;
    const double m = double_of(bits - ((biased - kBias) << 52));  // in [sqrt(1/2), sqrt(2))
    const double e = sub_rn(double_of(biased | bits_of(0x1p52)), 0x1p52 + 1024.0);
    const double s = div_rn(sub_rn(m, 1.0), add_rn(m, 1.0));
    const float finite = round_to_f32(fma_rn(s, poly_log2_over_s(mul_rn(s, s)), e));
    const float infinity = float_of(0x7f800000U);
    const float special = x > 0.0F ? infinity : (x == 0.0F ? -infinity : float_of(0x7fc00000U));
    return (x > 0.0F) & (x < infinity) ? finite : special;
}

BW_PINNED float with_sign_of(float magnitude, float sign) {
    return float_of((bits_of(magnitude) & 0x7fffffffU) | (bits_of(sign) & 0x80000000U));
}

BW_PINNED double magnitude_f64(float x) { return float_of(bits_of(x) & 0x7fffffffU); }

// tanh(x) = (e^2x - 1) / (e^2x + 1) with e^2x - 1 free of cancellation; odd, -0 stays -0.
BW_PINNED float tanh(float x) {
    const double a = magnitude_f64(x);
    const double u = mul_rn(a > 16.0 ? 16.0 : a, 2.0 * kLog2e);
    const double whole = rint_f64(u);
    const double r = sub_rn(u, whole);
    const double scale = pow2_f64(whole);
    const double expm1 = fma_rn(scale, mul_rn(r, poly_exp2m1_over_r(r)), sub_rn(scale, 1.0));
    return with_sign_of(round_to_f32(div_rn(expm1, add_rn(expm1, 2.0))), x);
}

// erf(x): odd, -0 stays -0. Above 1 it is 1 minus a power of two with a polynomial exponent.
BW_PINNED float erf(float x) {
    const double a = magnitude_f64(x);
    const double small = mul_rn(a, poly_erf_over_x(mul_rn(a, a)));
    const double v = sub_rn(clamp_f64(a, 1.0, 4.0), 2.5);
    const double large = sub_rn(1.0, exp2_f64(poly_log2_erfc(v)));
    return with_sign_of(round_to_f32(a < 1.0 ? small : large), x);
}

// 1 / (1 + e^-x).
BW_PINNED float sigmoid(float x) {
    const double u = mul_rn(clamp_f64(x, -300.0, 300.0), -kLog2e);
    return round_to_f32(div_rn(1.0, add_rn(1.0, exp2_f64(u))));
}

}  // namespace bitwitness
