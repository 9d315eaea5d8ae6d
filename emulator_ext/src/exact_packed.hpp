// Operands of the exact profile, packed for the vector kernels.
#pragma once

#include <atomic>
#include <cstdint>

#include "bitwitness/matrix.hpp"
#include "exact_kernels.hpp"
#include "mma_buffer.hpp"

namespace bitwitness::exact {

inline std::int64_t ceil_div(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

// Digits, exponents and spans of all groups, strips of A's rows or panels of B's columns, for
// one slab of K after the other.
class Packed {
  public:
    // x [lines][K] if `left`, else [K][lines]; at most `capacity` blocks a slab.
    Packed(const MatrixView<const float>& x, const Kernels& kernels, bool left,
           std::int64_t capacity);

    std::int64_t groups() const { return groups_; }
    // Work items of pack; each writes its own groups.
    std::int64_t items() const { return ceil_div(groups_, groups_per_item_); }
    void pack(std::int64_t item, std::int64_t first_block, std::int64_t blocks);
    bool finite() const { return finite_; }

    // Blocks are counted from the slab's first.
    const std::int32_t* digits_at(std::int64_t group, std::int64_t block) const {
        return digits_.get() + index(group, block) * width_ * kPairs * kDigits;
    }
    const std::int32_t* exponents_at(std::int64_t group, std::int64_t block) const {
        return exponents_.get() + index(group, block) * width_;
    }
    const Span* spans_at(std::int64_t group, std::int64_t block) const {
        return spans_.get() + index(group, block);
    }

  private:
    std::int64_t index(std::int64_t group, std::int64_t block) const {
        return group * capacity_ + block;
    }
    // The block that starts at k, to place `block` of some strips or of one panel.
    void pack_strips(std::int64_t first, std::int64_t count, std::int64_t k, std::int64_t block);
    void pack_panel(std::int64_t panel, std::int64_t k, std::int64_t block);
    // Writes exponents and span; false if the greatest magnitudes are not all finite.
    bool note(std::int64_t at, const std::uint32_t* greatest) const;

    const Operand operand_;
    const Kernels& kernels_;
    const bool left_;
    const std::int64_t width_;  // lines in a group
    const std::int64_t groups_;
    const std::int64_t capacity_;
    const std::int64_t groups_per_item_;
    const Buffer<std::int32_t> digits_;
    const Buffer<std::int32_t> exponents_;
    const Buffer<Span> spans_;
    std::atomic<bool> finite_{true};
};

}  // namespace bitwitness::exact
