// The driver: which outputs the fast kernel may compute, and in what order of blocks.
#include <algorithm>
#include <atomic>
#include <bit>
#include <optional>
#include <vector>

#include "bitwitness/matmul.hpp"
#include "bitwitness/parallel.hpp"
#include "mma_fold.hpp"
#include "mma_kernels.hpp"
#include "mma_pack.hpp"

namespace bitwitness {
namespace {

constexpr std::int64_t kRowBlock = 64;
// Products between two visits of a row: a panel of this depth stays in the L1 cache.
constexpr std::int64_t kDepthBlock = 128;
constexpr int kScalarPanel = 32;

// The geometry of one call, shared by all its tiles.
struct Plan {
    const MatmulCall& call;
    const Kernels* kernels;  // null: everything goes through the reference path
    bool half;               // f16 accumulator
    int fraction_bits;       // of a product: both operands' together
    std::int64_t block;      // products per chain
    std::int64_t padded_depth;
    int growth;  // 2^growth bounds scaled accumulators: G of mma_kernels.hpp
    int pre;
};

int fraction_bits_of(const Operand& left, const Operand& right) {
    return layout_of(left.format).fraction_bits + layout_of(right.format).fraction_bits;
}

int growth_of(const MatmulCall& call) {
    const auto depth = static_cast<std::uint64_t>(std::max<std::int64_t>(call.left.cols, 1));
    return static_cast<int>(std::bit_width(depth)) + 3 + (call.c != nullptr ? 8 : 0);
}

bool has_kernel(const MatmulCall& call) {
    const Arithmetic& t = call.arithmetic;
    const bool group = t.group == 4 || t.group == 8 || t.group == 16 || t.group == 32;
    const std::int64_t products = std::int64_t{t.group} << (t.fraction_bits + 2);
    const bool fits = products <= (std::int64_t{1} << 31);
    const bool aligned = call.block == 0 || call.block % t.group == 0;
    return group && fits && aligned && t.rounding != Rounding::rne_f16 && t.fraction_bits >= 8;
}

Plan plan_of(const MatmulCall& call) {
    const std::int64_t depth = call.left.cols;
    const bool half = call.arithmetic.rounding == Rounding::rne_f16;
    Plan plan{call, nullptr, half, fraction_bits_of(call.left, call.right), 0, 0, 0, 0};
    plan.block = call.block == 0 ? std::max<std::int64_t>(depth, 1) : call.block;
    plan.padded_depth = round_up(depth, call.arithmetic.group);
    plan.growth = growth_of(call);
    plan.pre = call.arithmetic.fraction_bits - plan.growth - 1;
    if (has_kernel(call)) plan.kernels = kernels(call.path);
    return plan;
}

std::uint32_t load_c(const Plan& plan, std::int64_t i, std::int64_t j) {
    if (plan.call.c == nullptr) return 0U;
    const std::int64_t at = i * plan.call.right.cols + j;
    return plan.half ? static_cast<const std::uint16_t*>(plan.call.c)[at]
                     : static_cast<const std::uint32_t*>(plan.call.c)[at];
}

void store_d(const Plan& plan, std::int64_t i, std::int64_t j, std::uint32_t bits) {
    const std::int64_t at = i * plan.call.right.cols + j;
    if (plan.half) {
        static_cast<std::uint16_t*>(plan.call.d)[at] = static_cast<std::uint16_t>(bits);
    } else {
        static_cast<std::uint32_t*>(plan.call.d)[at] = bits;
    }
}

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

// One output: a chain from c, or chains of `block` products added to c one by one.
std::uint32_t element(std::span<const Unpacked> a, std::span<const Unpacked> b, int fraction_bits,
                      std::uint32_t c, const Arithmetic& t, std::int64_t block, Region& region) {
    if (block == 0) return chain(a, b, fraction_bits, c, t, &region);
    const auto unit = static_cast<std::size_t>(block);
    for (std::size_t k = 0; k < a.size(); k += unit) {
        const std::size_t length = std::min(unit, a.size() - k);
        const std::uint32_t part =
            chain(a.subspan(k, length), b.subspan(k, length), fraction_bits, 0U, t, &region);
        c = add_bits(c, part, t.rounding == Rounding::rne_f16);
    }
    return c;
}

void count(const Region& region, RegionCounts& counts) {
    counts.special += region.special ? 1 : 0;
    counts.at_zero_floor += region.at_zero_floor ? 1 : 0;
}

// The reference path for one panel of columns, unpacked when first needed.
class ReferencePanel {
  public:
    ReferencePanel(const Plan& plan, std::int64_t j0, std::int64_t cols)
        : plan_(plan), j0_(j0), cols_(cols) {}

