// One tile of rows x one panel through the chain kernel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mma_pack.hpp"
#include "mma_plan.hpp"

namespace bitwitness {

class FastTile {
  public:
    FastTile(const Plan& plan, const LeftPack& left, const RightPack& right, std::int64_t panel)
        : plan_(plan),
          left_(left),
          right_(right),
          panel_(panel),
          width_(right.plane.width),
          cols_(std::min(width_, plan.cols() - panel * width_)),
          scratch_(kRowBlock * width_) {}

    // Whether no value of row i can leave the scaled domain or meet the accumulator's limits.
    bool eligible(std::int64_t i) const;

    // Eligible rows [first, last), at most kRowBlock. False: not computed, the reference path
    // has to (an f16 accumulator became infinite).
    bool compute_rows(std::int64_t first, std::int64_t last) const;

  private:
    std::int64_t column(std::int64_t j) const { return panel_ * width_ + j; }
    int scale_of(std::int64_t i, std::int64_t j) const;
    bool c_eligible(std::int64_t i) const;
    HalfAccumulator half_accumulator(std::int64_t i) const;
    std::uint32_t to_scaled(std::uint32_t bits, int scale) const;
    std::uint32_t from_scaled(float scaled, int scale) const;
    bool plain(std::int64_t first, std::int64_t last) const;
    bool blocked(std::int64_t first, std::int64_t last) const;
    bool run(std::int64_t first, std::int64_t last, std::int64_t k0, std::int64_t k1) const;

    const Plan& plan_;
    const LeftPack& left_;
    const RightPack& right_;
    std::int64_t panel_;
    std::int64_t width_;
    std::int64_t cols_;
    Buffer<float> scratch_;  // accumulators of the tile, in the scaled domain
};

}  // namespace bitwitness
