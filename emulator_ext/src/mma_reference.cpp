#include "mma_reference.hpp"

#include <algorithm>
#include <span>

#include "mma_fold.hpp"

namespace bitwitness {
namespace {

std::vector<Unpacked> unpack_row(const Operand& operand, std::int64_t row) {
    const FormatLayout f = layout_of(operand.format);
    std::vector<Unpacked> out(static_cast<std::size_t>(operand.cols));
    with_view(operand, [&](const auto& view) {
        for (std::int64_t k = 0; k < operand.cols; ++k) {
            out[static_cast<std::size_t>(k)] = unpack(f, view.at(row, k));
        }
    });
    return out;
}

int fraction_bits_of(const Operand& left, const Operand& right) {
    return layout_of(left.format).fraction_bits + layout_of(right.format).fraction_bits;
}

bool is_finite(std::uint32_t bits, bool half) {
    return half ? (bits & kInfF16) != kInfF16 : (bits & kInfF32) != kInfF32;
}

// One output: a chain from c, or chains of `block` products added to c one by one.
std::uint32_t element(std::span<const Unpacked> a, std::span<const Unpacked> b, int fraction_bits,
                      std::uint32_t c, const Arithmetic& t, std::int64_t block,
                      RegionCounts& counts) {
    Region region;
    const bool half = t.rounding == Rounding::rne_f16;
    if (block == 0) {
        c = chain(a, b, fraction_bits, c, t, &region);
    } else {
        const auto unit = static_cast<std::size_t>(block);
        for (std::size_t k = 0; k < a.size(); k += unit) {
            const std::size_t length = std::min(unit, a.size() - k);
            const std::uint32_t part =
                chain(a.subspan(k, length), b.subspan(k, length), fraction_bits, 0U, t, &region);
            c = add_bits(c, part, half);
        }
    }
    counts.special += region.special || !is_finite(c, half) ? 1 : 0;
    counts.at_zero_floor += region.at_zero_floor ? 1 : 0;
    return c;
}

}  // namespace

void ReferencePanel::compute_row(std::int64_t i, RegionCounts& counts) {
    const MatmulCall& call = plan_.call;
    while (std::ssize(columns_) < count_) {
        columns_.push_back(unpack_row(call.right.transposed(), first_ + std::ssize(columns_)));
    }
    const std::vector<Unpacked> row = unpack_row(call.left, i);
    const int fraction_bits = fraction_bits_of(call.left, call.right);
    for (std::int64_t j = 0; j < count_; ++j) {
        const std::uint32_t c = load_c(plan_, i, first_ + j);
        store_d(plan_, i, first_ + j,
                element(row, columns_[static_cast<std::size_t>(j)], fraction_bits, c,
                        call.arithmetic, call.block, counts));
    }
}

RegionCounts dot(const DotCall& call) {
    RegionCounts counts;
    const bool half = call.arithmetic.rounding == Rounding::rne_f16;
    const int fraction_bits = fraction_bits_of(call.left, call.right);
    for (std::int64_t n = 0; n < call.left.rows; ++n) {
        std::uint32_t bits = 0U;
        if (call.c != nullptr) {
            bits = half ? static_cast<const std::uint16_t*>(call.c)[n]
                        : static_cast<const std::uint32_t*>(call.c)[n];
        }
        bits = element(unpack_row(call.left, n), unpack_row(call.right, n), fraction_bits, bits,
                       call.arithmetic, call.block, counts);
        if (half) {
            static_cast<std::uint16_t*>(call.d)[n] = static_cast<std::uint16_t>(bits);
        } else {
            static_cast<std::uint32_t*>(call.d)[n] = bits;
        }
    }
    return counts;
}

}  // namespace bitwitness
