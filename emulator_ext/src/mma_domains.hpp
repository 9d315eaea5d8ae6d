// The two ways in which a tile's accumulators go through a vector kernel: in the scaled
// domain (fast, for moderate exponent ranges) or unscaled with exponents apart (wide).
#pragma once

#include <cstdint>

#include "mma_pack.hpp"
#include "mma_plan.hpp"

namespace bitwitness {

// Rows x one panel of accumulators; a buffer of kRowBlock * panel_width floats.
struct TileSpan {
    std::int64_t first;  // row
    std::int64_t last;
    float* accumulators;
};

// See ChainCall. A stored accumulator carries the factor 2^scale_of(i, j).
class ScaledDomain {
  public:
    ScaledDomain(const Plan& plan, const LeftPack& left, const RightPack& right, std::int64_t panel)
        : plan_(plan), left_(left), right_(right), panel_(panel) {}

    // Whether no value of row i can leave the scaled domain or meet the accumulator's limits.
    bool eligible(std::int64_t i) const;
    int scale_of(std::int64_t i, std::int64_t j) const {
        return plan_.pre - left_.ranges[static_cast<std::size_t>(i)].high -
               right_.highs[static_cast<std::size_t>(panel_ * right_.plane.width + j)];
    }
    // Continues the tile's chains over products [k0, k1). False: the results are not to be
    // used (an f16 accumulator became infinite).
    bool run(const TileSpan& tile, std::int64_t k0, std::int64_t k1) const;

  private:
    bool c_eligible(std::int64_t i) const;
    HalfAccumulator half_accumulator(std::int64_t i) const;

    const Plan& plan_;
    const LeftPack& left_;
    const RightPack& right_;
    std::int64_t panel_;
};

// See WideCall. Needs finite operands and results that cannot overflow.
class WideDomain {
  public:
    WideDomain(const Plan& plan, const LeftPack& left, const RightPack& right, const WidePack& wide,
               std::int64_t panel)
        : plan_(plan), left_(left), right_(right), wide_(wide), panel_(panel) {}

    bool eligible(std::int64_t i) const;
    int scale_of(std::int64_t, std::int64_t) const { return 0; }
    bool run(const TileSpan& tile, std::int64_t k0, std::int64_t k1) const;

  private:
    const Plan& plan_;
    const LeftPack& left_;
    const RightPack& right_;
    const WidePack& wide_;
    std::int64_t panel_;
};

}  // namespace bitwitness
