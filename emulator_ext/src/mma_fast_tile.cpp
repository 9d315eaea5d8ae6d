#include "mma_fast_tile.hpp"

#include <bit>

#include "mma_fold.hpp"

namespace bitwitness {
namespace {

// value * 2^exponent for a normal f32 that stays normal; a zero becomes +0.
std::uint32_t rescale(std::uint32_t bits, int exponent) {
    return (bits & 0x7fffffffU) == 0U ? 0U : bits + (static_cast<std::uint32_t>(exponent) << 23);
}

}  // namespace

// log2 of what a stored accumulator is multiplied by.
int FastTile::scale_of(std::int64_t i, std::int64_t j) const {
    return plan_.pre - left_.ranges[static_cast<std::size_t>(i)].high -
           right_.highs[static_cast<std::size_t>(column(j))];
}

bool FastTile::eligible(std::int64_t i) const {
    const auto& row = left_.ranges[static_cast<std::size_t>(i)];
    const auto& panel = right_.ranges[static_cast<std::size_t>(panel_)];
    const int span = row.span() + right_.spans[static_cast<std::size_t>(panel_)];
    const int bits = plan_.call.arithmetic.fraction_bits;
    // Below: accumulators are multiples of 2^(low + low - F), which must be a normal number.
    return row.clean && panel.clean && span + bits + plan_.growth <= kScaledBudget &&
           row.low + panel.low - bits >= -126 && row.high + panel.high + plan_.growth <= 127 &&
           c_eligible(i);
}

bool FastTile::c_eligible(std::int64_t i) const {
    if (plan_.call.c == nullptr || plan_.call.block != 0) return true;
    for (std::int64_t j = 0; j < cols_; ++j) {
        const std::uint32_t c = load_c(plan_, i, column(j));
        if (plan_.half) {
            if ((c & kInfF16) == kInfF16) return false;
            continue;
        }
        if ((c & 0x7fffffffU) == 0U) continue;
        const int field = static_cast<int>((c & 0x7fffffffU) >> 23);
        const int exponent = field - 127 + scale_of(i, j) - plan_.pre;
        if (field == 0 || field == 255 || exponent > plan_.growth - 2 ||
            exponent < plan_.growth - kScaledBudget) {
            return false;
        }
    }
    return true;
}

HalfAccumulator FastTile::half_accumulator(std::int64_t i) const {
    if (!plan_.half) return {};
    const int scale = scale_of(i, 0);
    return {plan_.call.arithmetic.zero_exponent + 127 + scale,
            layout_of(Format::f16).emin() + 127 + scale, scale};
}

std::uint32_t FastTile::to_scaled(std::uint32_t bits, int scale) const {
    return rescale(plan_.half ? f16_to_f32_bits(bits) : bits, scale);
}

std::uint32_t FastTile::from_scaled(float scaled, int scale) const {
    const std::uint32_t bits = rescale(std::bit_cast<std::uint32_t>(scaled), -scale);
    return plan_.half ? f32_to_f16_bits(bits) : bits;
}

bool FastTile::compute_rows(std::int64_t first, std::int64_t last) const {
    return plan_.call.block == 0 ? plain(first, last) : blocked(first, last);
}

bool FastTile::plain(std::int64_t first, std::int64_t last) const {
    std::fill(scratch_.get(), scratch_.get() + (last - first) * width_, 0.0F);
    for (std::int64_t i = first; i < last && plan_.call.c != nullptr; ++i) {
        float* acc = scratch_.get() + (i - first) * width_;
        for (std::int64_t j = 0; j < cols_; ++j) {
            acc[j] = std::bit_cast<float>(to_scaled(load_c(plan_, i, column(j)), scale_of(i, j)));
        }
    }
    if (!run(first, last, 0, plan_.padded_depth)) return false;
    for (std::int64_t i = first; i < last; ++i) {
        const float* acc = scratch_.get() + (i - first) * width_;
        for (std::int64_t j = 0; j < cols_; ++j) {
            store_d(plan_, i, column(j), from_scaled(acc[j], scale_of(i, j)));
        }
    }
    return true;
}

bool FastTile::blocked(std::int64_t first, std::int64_t last) const {
    for (std::int64_t i = first; i < last; ++i) {
        for (std::int64_t j = 0; j < cols_; ++j) {
            store_d(plan_, i, column(j), load_c(plan_, i, column(j)));
        }
    }
    const std::int64_t depth = plan_.padded_depth;
    for (std::int64_t k = 0; k < depth; k += plan_.call.block) {
        std::fill(scratch_.get(), scratch_.get() + (last - first) * width_, 0.0F);
        if (!run(first, last, k, std::min(k + plan_.call.block, depth))) return false;
        for (std::int64_t i = first; i < last; ++i) {
            const float* acc = scratch_.get() + (i - first) * width_;
            for (std::int64_t j = 0; j < cols_; ++j) {
                const std::uint32_t part = from_scaled(acc[j], scale_of(i, j));
                const std::uint32_t sum = load_d(plan_, i, column(j));
                store_d(plan_, i, column(j), add_bits(sum, part, plan_.half));
            }
        }
    }
    return true;
}

bool FastTile::run(std::int64_t first, std::int64_t last, std::int64_t k0, std::int64_t k1) const {
    const Arithmetic& t = plan_.call.arithmetic;
    const HalfAccumulator half = half_accumulator(first);
    const RoundTowardZero mode;
    bool finite = true;
    for (std::int64_t k = k0, count = 0; k < k1 && finite; k += count) {
        count = std::min(kDepthBlock - k % kDepthBlock, k1 - k);
        finite = plan_.kernels->chain(
            {left_.plane.at(first, k), kDepthBlock, right_.plane.values_at(panel_, k),
             right_.plane.exponents_at(panel_, k), scratch_.get(), last - first, count / t.group,
             t.group, t.fraction_bits, t.rounding, half});
    }
    return finite;
}

}  // namespace bitwitness
