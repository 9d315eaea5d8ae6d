// One tensor-core step and its chain along K: NUMERICS sections 1 to 1.2, in integers.
//
// This is the reference path. Every vector path must give its bits, and it alone treats
// special values, overflow and exponents at the edge of the accumulator's range.
#pragma once

#include <cstdint>
#include <span>

#include "bitwitness/format.hpp"

namespace bitwitness {

// How S * 2^(emax - F) becomes the next accumulator.
enum class Rounding : std::uint8_t {
    rz_f32,    // toward zero to f32
    rz_e8m13,  // toward zero to 14 significant bits, in an f32 register
    rne_f16,   // to nearest even, straight to f16
};

// One row of NUMERICS 1.1.
struct Arithmetic {
    int fraction_bits;  // F
    int group;          // L
    int zero_exponent;  // e_zero
    Rounding rounding;
};

inline constexpr int kMaxFractionBits = 25;
inline constexpr int kMaxGroup = 32;
inline constexpr std::uint32_t kNanF32 = 0x7fffffffU;
inline constexpr std::uint32_t kInfF32 = 0x7f800000U;
inline constexpr std::uint32_t kNanF16 = 0x7fffU;
inline constexpr std::uint32_t kInfF16 = 0x7c00U;

// sum * 2^exponent, rounded once; a zero is +0. Overflow gives infinity, RZ or not.
std::uint32_t round_sum(std::int64_t sum, int exponent, Rounding rounding);

// What a chain met that no recorded hardware output covers (NUMERICS 1.4).
struct Region {
    bool special = false;        // NaN or infinity among operands, accumulator or result
    bool at_zero_floor = false;  // a nonzero result whose emax was e_zero
    bool any() const { return special || at_zero_floor; }
};

// c := step(a, b, c) over consecutive groups. a and b have equal length; a last partial
// group counts as padded with zeros. `fraction_bits` is the sum of both operand formats'.
std::uint32_t chain(std::span<const Unpacked> a, std::span<const Unpacked> b, int fraction_bits,
                    std::uint32_t c_bits, const Arithmetic& arithmetic, Region* region);

}  // namespace bitwitness
