// The GEMM profiles of NUMERICS section 2: f32 in, f32 out, every rounding pinned.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bitwitness/cpu.hpp"
#include "bitwitness/matmul.hpp"
#include "bitwitness/matrix.hpp"
#include "bitwitness/step.hpp"

namespace bitwitness {

enum class Profile : std::uint8_t { fp32, bf16, heal };

// A batch of products D[i] = A[i] * B[i] of one shape. The views describe the matrices'
// strides; their data pointers are those of the whole batch, and matrix i starts
// left_offsets[i] elements behind it. d is C-contiguous [batch][rows][cols].
struct GemmCall {
    Profile profile;
    MatrixView<const float> left;
    MatrixView<const float> right;
    std::vector<std::int64_t> left_offsets;
    std::vector<std::int64_t> right_offsets;
    float* d;
    Arithmetic arithmetic;  // of the profile's instruction; unused by fp32
    Path path;
    int threads;
    std::int64_t packing_bytes = kPackingBytes;
};

// Where a NaN or an infinity was found, in the order left, right, product.
struct NonFinite {
    enum class Where : std::uint8_t { left, right, product } where;
    std::int64_t batch;
    std::int64_t row;
    std::int64_t col;
};

// Computes d. Returns the first non-finite element, in which case d is not to be used.
std::optional<NonFinite> gemm(const GemmCall& call);

}  // namespace bitwitness
