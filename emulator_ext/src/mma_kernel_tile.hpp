// A tile's outputs through one domain: loading c, running chains, folding blocks, storing d.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "mma_domains.hpp"
#include "mma_fold.hpp"
#include "mma_plan.hpp"

namespace bitwitness {

template <class Domain>
class KernelTile {
  public:
    KernelTile(const Plan& plan, Domain domain, std::int64_t panel)
        : plan_(plan),
          domain_(domain),
          width_(plan.kernels->panel_width),
          first_column_(panel * width_),
          cols_(std::min(width_, plan.cols() - first_column_)),
          accumulators_(kRowBlock * width_) {}

    bool eligible(std::int64_t i) const { return domain_.eligible(i); }

    // Eligible rows [first, last), at most kRowBlock. False: not computed, the reference path
    // has to.
    bool compute_rows(std::int64_t first, std::int64_t last) const {
        const TileSpan tile{first, last, accumulators_.get()};
        return plan_.call.block == 0 ? plain(tile) : blocked(tile);
    }

  private:
    // Calls use(i, j, accumulator) for every output of the tile, j within the panel.
    template <class Use>
    void for_outputs(const TileSpan& tile, Use&& use) const {
        for (std::int64_t i = tile.first; i < tile.last; ++i) {
            float* row = tile.accumulators + (i - tile.first) * width_;
            for (std::int64_t j = 0; j < cols_; ++j) use(i, j, row[j]);
        }
    }

    void clear(const TileSpan& tile) const {
        std::fill(tile.accumulators, tile.accumulators + (tile.last - tile.first) * width_, 0.0F);
    }

    // value * 2^exponent: the domain keeps both sides normal unless exponent is 0. Zeros
    // become +0.
    static std::uint32_t rescale(std::uint32_t bits, int exponent) {
        const bool zero = (bits & 0x7fffffffU) == 0U;
        return zero ? 0U : bits + (static_cast<std::uint32_t>(exponent) << 23);
    }

    float load(std::int64_t i, std::int64_t j) const {
        const std::uint32_t c = load_c(plan_, i, first_column_ + j);
        const std::uint32_t single = plan_.half ? f16_to_f32_bits(c) : c;
        return std::bit_cast<float>(rescale(single, domain_.scale_of(i, j)));
    }

    std::uint32_t result(std::int64_t i, std::int64_t j, float accumulator) const {
        const auto bits = std::bit_cast<std::uint32_t>(accumulator);
        const std::uint32_t single = rescale(bits, -domain_.scale_of(i, j));
        return plan_.half ? f32_to_f16_bits(single) : single;
    }

    bool plain(const TileSpan& tile) const {
        clear(tile);
        if (plan_.call.c != nullptr) {
            for_outputs(tile, [&](std::int64_t i, std::int64_t j, float& x) { x = load(i, j); });
        }
        if (!domain_.run(tile, 0, plan_.padded_depth)) return false;
        for_outputs(tile, [&](std::int64_t i, std::int64_t j, float x) {
            store_d(plan_, i, first_column_ + j, result(i, j, x));
        });
        return true;
    }

    bool blocked(const TileSpan& tile) const {
        for_outputs(tile, [&](std::int64_t i, std::int64_t j, float) {
            store_d(plan_, i, first_column_ + j, load_c(plan_, i, first_column_ + j));
        });
        for (std::int64_t k = 0; k < plan_.padded_depth; k += plan_.call.block) {
            clear(tile);
            const std::int64_t end = std::min(k + plan_.call.block, plan_.padded_depth);
            if (!domain_.run(tile, k, end)) return false;
            for_outputs(tile, [&](std::int64_t i, std::int64_t j, float x) {
                const std::uint32_t sum = load_d(plan_, i, first_column_ + j);
                store_d(plan_, i, first_column_ + j, add_bits(sum, result(i, j, x), plan_.half));
            });
        }
        return true;
    }

    const Plan& plan_;
    const Domain domain_;
    std::int64_t width_;
    std::int64_t first_column_;
    std::int64_t cols_;
    Buffer<float> accumulators_;
};

}  // namespace bitwitness
