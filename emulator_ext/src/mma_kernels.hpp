// What one instruction set's translation unit offers to the drivers: plain function
// pointers over plain data, so that no inline function compiled for a wide instruction set
// can be chosen by the linker for code that runs without it.
#pragma once

#include <cstdint>

#include "bitwitness/cpu.hpp"
#include "bitwitness/format.hpp"
#include "bitwitness/step.hpp"

namespace bitwitness {

// The scaled domain of the fast kernel. A row of the left operand is multiplied by
// 2^(pre - high_row), a column of the right one by 2^(-high_column), so that products have
// exponents in [-span, 0] and accumulators carry a factor 2^(pre - high_row - high_column).
// Bytes hold exponents: left E - high + 127 (0 for a zero), right E - high (-127 for a zero).
// Their sum is a signed byte without wrapping: the biased exponent field of the scaled product
// less `pre`, in [127 - span, 127], or at most 0 where the product is zero.
//
// With pre = F - G - 1, where 2^G bounds every accumulator, the field of emax lies in
// [F + 1, F + 126] as long as span + F + G <= 125. The shift 2^(F - emax) then is an
// addition of F + 127 - field, in [1, 126], to the exponent field of a scaled product, and
// a zero product (all bits 0) turns into at most 2^-1, which truncates to 0.
//
// A word of exponents belongs to one lane: a byte for each vector of a panel (`vectors`), for
// 4 / vectors consecutive products. On the left, the first of these products' entries has the
// word: each one's byte, once for every vector.
struct LeftEntry {
    float value;
    std::uint32_t exponents;
};

inline constexpr int kScaledBudget = 125;

// With an f16 accumulator the exponent floor is real: emax is at least e_zero, and a nonzero
// accumulator counts as at least 2^-14. Both are then given as fields of the scaled domain,
// and `half_scale` is the exponent of the factor that accumulators carry, the same for all
// elements (operands with an f16 accumulator have constant scales).
struct HalfAccumulator {
    int zero_field;     // field of e_zero
    int minimum_field;  // field of 2^-14
    int half_scale;
};

// rows x panel_width accumulators, each continued by `groups` steps of `group` products.
struct ChainCall {
    const LeftEntry* left;  // [rows][left_stride]
    std::int64_t left_stride;
    const float* right_values;             // [groups * group][panel_width]
    const std::uint32_t* right_exponents;  // four bytes each, in the order above
    float* accumulators;                   // [rows][panel_width], scaled
    std::int64_t rows;
    std::int64_t groups;
    int group;          // L: 4, 8, 16 or 32
    int fraction_bits;  // F
    int pre;
    Rounding rounding;
    HalfAccumulator half;  // for rne_f16
};

// The wide kernel serves formats with 8 exponent bits whatever their exponents, as long as
// nothing is special and nothing overflows. Values are significands in (-2, 2), zero or
// subnormal ones below 1; exponents are 16-bit, E * 128, kWideZero for a zero: that is the
// upper half of 2^E's f32 pattern, less the bias. Accumulators are not scaled.
//
// Each 2 * lanes right exponents are stored in the order in which the vector units interleave
// words: see word_position.
inline constexpr std::int16_t kWideZero = -32768;

struct WideCall {
    const LeftEntry* left;  // exponents: the 16 bits, twice
    std::int64_t left_stride;
    const float* right_values;
    const std::int16_t* right_exponents;
    float* accumulators;
    std::int64_t rows;
    std::int64_t groups;
    int group;
    int fraction_bits;
    int zero_exponent;
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

// accumulators[r][j] += left[r][p] . right[p][j] over pairs p of 16-bit integers, modulo 2^32.
struct IntegerCall {
    const std::int32_t* left;    // [rows][pairs], two int16 each, the first in the low half
    const std::int32_t* right;   // [pairs][panel_width]
    std::int32_t* accumulators;  // [rows][panel_width]
    std::int64_t rows;
    std::int64_t pairs;
};

// The f64 twin of FmaCall.
struct DoubleCall {
    const double* left;  // [rows][depth]
    const double* right;
    double* accumulators;
    std::int64_t rows;
    std::int64_t depth;
};

// Least nonzero and greatest magnitude of register bits, as integers. `least` is stored less
// one, so that a zero wraps to the top and never wins; start from {all ones, 0}.
struct MagnitudeRange {
    std::uint32_t least_less_one = ~0U;
    std::uint32_t most = 0;
};

// The two planes of a heal operand, left or right.
struct SplitLeft {
    LeftEntry* high;
    LeftEntry* low;
};
struct SplitRight {
    float* high_values;
    std::uint32_t* high_exponents;
    float* low_values;
    std::uint32_t* low_exponents;
};

// `raw` holds register bits: a line of one row, or `depth` lines of panel_width columns.
struct Kernels {
    int panel_width;
    // Needs MXCSR at round toward zero: see RoundTowardZero. False: an f16 accumulator became
    // infinite or a sum left 32 bits on its way to one; the results are not to be used.
    bool (*chain)(const ChainCall&);
    void (*wide_chain)(const WideCall&);  // needs the same rounding mode

    void (*scan_line)(const std::uint32_t* raw, std::int64_t count, Format format,
                      MagnitudeRange& range);
    void (*scan_panel)(const std::uint32_t* raw, std::int64_t depth, Format format,
                       std::uint32_t* least_less_one, std::uint32_t* most);
    // `high` is the scale's exponent: one for the row, or one per column.
    void (*decode_left)(const std::uint32_t* raw, std::int64_t count, Format format, int high,
                        int pre, LeftEntry* out);
    void (*decode_right)(const std::uint32_t* raw, std::int64_t depth, Format format,
                         const std::int32_t* high, float* values, std::uint32_t* exponents);
    void (*decode_wide_left)(const std::uint32_t* raw, std::int64_t count, Format format,
                             LeftEntry* out);
    void (*decode_wide_right)(const std::uint32_t* raw, std::int64_t depth, Format format,
                              float* values, std::int16_t* exponents);
    // heal's split of f32 bits (NUMERICS section 2, steps 1 and 2): times first, times second,
    // then two f16 parts; one pair of factors for the row, or one per column. `count` is a
    // multiple of kPackDepth; raw, first and second are 64-byte aligned.
    void (*split_left)(const std::uint32_t* raw, std::int64_t count, float first, float second,
                       int pre, SplitLeft out);
    void (*split_right)(const std::uint32_t* raw, std::int64_t depth, const float* first,
                        const float* second, SplitRight out);
};

// Products that are no chains of steps.
struct DenseKernels {
    int panel_width;
    void (*fma_chain)(const FmaCall&);
    void (*double_chain)(const DoubleCall&);
    void (*integer_chain)(const IntegerCall&);
};

// What one instruction set offers. `narrow` has half of the columns in a panel.
struct KernelTable {
    Kernels wide;
    Kernels narrow;
    DenseKernels dense;
};

// Null for Path::scalar, and for a path this library was built without.
const KernelTable* kernels(Path path);

const KernelTable* avx2_kernels();
const KernelTable* avx512_kernels();

}  // namespace bitwitness
