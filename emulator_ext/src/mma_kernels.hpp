// What one instruction set's translation unit offers to the drivers: plain function
// pointers over plain data, so that no inline function compiled for a wide instruction set
// can be chosen by the linker for code that runs without it.
#pragma once

#include <cstdint>

#include "bitwitness/cpu.hpp"
#include "bitwitness/format.hpp"

namespace bitwitness {

// The scaled domain of the fast kernel. A row of the left operand is multiplied by
// 2^(pre - high_row), a column of the right one by 2^(-high_column), so that products have
// exponents in [-span, 0] and accumulators carry a factor 2^(pre - high_row - high_column).
// Bytes hold exponents: left E - high + 127 + pre (0 for a zero), right high - E (255 for a
// zero); their unsigned saturating difference is the biased exponent field of the scaled
// product, or 0 when the product is zero.
//
// With pre = F - G - 1, where 2^G bounds every accumulator, the field of emax lies in
// [F + 1, F + 126] as long as span + F + G <= 125. The shift 2^(F - emax) then is an
// addition of F + 127 - field, in [1, 126], to the exponent field of a scaled product, and
// a zero product (all bits 0) turns into at most 2^-1, which truncates to 0.
struct LeftEntry {
    float value;
    std::uint32_t exponents;  // the byte, four times
};

inline constexpr int kScaledBudget = 125;

// rows x panel_width accumulators, each continued by `groups` steps of `group` products.
struct ChainCall {
    const LeftEntry* left;  // [rows][left_stride]
    std::int64_t left_stride;
    const float* right_values;            // [groups * group][panel_width]
    const std::uint8_t* right_exponents;  // the same shape
    float* accumulators;                  // [rows][panel_width], scaled
    std::int64_t rows;
    std::int64_t groups;
    int group;          // L: 4, 8, 16 or 32
    int fraction_bits;  // F
    bool e8m13;         // keep 14 significant bits only
};

// accumulators[r][j] = fmaf(left[r][k], right[k][j], accumulators[r][j]) for ascending k.
struct FmaCall {
    const float* left;  // [rows][left_stride]
    std::int64_t left_stride;
    const float* right;   // [depth][panel_width]
    float* accumulators;  // [rows][panel_width]
    std::int64_t rows;
    std::int64_t depth;
};

struct Kernels {
    int panel_width;
    // Needs MXCSR at round toward zero: see RoundTowardZero.
    void (*chain)(const ChainCall&);
    void (*fma_chain)(const FmaCall&);
    // `raw` holds register bits; `high` one exponent for the row, or one per column.
    void (*decode_left)(const std::uint32_t* raw, std::int64_t count, Format format, int high,
                        int pre, LeftEntry* out);
    void (*decode_right)(const std::uint32_t* raw, Format format, const std::int32_t* high,
                         float* values, std::uint8_t* exponents);
};

// Null for Path::scalar, and for a path this library was built without.
const Kernels* kernels(Path path);

const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

}  // namespace bitwitness
