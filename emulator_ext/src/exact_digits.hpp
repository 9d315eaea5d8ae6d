// The scalar definitions of the exact profile, shared by all its paths.
//
// The functions have internal linkage: each instruction set compiles its own copy, and the linker
// must not hand a wide one to the scalar path.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace bitwitness::exact {
// 2^(26 - e) as two factors, because it is infinite for the smallest blocks; the second is 1
// elsewhere. Neither product rounds, unless it is far below what rint keeps.
struct Factors {
    float first;
    float second;
};

// Digits in [-256, 256], the most significant first: q = d0 * 2^18 + d1 * 2^9 + d2.
struct Digits {
    std::int32_t d0, d1, d2;
};

namespace {

inline constexpr std::int64_t kBlock = 64;  // along K
inline constexpr int kDigits = 3;
inline constexpr int kDigitBits = 9;
inline constexpr std::int32_t kHalf = 1 << (kDigitBits - 1);
inline constexpr std::int32_t kMask = (1 << kDigitBits) - 1;
inline constexpr int kSignificantBits = 26;
inline constexpr std::uint32_t kInfinity = 0x7f800000U;

// The exponent e of a block whose greatest magnitude has these f32 bits: all lie below 2^e.
inline int exponent_of(std::uint32_t magnitude) {
    return std::max(static_cast<int>(magnitude >> 23), 1) - 126;
}

// The exponent that the packed operands carry. A block of zeros has digits and sums of zero
// under any scale; a moderate one keeps it from forcing its neighbours off the common range.
inline int packed_exponent(std::uint32_t magnitude) {
    return magnitude == 0U ? 0 : exponent_of(magnitude);
}

// Exponents of normal numbers only.
inline float power_of_two(int exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

inline Factors factors_of(int exponent) {
    const int first = std::min(kSignificantBits - exponent, 127);
    return {power_of_two(first), power_of_two(kSignificantBits - exponent - first)};
}

inline Digits digits_of(std::int32_t q) {
    const std::int32_t rest = (q + kHalf) >> kDigitBits;
    return {(rest + kHalf) >> kDigitBits, ((rest + kHalf) & kMask) - kHalf,
            ((q + kHalf) & kMask) - kHalf};
}

// Exponent of the unit of S_o.
inline int unit_of(int left, int right, int o) { return left + right - 16 - kDigitBits * o; }

// An exponent of S_o's unit may lie beyond f32's on either side: 2^s becomes two normal
// factors, of which the first multiplies the integer exactly. Below kLeastUnit no sum
// reaches half of the least subnormal, above kGreatestUnit any but 0 overflows, so that
// clamping changes no result, not even a zero's sign.
inline constexpr int kLeastUnit = -252;
inline constexpr int kGreatestUnit = 231;
inline constexpr int kGreatestFirst = 104;  // |S_o| < 2^24

// c + sum * 2^unit, rounded once to nearest even.
inline float combine(float c, std::int32_t sum, int unit) {
    const int s = std::clamp(unit, kLeastUnit, kGreatestUnit);
    const int first = std::min(s >> 1, kGreatestFirst);
    return std::fma(static_cast<float>(sum) * power_of_two(first), power_of_two(s - first), c);
}

// Sums of exponents eA + eB for which all three units are normal f32 numbers.
inline constexpr int kLeastCommon = -126 + 16 + 2 * kDigitBits;
inline constexpr int kGreatestCommon = 127 + 16;

}  // namespace
}  // namespace bitwitness::exact
