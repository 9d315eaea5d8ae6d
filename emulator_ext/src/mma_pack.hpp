// Operands rearranged for the chain kernel: rows of interleaved values and exponents on
// the left, panels of columns on the right, with what is known of their exponents.
#pragma once

#include <cstdint>
#include <vector>

#include "bitwitness/matrix.hpp"
#include "mma_buffer.hpp"
#include "mma_kernels.hpp"

namespace bitwitness {

// Rows of the left operand that are packed together.
inline constexpr std::int64_t kPackRows = 16;
// Depth of a gathered block: its panel stays in the L1 cache.
inline constexpr std::int64_t kPackDepth = 32;

inline std::int64_t round_up(std::int64_t n, std::int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

// Calls use(first, count) for pieces of [0, total) whose packed lines, of `line_bytes` each,
// fit the budget; pieces are whole numbers of `unit` lines.
template <class Use>
void for_pieces(std::int64_t total, std::int64_t unit, std::int64_t line_bytes, std::int64_t budget,
                Use&& use) {
    const std::int64_t units = budget / (line_bytes * unit + 1);
    const std::int64_t piece = units > 1 ? units * unit : unit;
    for (std::int64_t first = 0; first < total; first += piece) {
        use(first, total - first < piece ? total - first : piece);
    }
}

// Which kernels a product of these outer sizes takes, and whether on its side: columns are padded
// to whole panels. Its bits are the same, because products commute and chains keep their order
// along K.
struct Panels {
    const Kernels* kernels;
    bool on_its_side;
};

Panels cheapest_panels(const KernelTable& table, std::int64_t rows, std::int64_t cols);

// Exponents of the nonzero elements of one row or column. `normal` is false where the scaled
// domain cannot represent it: if not finite, or for subnormals of 8-bit-exponent formats.
// Formats with at most 5 exponent bits always report their whole range.
struct ExponentRange {
    std::int32_t low = 0;
    std::int32_t high = 0;
    bool finite = true;
    bool normal = true;

    std::int32_t span() const { return high - low; }
};

ExponentRange exponent_range(const MagnitudeRange& magnitudes, Format format);

// Storage of a left operand. `depth` is K rounded up to whole groups. Entries lie chunk by
// chunk along K, [depth / chunk][rows][chunk], so that a block of rows streams.
struct LeftPlane {
    std::int64_t rows;
    std::int64_t depth;
    std::int64_t chunk;  // a multiple of every group size
    Buffer<LeftEntry> entries;

    LeftPlane(std::int64_t row_count, std::int64_t padded_depth, std::int64_t chunk_depth)
        : rows(row_count),
          depth(padded_depth),
          chunk(chunk_depth),
          entries(row_count * round_up(padded_depth, chunk_depth)) {}
    LeftEntry* at(std::int64_t row, std::int64_t k) const {
        return entries.get() + (k / chunk * rows + row) * chunk + k % chunk;
    }
};

// Storage of a right operand, panel by panel. An Exponent holds those of kColumns columns.
template <class Exponent, int kColumns>
struct RightPlane {
    int width;
    std::int64_t depth;
    Buffer<float> values;
    Buffer<Exponent> exponents;

    RightPlane(int panel_width, std::int64_t panels, std::int64_t padded_depth)
        : width(panel_width),
          depth(padded_depth),
          values(panels * padded_depth * panel_width),
          exponents(panels * padded_depth * panel_width / kColumns) {}
    float* values_at(std::int64_t panel, std::int64_t k) const {
        return values.get() + (panel * depth + k) * width;
    }
    Exponent* exponents_at(std::int64_t panel, std::int64_t k) const {
        return exponents.get() + (panel * depth + k) * width / kColumns;
    }
};

using BytePlane = RightPlane<std::uint32_t, 4>;  // see LeftEntry
using WordPlane = RightPlane<std::int16_t, 1>;   // see WideCall

struct LeftPack {
    LeftPlane plane;
    std::vector<ExponentRange> ranges;

    LeftPack(std::int64_t rows, std::int64_t padded_depth, std::int64_t chunk)
        : plane(rows, padded_depth, chunk), ranges(static_cast<std::size_t>(rows)) {}
    // Rows [first, first + kPackRows) or fewer.
    void pack(const Kernels& kernels, const Operand& left, std::int64_t first, int pre);
};

struct RightPack {
    BytePlane plane;
    std::vector<std::int32_t> highs;    // one per column, padding included
    std::vector<ExponentRange> ranges;  // one per panel: lowest and highest over its columns
    std::vector<std::int32_t> spans;    // one per panel: the widest column

    RightPack(const Kernels& kernels, std::int64_t panels, std::int64_t padded_depth);
    void pack(const Kernels& kernels, const Operand& right, std::int64_t panel);

  private:
    void summarize(const std::vector<ExponentRange>& columns, std::int64_t panel);
};

// Both operands for the wide kernel.
struct WidePack {
    LeftPlane left;
    WordPlane right;

    void pack_left(const Kernels& kernels, const Operand& operand, std::int64_t first);
    void pack_right(const Kernels& kernels, const Operand& operand, std::int64_t panel);
};

}  // namespace bitwitness
