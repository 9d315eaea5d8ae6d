#include <algorithm>
#include <bit>
#include <cstdlib>

#include "bitwitness/step.hpp"

namespace bitwitness {
namespace {

// floor(magnitude * 2^shift) for any shift.
std::uint64_t shifted(std::uint64_t magnitude, int shift) {
    if (magnitude == 0) return 0;  // of any exponent: a zero does not enter emax
    if (shift >= 0) return magnitude << shift;
    return shift > -64 ? magnitude >> -shift : 0U;
}

std::uint32_t round_to_f32(std::uint64_t magnitude, int exponent) {
    const int top = 63 - std::countl_zero(magnitude);
    const int value_exponent = top + exponent;
    if (value_exponent >= 128) return kInfF32;
    if (value_exponent < -126) {  // the subnormal grid, 2^-149
        return static_cast<std::uint32_t>(shifted(magnitude, exponent + 149));
    }
    const auto significand = static_cast<std::uint32_t>(shifted(magnitude, 23 - top));
    return (static_cast<std::uint32_t>(value_exponent + 127) << 23) | (significand & 0x7fffffU);
}

std::uint32_t round_to_f16(std::uint64_t magnitude, int exponent) {
    const int top = 63 - std::countl_zero(magnitude);
    if (top + exponent > 16) return kInfF16;
    const int grid = std::max(top + exponent - 10, -24);
    const int drop = grid - exponent;
    std::uint64_t significand = shifted(magnitude, -drop);
    if (drop > 0) {
        const std::uint64_t rest =
            drop < 64 ? magnitude & ((std::uint64_t{1} << drop) - 1U) : magnitude;
        const std::uint64_t half = drop < 65 ? std::uint64_t{1} << (drop - 1) : 0U;
        if (half != 0U && (rest > half || (rest == half && (significand & 1U) != 0U)))
            ++significand;
    }
    // The hidden bit adds one to the exponent field, and a carry out of rounding another.
    const auto bits =
        static_cast<std::uint32_t>(significand) + (static_cast<std::uint32_t>(grid + 24) << 10);
    return std::min(bits, kInfF16);
}

// NaN, an infinity or nothing special: NUMERICS 1.2.
struct Specials {
    bool nan = false;
    bool positive = false;
    bool negative = false;

    void infinity(bool sign) { (sign ? negative : positive) = true; }
    bool any() const { return nan || positive || negative; }
    bool is_nan() const { return nan || (positive && negative); }
};

Specials find_specials(std::span<const Unpacked> a, std::span<const Unpacked> b,
                       const Unpacked& c) {
    Specials found;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const auto &x = a[i], &y = b[i];
        if (x.kind == Kind::finite && y.kind == Kind::finite) continue;
        const bool zero = (x.kind == Kind::finite && x.significand == 0) ||
                          (y.kind == Kind::finite && y.significand == 0);
        if (x.kind == Kind::nan || y.kind == Kind::nan || zero) {
            found.nan = true;
        } else {
            found.infinity(x.negative != y.negative);
        }
    }
    if (c.kind == Kind::nan) found.nan = true;
    if (c.kind == Kind::infinite) found.infinity(c.negative);
    return found;
}

std::int64_t aligned(std::int64_t significand, int shift) {
    const auto magnitude = shifted(static_cast<std::uint64_t>(std::llabs(significand)), shift);
    return significand < 0 ? -static_cast<std::int64_t>(magnitude)
                           : static_cast<std::int64_t>(magnitude);
}

std::uint32_t step(std::span<const Unpacked> a, std::span<const Unpacked> b, int fraction_bits,
                   const Unpacked& c, int c_fraction_bits, const Arithmetic& t, Region* region) {
    int emax = t.zero_exponent;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i].significand == 0 || b[i].significand == 0) continue;
        emax = std::max(emax, a[i].exponent + b[i].exponent);
    }
    if (c.significand != 0) emax = std::max(emax, static_cast<int>(c.exponent));
    const int unit = emax - t.fraction_bits;
    std::int64_t sum = aligned(c.significand, c.exponent - c_fraction_bits - unit);
    bool all_zero = c.significand == 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const std::int64_t product = std::int64_t{a[i].significand} * b[i].significand;
        all_zero = all_zero && product == 0;
        sum += aligned(product, a[i].exponent + b[i].exponent - fraction_bits - unit);
    }
    if (region != nullptr && emax == t.zero_exponent && !all_zero) region->at_zero_floor = true;
    return round_sum(sum, unit, t.rounding);
}

}  // namespace

std::uint32_t round_sum(std::int64_t sum, int exponent, Rounding rounding) {
    if (sum == 0) return 0U;
    const auto magnitude = static_cast<std::uint64_t>(std::llabs(sum));
    const bool half = rounding == Rounding::rne_f16;
    std::uint32_t bits =
        half ? round_to_f16(magnitude, exponent) : round_to_f32(magnitude, exponent);
    if (rounding == Rounding::rz_e8m13) bits &= ~0x3ffU;  // holds on the subnormal grid too
    if (sum < 0 && bits != 0U) bits |= half ? 0x8000U : 0x80000000U;
    return bits;
}

std::uint32_t chain(std::span<const Unpacked> a, std::span<const Unpacked> b, int fraction_bits,
                    std::uint32_t c_bits, const Arithmetic& arithmetic, Region* region) {
    const bool half = arithmetic.rounding == Rounding::rne_f16;
    const FormatLayout accumulator = layout_of(half ? Format::f16 : Format::f32);
    const auto group = static_cast<std::size_t>(arithmetic.group);
    for (std::size_t k = 0; k < a.size(); k += group) {
        const auto ak = a.subspan(k, std::min(group, a.size() - k));
        const auto bk = b.subspan(k, ak.size());
        const Unpacked c = unpack(accumulator, c_bits);
        const Specials specials = find_specials(ak, bk, c);
        if (!specials.any()) {
            c_bits = step(ak, bk, fraction_bits, c, accumulator.fraction_bits, arithmetic, region);
        } else if (specials.is_nan()) {
            c_bits = half ? kNanF16 : kNanF32;
        } else {
            const std::uint32_t sign = half ? 0x8000U : 0x80000000U;
            c_bits = (half ? kInfF16 : kInfF32) | (specials.negative ? sign : 0U);
        }
        if (region != nullptr && specials.any()) region->special = true;
    }
    return c_bits;
}

}  // namespace bitwitness
