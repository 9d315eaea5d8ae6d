// What a vector instruction set offers to the exact profile.
//
// Packed operands hold pairs of int16 digits, k even in the low half:
//   left   [strip][block][row of the strip][digit][pair]
//   right  [panel][block][pair][digit][column of the panel]
#pragma once

#include <cstdint>

#include "bitwitness/cpu.hpp"
#include "exact_digits.hpp"

namespace bitwitness::exact {

inline constexpr std::int64_t kPairs = kBlock / 2;

// Least and greatest packed exponent of a block over the rows of a strip or columns of a panel.
struct Span {
    int least;
    int greatest;
};

// c[rows][lanes] continued by `blocks` blocks. Every pointer is at the first of them.
struct TileCall {
    const std::int32_t* left;
    const std::int32_t* left_exponents;  // [block][strip_rows]
    const Span* left_spans;              // [block]
    const std::int32_t* right;
    const std::int32_t* right_exponents;  // [block][lanes]
    const Span* right_spans;
    float* c;
    std::int64_t blocks;
};

struct Kernels {
    int strip_rows;
    int lanes;
    // Entry r - 1 computes the first r rows of a strip.
    void (*const* tile)(const TileCall&);
    // kBlock finite f32 bit patterns of one row, multiplied by both factors: [digit][pair].
    void (*split_left)(const std::uint32_t* raw, Factors factors, std::int32_t* out);
    // A panel's block: raw [kBlock][lanes], one pair of factors per column.
    void (*split_right)(const std::uint32_t* raw, const float* first, const float* second,
                        std::int32_t* out);
    // Greatest magnitude of kBlock bit patterns, or of each column of [kBlock][lanes].
    std::uint32_t (*greatest)(const std::uint32_t* raw);
    void (*greatest_of_columns)(const std::uint32_t* raw, std::uint32_t* out);
};

// Null for Path::scalar.
const Kernels* kernels(Path path);

const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512_vnni_kernels();

}  // namespace bitwitness::exact