    void compute_row(std::int64_t i, RegionCounts& counts) {
        const Operand right = plan_.call.right.transposed();
        while (std::ssize(columns_) < cols_) {
            columns_.push_back(unpack_row(right, j0_ + std::ssize(columns_)));
        }
        const std::vector<Unpacked> row = unpack_row(plan_.call.left, i);
        for (std::int64_t j = 0; j < cols_; ++j) {
            Region region;
            const auto& column = columns_[static_cast<std::size_t>(j)];
            const std::uint32_t c = load_c(plan_, i, j0_ + j);
            store_d(plan_, i, j0_ + j,
                    element(row, column, plan_.fraction_bits, c, plan_.call.arithmetic,
                            plan_.call.block, region));
            count(region, counts);
        }
    }

  private:
    const Plan& plan_;
    std::int64_t j0_;
    std::int64_t cols_;
    std::vector<std::vector<Unpacked>> columns_;
};

// One tile of rows x one panel through the fast kernel.
class FastTile {
  public:
    FastTile(const Plan& plan, const LeftPack& left, const RightPack& right, std::int64_t panel)
        : plan_(plan),
          left_(left),
          right_(right),
          panel_(panel),
          cols_(std::min<std::int64_t>(right.width, plan.call.right.cols - panel * right.width)),
          scratch_(kRowBlock * right.width) {}

    // Whether no value of row i can leave the scaled domain or meet the accumulator's limits.
    bool eligible(std::int64_t i) const {
        const auto& row = left_.ranges[static_cast<std::size_t>(i)];
        const auto& panel = right_.ranges[static_cast<std::size_t>(panel_)];
        const int span = row.span() + right_.spans[static_cast<std::size_t>(panel_)];
        const int bits = plan_.call.arithmetic.fraction_bits;
        return row.clean && panel.clean && span + bits + plan_.growth <= kScaledBudget &&
               row.low + panel.low - bits >= -126 && row.high + panel.high + plan_.growth <= 127 &&
               c_eligible(i);
    }

    void compute_rows(std::int64_t first, std::int64_t last) {
        if (plan_.call.block == 0) return plain(first, last);
        const std::int64_t depth = plan_.padded_depth;
        for (std::int64_t i = first; i < last; ++i) {
            for (std::int64_t j = 0; j < cols_; ++j)
                store_d(plan_, i, column(j), load_c(plan_, i, column(j)));
        }
        for (std::int64_t k = 0; k < depth; k += plan_.block) {
            std::fill(scratch_.get(), scratch_.get() + (last - first) * right_.width, 0.0F);
            run(first, last, k, std::min(k + plan_.block, depth));
            fold(first, last);
        }
    }

  private:
    std::int64_t column(std::int64_t j) const { return panel_ * right_.width + j; }

    // log2 of what a stored accumulator is multiplied by.
    int scale_of(std::int64_t i, std::int64_t j) const {
        return plan_.pre - left_.ranges[static_cast<std::size_t>(i)].high -
               right_.highs[static_cast<std::size_t>(column(j))];
    }

    bool c_eligible(std::int64_t i) const {
        if (plan_.call.c == nullptr || plan_.call.block != 0) return true;
        for (std::int64_t j = 0; j < cols_; ++j) {
            const std::uint32_t magnitude = load_c(plan_, i, column(j)) & 0x7fffffffU;
            if (magnitude == 0U) continue;
            const int field = static_cast<int>(magnitude >> 23);
            const int exponent = field - 127 + scale_of(i, j) - plan_.pre;
            if (field == 0 || field == 255 || exponent > plan_.growth - 2 ||
                exponent < plan_.growth - kScaledBudget) {
                return false;
            }
        }
        return true;
    }

    static std::uint32_t rescale(std::uint32_t bits, int exponent) {
        return (bits & 0x7fffffffU) == 0U ? 0U
                                          : bits + (static_cast<std::uint32_t>(exponent) << 23);
    }

    void plain(std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
            float* acc = scratch_.get() + (i - first) * right_.width;
            std::fill(acc, acc + right_.width, 0.0F);
            if (plan_.call.c == nullptr) continue;
            for (std::int64_t j = 0; j < cols_; ++j) {
                acc[j] = std::bit_cast<float>(rescale(load_c(plan_, i, column(j)), scale_of(i, j)));
            }
        }
        run(first, last, 0, plan_.padded_depth);
        for (std::int64_t i = first; i < last; ++i) {
            const float* acc = scratch_.get() + (i - first) * right_.width;
            for (std::int64_t j = 0; j < cols_; ++j) {
                const auto bits = std::bit_cast<std::uint32_t>(acc[j]);
                store_d(plan_, i, column(j), rescale(bits, -scale_of(i, j)));
            }
        }
    }

