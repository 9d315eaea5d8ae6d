// Outputs on the reference path.
#pragma once

#include <cstdint>
#include <vector>

#include "bitwitness/matmul.hpp"
#include "mma_plan.hpp"

namespace bitwitness {

// The reference path for columns [first, first + count), unpacked when first needed.
class ReferencePanel {
  public:
    ReferencePanel(const Plan& plan, std::int64_t first, std::int64_t count)
        : plan_(plan), first_(first), count_(count) {}

    // Stores row i of D and adds to the counts.
    void compute_row(std::int64_t i, RegionCounts& counts);

  private:
    const Plan& plan_;
    std::int64_t first_;
    std::int64_t count_;
    std::vector<std::vector<Unpacked>> columns_;
};

}  // namespace bitwitness
