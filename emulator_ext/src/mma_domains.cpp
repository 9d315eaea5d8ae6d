#include "mma_domains.hpp"

#include <algorithm>

namespace bitwitness {
namespace {

// A step of at most 16 products below 4 * 2^-160, and no accumulator, gives 0: a lower floor of
// emax has no effect.
constexpr int kLeastFloor = -160;

// Wide chains stay below 2^127: products below 2^(kWideTop + 2) together with c.
constexpr int kWideTop = 120;

std::int64_t columns_of(const Plan& plan, std::int64_t panel, std::int64_t width) {
    return std::min(width, plan.cols() - panel * width);
}

}  // namespace

bool ScaledDomain::eligible(std::int64_t i) const {
    const auto& row = left_.ranges[static_cast<std::size_t>(i)];
    const auto& panel = right_.ranges[static_cast<std::size_t>(panel_)];
    const int span = row.span() + right_.spans[static_cast<std::size_t>(panel_)];
    const int bits = plan_.call.arithmetic.fraction_bits;
    // Below: accumulators are multiples of 2^(low + low - F), which must be a normal number and,
    // unless the kernel knows the floor of emax, not lie under it.
    const int least = plan_.half ? -126 : std::max(-126, plan_.call.arithmetic.zero_exponent);
    return row.normal && panel.normal && span + bits + plan_.growth <= kScaledBudget &&
           row.low + panel.low - bits >= least && row.high + panel.high + plan_.growth <= 127 &&
           (!plan_.half || half_accumulator(i).zero_field - plan_.pre <= 127) && c_eligible(i);
}

bool ScaledDomain::c_eligible(std::int64_t i) const {
    if (plan_.call.c == nullptr || plan_.call.block != 0) return true;
    const std::int64_t width = right_.plane.width;
    for (std::int64_t j = 0; j < columns_of(plan_, panel_, width); ++j) {
        const std::uint32_t c = load_c(plan_, i, panel_ * width + j);
        if (plan_.half) {
            if ((c & kInfF16) == kInfF16) return false;
            continue;
        }
        if ((c & 0x7fffffffU) == 0U) continue;
        const int field = static_cast<int>((c & 0x7fffffffU) >> 23);
        if (field - 127 < plan_.call.arithmetic.zero_exponent) return false;
        const int exponent = field - 127 + scale_of(i, j) - plan_.pre;
        if (field == 0 || field == 255 || exponent > plan_.growth - 2 ||
            exponent < plan_.growth - kScaledBudget) {
            return false;
        }
    }
    return true;
}

HalfAccumulator ScaledDomain::half_accumulator(std::int64_t i) const {
    if (!plan_.half) return {};
    const int scale = scale_of(i, 0);
    const int floor = plan_.call.arithmetic.zero_exponent + 127 + scale;
    return {std::max(floor, plan_.call.arithmetic.fraction_bits + 1),
            layout_of(Format::f16).emin() + 127 + scale, scale};
}

bool ScaledDomain::run(const TileSpan& tile, std::int64_t k0, std::int64_t k1) const {
    const Arithmetic& t = plan_.call.arithmetic;
    const HalfAccumulator half = half_accumulator(tile.first);
    const RoundTowardZero mode;
    bool usable = true;
    for (std::int64_t k = k0, count = 0; k < k1 && usable; k += count) {
        count = std::min(kDepthBlock - k % kDepthBlock, k1 - k);
        usable = plan_.kernels->chain(
            {left_.plane.at(tile.first, k), kDepthBlock, right_.plane.values_at(panel_, k),
             right_.plane.exponents_at(panel_, k), tile.accumulators, tile.last - tile.first,
             count / t.group, t.group, t.fraction_bits, plan_.pre, t.rounding, half});
    }
    return usable;
}

bool WideDomain::eligible(std::int64_t i) const {
    const auto& row = left_.ranges[static_cast<std::size_t>(i)];
    const auto& panel = right_.ranges[static_cast<std::size_t>(panel_)];
    // A zero's exponent, added to another, must not pass the floor.
    const int floor = std::max(plan_.call.arithmetic.zero_exponent, kLeastFloor);
    if (std::max(row.high, panel.high) + kWideZero / 128 > floor) return false;
    if (!row.finite || !panel.finite || row.high > kWideTop || panel.high > kWideTop ||
        row.high + panel.high + plan_.growth > kWideTop) {
        return false;
    }
    if (plan_.call.c == nullptr || plan_.call.block != 0) return true;
    const std::int64_t width = right_.plane.width;
    for (std::int64_t j = 0; j < columns_of(plan_, panel_, width); ++j) {
        const std::uint32_t c = load_c(plan_, i, panel_ * width + j) & 0x7fffffffU;
        if (static_cast<int>(c >> 23) - 127 > kWideTop) return false;
    }
    return true;
}

bool WideDomain::run(const TileSpan& tile, std::int64_t k0, std::int64_t k1) const {
    const Arithmetic& t = plan_.call.arithmetic;
    const RoundTowardZero mode;
    for (std::int64_t k = k0, count = 0; k < k1; k += count) {
        count = std::min(kDepthBlock - k % kDepthBlock, k1 - k);
        plan_.kernels->wide_chain(
            {wide_.left.at(tile.first, k), kDepthBlock, wide_.right.values_at(panel_, k),
             wide_.right.exponents_at(panel_, k), tile.accumulators, tile.last - tile.first,
             count / t.group, t.group, t.fraction_bits, std::max(t.zero_exponent, kLeastFloor)});
    }
    return true;
}

}  // namespace bitwitness
