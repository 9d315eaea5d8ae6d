// The driver: packs the operands, and hands each tile to the fast kernel where that is
// proved exact, to the reference path elsewhere.
#include <algorithm>
#include <atomic>
#include <bit>
#include <optional>

#include "bitwitness/matmul.hpp"
#include "bitwitness/parallel.hpp"
#include "mma_fast_tile.hpp"
#include "mma_pack.hpp"
#include "mma_plan.hpp"
#include "mma_reference.hpp"

namespace bitwitness {
namespace {

constexpr std::int64_t kReferencePanel = 32;

// log2 of what bounds an accumulator over the largest product's exponent: K products below 4,
// plus a c which FastTile holds to 2^(growth - 1).
int growth_of(const MatmulCall& call) {
    const auto depth = static_cast<std::uint64_t>(std::max<std::int64_t>(call.left.cols, 1));
    return static_cast<int>(std::bit_width(depth)) + 3 + (call.c != nullptr ? 8 : 0);
}

bool has_kernel(const MatmulCall& call) {
    const Arithmetic& t = call.arithmetic;
    const bool half = t.rounding == Rounding::rne_f16;
    const bool group = t.group == 4 || t.group == 8 || t.group == 16 || t.group == 32;
    const auto fp8 = [](const Operand& x) { return layout_of(x.format).bytes == 1; };
    // The bounds on sums are proved in mma_kernel_body.hpp.
    const bool sums = t.group <= 16 || t.fraction_bits < 25 || (fp8(call.left) && fp8(call.right));
    const auto narrow = [](const Operand& x) { return layout_of(x.format).exponent_bits < 8; };
    const bool accumulator = !half || (narrow(call.left) && narrow(call.right));
    // An f16 accumulator meets its exponent floor inside the fast kernel, which does not count.
    const bool counted = !half || !call.count_regions;
    return group && sums && accumulator && counted && t.fraction_bits >= 8 &&
           t.fraction_bits <= kMaxFractionBits && call.block % t.group == 0;
}

// Rows [first, last) of one panel: runs of eligible rows go to the kernel together.
void compute_tile(const Plan& plan, const LeftPack& left, const RightPack& right,
                  std::int64_t panel, std::int64_t first, std::int64_t last, RegionCounts& counts) {
    const std::int64_t width = right.plane.width;
    const std::int64_t j0 = panel * width;
    ReferencePanel reference(plan, j0, std::min(width, plan.cols() - j0));
    const FastTile fast(plan, left, right, panel);
    for (std::int64_t i = first; i < last;) {
        std::int64_t end = i;
        while (end < last && fast.eligible(end)) ++end;
        if (end > i && !fast.compute_rows(i, end)) {
            for (; i < end; ++i) reference.compute_row(i, counts);
        }
        if (end < last) reference.compute_row(end++, counts);
        i = end;
    }
}

// Calls tile(panel, first row, last row, counts) for every tile, on the call's threads.
template <class Tile>
RegionCounts for_tiles(const MatmulCall& call, std::int64_t width, Tile&& tile) {
    std::atomic<std::int64_t> special{0};
    std::atomic<std::int64_t> at_zero_floor{0};
    const std::int64_t panels = round_up(call.right.cols, width) / width;
    const std::int64_t row_blocks = round_up(call.left.rows, kRowBlock) / kRowBlock;
    parallel_for(call.threads, panels * row_blocks, [&](std::int64_t item) {
        const std::int64_t first = item % row_blocks * kRowBlock;
        RegionCounts counts;
        tile(item / row_blocks, first, std::min(first + kRowBlock, call.left.rows), counts);
        special += counts.special;
        at_zero_floor += counts.at_zero_floor;
    });
    return {special, at_zero_floor};
}

RegionCounts reference_matmul(const Plan& plan) {
    const auto tile = [&](std::int64_t panel, std::int64_t first, std::int64_t last,
                          RegionCounts& counts) {
        const std::int64_t j0 = panel * kReferencePanel;
        ReferencePanel reference(plan, j0, std::min(kReferencePanel, plan.cols() - j0));
        for (std::int64_t i = first; i < last; ++i) reference.compute_row(i, counts);
    };
    return for_tiles(plan.call, kReferencePanel, tile);
}

RegionCounts fast_matmul(const Plan& plan) {
    const MatmulCall& call = plan.call;
    const std::int64_t width = plan.kernels->panel_width;
    const std::int64_t panels = round_up(plan.cols(), width) / width;
    const std::int64_t strips = round_up(call.left.rows, kPackRows) / kPackRows;
    LeftPack left(call.left.rows, plan.padded_depth, kDepthBlock);
    RightPack right(*plan.kernels, panels, plan.padded_depth);
    parallel_for(call.threads, strips + panels, [&](std::int64_t item) {
        if (item < strips) {
            left.pack(*plan.kernels, call.left, item * kPackRows, plan.pre);
        } else {
            right.pack(*plan.kernels, call.right, item - strips);
        }
    });
    return for_tiles(
        call, width,
        [&](std::int64_t panel, std::int64_t first, std::int64_t last, RegionCounts& counts) {
            compute_tile(plan, left, right, panel, first, last, counts);
        });
}

}  // namespace

Plan plan_of(const MatmulCall& call) {
    Plan plan{.call = call,
              .kernels = nullptr,
              .half = call.arithmetic.rounding == Rounding::rne_f16,
              .padded_depth = round_up(call.left.cols, call.arithmetic.group),
              .growth = growth_of(call),
              .pre = 0};
    plan.pre = call.arithmetic.fraction_bits - plan.growth - 1;
    if (has_kernel(call)) plan.kernels = kernels(call.path);
    return plan;
}

RegionCounts matmul(const MatmulCall& call) {
    const Plan plan = plan_of(call);
    return plan.kernels != nullptr ? fast_matmul(plan) : reference_matmul(plan);
}

}  // namespace bitwitness