    void fold(std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
            const float* acc = scratch_.get() + (i - first) * right_.width;
            for (std::int64_t j = 0; j < cols_; ++j) {
                const auto part = rescale(std::bit_cast<std::uint32_t>(acc[j]), -scale_of(i, j));
                const std::int64_t at = i * plan_.call.right.cols + column(j);
                auto* d = static_cast<std::uint32_t*>(plan_.call.d) + at;
                *d = add_bits(*d, part, false);
            }
        }
    }

    void run(std::int64_t first, std::int64_t last, std::int64_t k0, std::int64_t k1) {
        const Arithmetic& t = plan_.call.arithmetic;
        const RoundTowardZero mode;
        for (std::int64_t k = k0; k < k1; k += kDepthBlock) {
            const std::int64_t count = std::min(kDepthBlock, k1 - k);
            plan_.kernels->chain({left_.row(first) + k, left_.depth, right_.panel_values(panel_, k),
                                  right_.panel_exponents(panel_, k), scratch_.get(), last - first,
                                  count / t.group, t.group, t.fraction_bits,
                                  t.rounding == Rounding::rz_e8m13});
        }
    }

    const Plan& plan_;
    const LeftPack& left_;
    const RightPack& right_;
    std::int64_t panel_;
    std::int64_t cols_;
    Buffer<float> scratch_;
};

// Rows [first, last) of one panel: runs of eligible rows go to the kernel together.
void compute_tile(const Plan& plan, const LeftPack* left, const RightPack* right,
                  std::int64_t panel, std::int64_t first, std::int64_t last, RegionCounts& counts) {
    const int width = right != nullptr ? right->width : kScalarPanel;
    const std::int64_t j0 = panel * width;
    ReferencePanel reference(plan, j0, std::min<std::int64_t>(width, plan.call.right.cols - j0));
    if (plan.kernels == nullptr) {
        for (std::int64_t i = first; i < last; ++i) reference.compute_row(i, counts);
        return;
    }
    FastTile fast(plan, *left, *right, panel);
    for (std::int64_t i = first; i < last;) {
        std::int64_t end = i;
        while (end < last && fast.eligible(end)) ++end;
        if (end > i) fast.compute_rows(i, end);
        if (end < last) reference.compute_row(end++, counts);
        i = end;
    }
}

}  // namespace

RegionCounts dot(const DotCall& call) {
    RegionCounts counts;
    const bool half = call.arithmetic.rounding == Rounding::rne_f16;
    const int fraction_bits = fraction_bits_of(call.left, call.right);
    for (std::int64_t n = 0; n < call.left.rows; ++n) {
        Region region;
        std::uint32_t bits = 0U;
        if (call.c != nullptr) {
            bits = half ? static_cast<const std::uint16_t*>(call.c)[n]
                        : static_cast<const std::uint32_t*>(call.c)[n];
        }
        bits = element(unpack_row(call.left, n), unpack_row(call.right, n), fraction_bits, bits,
                       call.arithmetic, call.block, region);
        if (half) {
            static_cast<std::uint16_t*>(call.d)[n] = static_cast<std::uint16_t>(bits);
        } else {
            static_cast<std::uint32_t*>(call.d)[n] = bits;
        }
        count(region, counts);
    }
    return counts;
}

RegionCounts matmul(const MatmulCall& call) {
    const Plan plan = plan_of(call);
    const std::int64_t rows = call.left.rows;
    const int width = plan.kernels != nullptr ? plan.kernels->panel_width : kScalarPanel;
    const std::int64_t panels = round_up(call.right.cols, width) / width;
    std::optional<LeftPack> left;
    std::optional<RightPack> right;
    if (plan.kernels != nullptr) {
        left.emplace(rows, plan.padded_depth);
        right.emplace(*plan.kernels, panels, plan.padded_depth);
        parallel_for(call.threads, rows, [&](std::int64_t i) {
            left->pack_row(*plan.kernels, call.left, i, plan.pre);
        });
        parallel_for(call.threads, panels,
                     [&](std::int64_t p) { right->pack_panel(*plan.kernels, call.right, p); });
    }
    std::atomic<std::int64_t> special{0};
    std::atomic<std::int64_t> at_zero_floor{0};
    const std::int64_t row_blocks = round_up(rows, kRowBlock) / kRowBlock;
    parallel_for(call.threads, panels * row_blocks, [&](std::int64_t item) {
        const std::int64_t first = item % row_blocks * kRowBlock;
        RegionCounts counts;
        compute_tile(plan, left ? &*left : nullptr, right ? &*right : nullptr, item / row_blocks,
                     first, std::min(first + kRowBlock, rows), counts);
        special += counts.special;
        at_zero_floor += counts.at_zero_floor;
    });
    return {special, at_zero_floor};
}

}  // namespace bitwitness
