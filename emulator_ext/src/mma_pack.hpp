// Operands rearranged for the chain kernel: rows of interleaved values and exponents on
// the left, panels of columns on the right, with what is known of their exponents.
#pragma once

#include <cstdint>
#include <vector>

#include "bitwitness/matrix.hpp"
#include "mma_buffer.hpp"
#include "mma_kernels.hpp"

namespace bitwitness {

// Exponents of the nonzero elements of one row or column. `clean` is false if the fast
// kernel cannot represent it: NaN, infinity, or a subnormal of an 8-bit-exponent format.
struct ExponentRange {
    std::int32_t low = 0;
    std::int32_t high = 0;
    bool clean = true;

    std::int32_t span() const { return high - low; }
};

// The range of row `row`. Formats with at most 5 exponent bits report their whole range.
ExponentRange range_of_row(const Operand& operand, std::int64_t row);

struct LeftPack {
    std::int64_t depth;  // K rounded up to a whole number of groups
    Buffer<LeftEntry> entries;
    std::vector<ExponentRange> ranges;

    LeftPack(std::int64_t rows, std::int64_t padded_depth)
        : depth(padded_depth),
          entries(rows * padded_depth),
          ranges(static_cast<std::size_t>(rows)) {}
    const LeftEntry* row(std::int64_t i) const { return entries.get() + i * depth; }
    void pack_row(const Kernels& kernels, const Operand& left, std::int64_t i, int pre);
};

struct RightPack {
    int width;
    std::int64_t depth;
    Buffer<float> values;
    Buffer<std::uint8_t> exponents;
    std::vector<std::int32_t> highs;    // one per column, padding included
    std::vector<ExponentRange> ranges;  // one per panel: lowest, highest over its columns
    std::vector<std::int32_t> spans;    // one per panel: the widest column

    RightPack(const Kernels& kernels, std::int64_t panels, std::int64_t padded_depth);
    const float* panel_values(std::int64_t panel, std::int64_t k) const {
        return values.get() + (panel * depth + k) * width;
    }
    const std::uint8_t* panel_exponents(std::int64_t panel, std::int64_t k) const {
        return exponents.get() + (panel * depth + k) * width;
    }
    void pack_panel(const Kernels& kernels, const Operand& right, std::int64_t panel);
};

inline std::int64_t round_up(std::int64_t n, std::int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

}  // namespace bitwitness
