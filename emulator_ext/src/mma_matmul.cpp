// The driver: packs the operands, and hands each tile to the vector kernels where they are
// proved exact, to the reference path elsewhere.
#include <algorithm>
#include <atomic>
#include <bit>
#include <optional>

#include "bitwitness/matmul.hpp"
#include "bitwitness/parallel.hpp"
#include "mma_domains.hpp"
#include "mma_kernel_tile.hpp"
#include "mma_pack.hpp"
#include "mma_plan.hpp"
#include "mma_reference.hpp"
#include "mma_threads.hpp"

namespace bitwitness {
namespace {

constexpr std::int64_t kReferencePanel = 32;

// log2 of what bounds an accumulator over the largest product's exponent: K products below 4,
// plus a c which ScaledDomain holds to 2^(growth - 1).
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

// Rows [first, last) of one panel that one domain takes; calls rest(i) for the others.
template <class Domain, class Rest>
void compute_runs(const KernelTile<Domain>& tile, std::int64_t first, std::int64_t last,
                  Rest&& rest) {
    for (std::int64_t i = first; i < last;) {
        std::int64_t end = i;
        while (end < last && tile.eligible(end)) ++end;
        const bool done = end == i || tile.compute_rows(i, end);
        for (; !done && i < end; ++i) rest(i);
        if (end < last) rest(end++);
        i = end;
    }
}

// Everything packed for the vector kernels. The wide planes are made when first needed.
class Packed {
  public:
    explicit Packed(const Plan& plan)
        : plan_(plan),
          panels_(round_up(plan.cols(), plan.kernels->panel_width) / plan.kernels->panel_width),
          strips_(round_up(plan.call.left.rows, kPackRows) / kPackRows),
          left_(plan.call.left.rows, plan.padded_depth, kDepthBlock),
          right_(*plan.kernels, panels_, plan.padded_depth) {
        for_parts(
            [&](std::int64_t row) { left_.pack(*plan.kernels, plan.call.left, row, plan.pre); },
            [&](std::int64_t panel) { right_.pack(*plan.kernels, plan.call.right, panel); });
        if (needs_wide()) pack_wide();
    }

    void compute_tile(std::int64_t panel, std::int64_t first, std::int64_t last,
                      RegionCounts& counts) const {
        const std::int64_t width = plan_.kernels->panel_width;
        const std::int64_t j0 = panel * width;
        ReferencePanel reference(plan_, j0, std::min(width, plan_.cols() - j0));
        const auto by_reference = [&](std::int64_t i) { reference.compute_row(i, counts); };
        const KernelTile scaled(plan_, ScaledDomain(plan_, left_, right_, panel), panel);
        if (!wide_) return compute_runs(scaled, first, last, by_reference);
        const KernelTile wide(plan_, WideDomain(plan_, left_, right_, *wide_, panel), panel);
        std::int64_t i = first;
        while (i < last) {  // alternating runs of rows: scaled, then not
            std::int64_t end = i;
            while (end < last && scaled.eligible(end)) ++end;
            compute_runs(scaled, i, end, by_reference);
            for (i = end; end < last && !scaled.eligible(end);) ++end;
            compute_runs(wide, i, end, by_reference);
            i = end;
        }
    }

  private:
    template <class Left, class Right>
    void for_parts(Left&& left, Right&& right) const {
        parallel_for(plan_.call.threads, strips_ + panels_, [&](std::int64_t item) {
            if (item < strips_) {
                left(item * kPackRows);
            } else {
                right(item - strips_);
            }
        });
    }

    // Counting regions needs the reference path wherever the scaled domain does not reach.
    bool needs_wide() const {
        const bool formats = layout_of(plan_.call.left.format).exponent_bits == 8;
        if (!formats || plan_.call.count_regions) return false;
        for (std::int64_t panel = 0; panel < panels_; ++panel) {
            const ScaledDomain domain(plan_, left_, right_, panel);
            for (std::int64_t i = 0; i < plan_.call.left.rows; ++i) {
                if (!domain.eligible(i)) return true;
            }
        }
        return false;
    }

    void pack_wide() {
        const Kernels& k = *plan_.kernels;
        wide_.emplace(WidePack{{plan_.call.left.rows, plan_.padded_depth, kDepthBlock},
                               {k.panel_width, panels_, plan_.padded_depth}});
        for_parts([&](std::int64_t row) { wide_->pack_left(k, plan_.call.left, row); },
                  [&](std::int64_t panel) { wide_->pack_right(k, plan_.call.right, panel); });
    }

