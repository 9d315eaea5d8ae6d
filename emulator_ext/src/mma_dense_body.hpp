// Kernels of products that are not chains of steps: f32 and f64 fma, 8-bit integers. Internal
// linkage, as in mma_kernel_body.hpp.
#pragma once

#include <cstdint>

#include "mma_kernel_body.hpp"

namespace bitwitness {
namespace {

inline constexpr int kDenseVectors = 4;

template <class V>
inline constexpr int kDenseWidth = kWidth<V, kDenseVectors>;

template <class V, int kRows>
void fma_rows(const float* left, std::int64_t left_stride, const FmaCall& call, float* out) {
    constexpr int width = kDenseWidth<V>;
    typename V::Floats acc[kRows][kDenseVectors];
    for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kDenseVectors; ++v) acc[r][v] = V::load(out + r * width + v * V::lanes);
    }
    for (std::int64_t k = 0; k < call.depth; ++k) {
        for (int v = 0; v < kDenseVectors; ++v) {
            const auto b = V::load(call.right + k * width + v * V::lanes);
            for (int r = 0; r < kRows; ++r) {
                acc[r][v] = V::fma(V::broadcast(left + r * left_stride + k), b, acc[r][v]);
            }
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kDenseVectors; ++v) V::store(out + r * width + v * V::lanes, acc[r][v]);
    }
}

template <class V>
void fma_chain(const FmaCall& call) {
    constexpr int width = kDenseWidth<V>;
    std::int64_t row = 0;
    for (; row + 2 <= call.rows; row += 2) {
        fma_rows<V, 2>(call.left + row * call.left_stride, call.left_stride, call,
                       call.accumulators + row * width);
    }
    if (row < call.rows) {
        fma_rows<V, 1>(call.left + row * call.left_stride, call.left_stride, call,
                       call.accumulators + row * width);
    }
}

template <class V>
void double_chain(const DoubleCall& call) {
    constexpr int width = kDenseWidth<V>;
    for (std::int64_t r = 0; r < call.rows; ++r) {
        double* __restrict out = call.accumulators + r * width;
        for (std::int64_t k = 0; k < call.depth; ++k) {
            const double a = call.left[r * call.depth + k];
            const double* b = call.right + k * width;
            for (int j = 0; j < width; ++j) out[j] = __builtin_fma(a, b[j], out[j]);
        }
    }
}

template <class V>
void integer_chain(const IntegerCall& call) {
    constexpr int width = kDenseWidth<V>;
    for (std::int64_t r = 0; r < call.rows; ++r) {
        const std::int32_t* left = call.left + r * call.pairs;
        std::int32_t* out = call.accumulators + r * width;
        typename V::Ints acc[kDenseVectors];
        for (int v = 0; v < kDenseVectors; ++v) acc[v] = V::load_ints(out + v * V::lanes);
        for (std::int64_t p = 0; p < call.pairs; ++p) {
            const auto a = V::fill(left[p]);
            for (int v = 0; v < kDenseVectors; ++v) {
                const auto b = V::load_ints(call.right + p * width + v * V::lanes);
                acc[v] = V::add(acc[v], V::dot_pairs(a, b));
            }
        }
        for (int v = 0; v < kDenseVectors; ++v) V::store_ints(out + v * V::lanes, acc[v]);
    }
}

}  // namespace
}  // namespace bitwitness
