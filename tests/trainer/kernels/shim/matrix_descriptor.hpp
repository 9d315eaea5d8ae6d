// The PTX ISA's shared-memory matrix descriptor of wgmma, decoded from its text: "Matrix
// Descriptor", "Shared Memory Matrix Layout" and "Swizzling Modes" of sm_90. K is the contiguous
// dimension, elements have 16 bits. It shares nothing with the kernels' own addressing.
#pragma once

#include <cstdint>
#include <string>

namespace shim {

struct MatrixDescriptor {
    unsigned start, leading, stride;  // bytes
    unsigned base_offset;
    unsigned mode;

    explicit MatrixDescriptor(std::uint64_t bits)
        : start(field(bits, 0, 14) * 16),
          leading(field(bits, 16, 14) * 16),
          stride(field(bits, 32, 14) * 16),
          base_offset(field(bits, 49, 3)),
          mode(field(bits, 62, 2)) {}

    static unsigned field(std::uint64_t bits, int lowest, int count) {
        return static_cast<unsigned>((bits >> lowest) & ((1U << count) - 1U));
    }

    // Bytes of a row inside the pattern: 16 without a swizzle, else what the mode is named for.
    unsigned width() const {
        constexpr unsigned kWidths[] = {16, 128, 64, 32};
        return kWidths[mode];
    }

    // The address of the eight elements from 8 * chunk on, of a row. Groups of eight rows are
    // `stride` apart. Without a swizzle the chunks of eight rows are 128 consecutive bytes, and
    // the next chunk's `leading` on; with one, rows are `width` apart, and the address bits
    // from 4 on are combined with those from 7 on, as many as name a chunk of a row.
    unsigned chunk(unsigned row, unsigned chunk) const {
        const unsigned group = start + row / 8 * stride;
        if (mode == 0) return group + chunk * leading + row % 8 * 16;
        const unsigned linear = group + row % 8 * width() + chunk * 16;
        const unsigned chunks = width() / 16;
        return linear ^ (((linear >> 7) & (chunks - 1)) << 4);
    }

    // What is wrong with it as 16 elements of K, or nothing.
    std::string fault() const {
        if (base_offset != 0) return "a base offset is not modelled";
        if (mode == 0) return {};
        if (start % (8 * width()) >= width()) return "the matrix does not begin with a pattern";
        if (start % width() + 32 > width()) return "K leaves the pattern's row";
        return {};
    }
};

}  // namespace shim