    const Plan& plan_;
    std::int64_t panels_;
    std::int64_t strips_;
    LeftPack left_;
    RightPack right_;
    std::optional<WidePack> wide_;
};

// Calls tile(panel, first row, last row, counts) for every tile, on the call's threads.
template <class Tile>
RegionCounts for_tiles(const MatmulCall& call, std::int64_t width, Tile&& tile) {
    std::atomic<std::int64_t> special{0};
    std::atomic<std::int64_t> at_zero_floor{0};
    const std::int64_t panels = round_up(call.right.cols, width) / width;
    const std::int64_t row_blocks = round_up(call.left.rows, kRowBlock) / kRowBlock;
    // Row by row of tiles: the packed rows stay in the cache, which are more than a panel.
    parallel_for(call.threads, panels * row_blocks, [&](std::int64_t item) {
        const std::int64_t first = item / panels * kRowBlock;
        RegionCounts counts;
        tile(item % panels, first, std::min(first + kRowBlock, call.left.rows), counts);
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

RegionCounts piece_matmul(const Plan& plan) {
    const Packed packed(plan);
    return for_tiles(
        plan.call, plan.kernels->panel_width,
        [&](std::int64_t panel, std::int64_t first, std::int64_t last, RegionCounts& counts) {
            packed.compute_tile(panel, first, last, counts);
        });
}

// The same plan for some rows and columns.
MatmulCall piece_of(const Plan& plan, std::int64_t row, std::int64_t rows, std::int64_t col,
                    std::int64_t cols) {
    MatmulCall piece = plan.call;
    piece.left = plan.call.left.row_piece(row, rows);
    piece.right = plan.call.right.col_piece(col, cols);
    const std::int64_t offset =
        (row * plan.row_stride + col * plan.col_stride) * (plan.half ? 2 : 4);
    if (piece.c != nullptr) piece.c = static_cast<const char*>(piece.c) + offset;
    piece.d = static_cast<char*>(piece.d) + offset;
    return piece;
}

RegionCounts vector_matmul(const Plan& plan) {
    const MatmulCall& call = plan.call;
    const std::int64_t left_bytes =
        plan.padded_depth * static_cast<std::int64_t>(sizeof(LeftEntry));
    const std::int64_t right_bytes = plan.padded_depth * 5;
    RegionCounts total;
    const auto compute = [&](std::int64_t row, std::int64_t rows, std::int64_t col,
                             std::int64_t cols) {
        const MatmulCall piece = piece_of(plan, row, rows, col, cols);
        const Plan part{piece,           plan.kernels,    plan.half,   plan.padded_depth,
                        plan.row_stride, plan.col_stride, plan.growth, plan.pre};
        const RegionCounts counts = piece_matmul(part);
        total.special += counts.special;
        total.at_zero_floor += counts.at_zero_floor;
    };
    for_pieces(call.left.rows, kRowBlock, left_bytes, call.packing_bytes,
               [&](std::int64_t row, std::int64_t rows) {
                   for_pieces(
                       call.right.cols, plan.kernels->panel_width, right_bytes, call.packing_bytes,
                       [&](std::int64_t col, std::int64_t cols) { compute(row, rows, col, cols); });
               });
    return total;
}

}  // namespace

Plan plan_of(const MatmulCall& call) {
    Plan plan{.call = call,
              .kernels = nullptr,
              .half = call.arithmetic.rounding == Rounding::rne_f16,
              .padded_depth = round_up(call.left.cols, call.arithmetic.group),
              .row_stride = call.right.cols,
              .col_stride = 1,
              .growth = growth_of(call),
              .pre = 0};
    plan.pre = call.arithmetic.fraction_bits - plan.growth - 1;
    return plan;
}

RegionCounts matmul(const MatmulCall& requested) {
    MatmulCall call = requested;
    call.threads = useful_threads(call.threads, call.left.rows, call.right.cols, call.left.cols);
    Plan plan = plan_of(call);
    const KernelTable* table = has_kernel(call) ? kernels(call.path) : nullptr;
    if (table == nullptr) return reference_matmul(plan);
    const Panels panels = cheapest_panels(*table, call.left.rows, call.right.cols);
    plan.kernels = panels.kernels;
    if (panels.on_its_side) {
        call.left = requested.right.transposed();
        call.right = requested.left.transposed();
        plan.row_stride = 1;
        plan.col_stride = requested.right.cols;
    }
    return vector_matmul(plan);
}

}  // namespace bitwitness
