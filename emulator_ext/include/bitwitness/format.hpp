// Number formats of tensor-core operands and accumulators, and how a bit pattern splits
// into significand and exponent (NUMERICS section 1).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace bitwitness {

enum class Format : std::uint8_t { f16, bf16, tf32, e4m3, e5m2, f64, s8, u8, f32 };

// Layout of a floating format in its register. tf32 lives in 32 bits whose low 13 are
// dropped, so its fields sit above them.
struct FormatLayout {
    int exponent_bits;
    int fraction_bits;
    int dropped_bits;   // low register bits that the hardware never looks at
    bool has_infinity;  // false: e4m3, whose only special is all ones
    int bytes;

    [[gnu::always_inline]] constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    [[gnu::always_inline]] constexpr int emin() const { return 1 - bias(); }
    // Largest exponent of a finite number.
    [[gnu::always_inline]] constexpr int emax() const { return has_infinity ? bias() : bias() + 1; }
};

// Always inlined, like the members above: translation units of wider instruction sets use
// them too, and must not leave a copy for the linker to choose.
[[gnu::always_inline]] constexpr FormatLayout layout_of(Format format) {
    switch (format) {
        case Format::f16:
            return {5, 10, 0, true, 2};
        case Format::bf16:
            return {8, 7, 0, true, 2};
        case Format::tf32:
            return {8, 10, 13, true, 4};
        case Format::e4m3:
            return {4, 3, 0, false, 1};
        case Format::e5m2:
            return {5, 2, 0, true, 1};
        case Format::f64:
            return {11, 52, 0, true, 8};
        case Format::s8:
        case Format::u8:
            return {0, 8, 0, false, 1};
        case Format::f32:
            return {8, 23, 0, true, 4};
    }
    return {};
}

enum class Kind : std::uint8_t { finite, infinite, nan };

// value = significand * 2^(exponent - fraction_bits). A subnormal keeps emin and is not
// normalised; zero has significand 0 and whatever exponent.
struct Unpacked {
    std::int32_t significand;  // signed
    std::int16_t exponent;
    Kind kind;
    bool negative;  // also of an infinity
};

// Any float format of at most 32 bits. `bits` is right-aligned in its register.
constexpr Unpacked unpack(const FormatLayout& f, std::uint32_t bits) {
    bits >>= f.dropped_bits;
    const std::uint32_t fraction = bits & ((1U << f.fraction_bits) - 1U);
    const std::uint32_t top = (1U << f.exponent_bits) - 1U;
    const std::uint32_t field = (bits >> f.fraction_bits) & top;
    const bool negative = ((bits >> (f.fraction_bits + f.exponent_bits)) & 1U) != 0U;
    Kind kind = Kind::finite;
    if (field == top) {
        if (f.has_infinity) {
            kind = fraction == 0U ? Kind::infinite : Kind::nan;
        } else if (fraction == (1U << f.fraction_bits) - 1U) {
            kind = Kind::nan;
        }
    }
    const std::uint32_t hidden = field != 0U ? 1U << f.fraction_bits : 0U;
    const auto magnitude = static_cast<std::int32_t>(fraction | hidden);
    const int exponent = std::max(static_cast<int>(field), 1) - f.bias();
    return {negative ? -magnitude : magnitude, static_cast<std::int16_t>(exponent), kind, negative};
}

}  // namespace bitwitness
