// How many threads a product is worth.
#pragma once

#include <cstdint>

namespace bitwitness {

// Multiply-accumulates for which waking a thread pays, with what its part costs in packing.
inline constexpr std::int64_t kProductsPerThread = std::int64_t{1} << 19;

inline int useful_threads(int threads, std::int64_t rows, std::int64_t cols, std::int64_t depth) {
    const double products =
        static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(depth);
    const double useful = products / static_cast<double>(kProductsPerThread);
    if (useful >= threads) return threads;
    return useful > 1.0 ? static_cast<int>(useful) : 1;
}

}  // namespace bitwitness
