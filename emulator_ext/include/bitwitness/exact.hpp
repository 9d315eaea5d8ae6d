// The exact profile of NUMERICS section 2: Ozaki's scheme I with one exponent per block.
//
// Every 64 values of a row of A or column of B become integers of 26 bits below a common
// exponent, cut into three digits of 9 bits; six products of digits, summed as integers, then
// enter an f32 chain of fused multiply-adds in a pinned order. Integer sums have no order, so
// any engine that holds 24 bits gives the same product.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bitwitness/cpu.hpp"
#include "bitwitness/gemm.hpp"
#include "bitwitness/matrix.hpp"

namespace bitwitness {

// As GemmCall; no architecture has a say in it.
struct ExactCall {
    MatrixView<const float> left;
    MatrixView<const float> right;
    std::vector<std::int64_t> left_offsets;
    std::vector<std::int64_t> right_offsets;
    float* d;
    Path path;
    int threads;
};

// Computes d. Returns the first non-finite element, in which case d is not to be used.
std::optional<NonFinite> exact_gemm(const ExactCall& call);

}  // namespace bitwitness
