// What all tiles of one matrix product share.
#pragma once

#include <cstdint>

#include "bitwitness/matmul.hpp"
#include "mma_kernels.hpp"

namespace bitwitness {

// Outputs of a tile: rows x one panel of columns.
inline constexpr std::int64_t kRowBlock = 64;
// Products between two visits of a row: a panel of this depth stays in the L1 cache.
inline constexpr std::int64_t kDepthBlock = 128;

struct Plan {
    const MatmulCall& call;  // perhaps on its side: C and D transposed by their strides
    const Kernels* kernels;  // null: everything goes through the reference path
    bool half;               // f16 accumulator
    std::int64_t padded_depth;
    std::int64_t row_stride;  // of C and D
    std::int64_t col_stride;
    int growth;  // 2^growth bounds scaled accumulators: G of mma_kernels.hpp
    int pre;

    std::int64_t cols() const { return call.right.cols; }
};

Plan plan_of(const MatmulCall& call);

// Element (i, j) of C, +0 without one, and of D.
inline std::uint32_t load_c(const Plan& plan, std::int64_t i, std::int64_t j) {
    if (plan.call.c == nullptr) return 0U;
    const std::int64_t at = i * plan.row_stride + j * plan.col_stride;
    return plan.half ? static_cast<const std::uint16_t*>(plan.call.c)[at]
                     : static_cast<const std::uint32_t*>(plan.call.c)[at];
}

inline std::uint32_t load_d(const Plan& plan, std::int64_t i, std::int64_t j) {
    const std::int64_t at = i * plan.row_stride + j * plan.col_stride;
    return plan.half ? static_cast<const std::uint16_t*>(plan.call.d)[at]
                     : static_cast<const std::uint32_t*>(plan.call.d)[at];
}

inline void store_d(const Plan& plan, std::int64_t i, std::int64_t j, std::uint32_t bits) {
    const std::int64_t at = i * plan.row_stride + j * plan.col_stride;
    if (plan.half) {
        static_cast<std::uint16_t*>(plan.call.d)[at] = static_cast<std::uint16_t>(bits);
    } else {
        static_cast<std::uint32_t*>(plan.call.d)[at] = bits;
    }
}

}  // namespace bitwitness
