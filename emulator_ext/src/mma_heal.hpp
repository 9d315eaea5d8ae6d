// The heal profile on one matrix pair: HEAL's error-compensated GEMM (NUMERICS section 2).
//
// Each operand, scaled by a power of two per row or column, is split into two f16 parts;
// three products of parts run on the tensor core in blocks of 32 along K and are
// accumulated outside of it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "bitwitness/cpu.hpp"
#include "bitwitness/matrix.hpp"
#include "bitwitness/step.hpp"
#include "mma_kernels.hpp"

namespace bitwitness {

// How to compute, which changes no bit.
struct HealExecution {
    Path path;
    int threads;
    std::int64_t packing_bytes;
};

void heal_gemm(const MatrixView<const float>& left, const MatrixView<const float>& right, float* d,
               const Arithmetic& arithmetic, const HealExecution& how);

namespace heal {

inline constexpr std::int64_t kBlock = 32;
inline constexpr int kTopExponent = 14;  // a scaled row's maximum lies in [2^14, 2^15)

// floor(log2) of the largest magnitude's f32 bits, less 14; subnormals count their own bits.
inline int exponent_of(std::uint32_t magnitude) {
    if (magnitude == 0U) return 0;
    const auto field = static_cast<int>(magnitude >> 23);
    const int log2 = field != 0 ? field - 127 : static_cast<int>(std::bit_width(magnitude)) - 150;
    return log2 - kTopExponent;
}

// 2^-exponent as two factors: it is infinite for the smallest rows, and both multiplications
// are exact there. Elsewhere the second is 1.
struct Factors {
    float first;
    float second;
};

inline float power_of_two(int exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

inline Factors factors_of(int exponent) {
    const int first = std::min(-exponent, 127);
    return {power_of_two(first), power_of_two(-exponent - first)};
}

// ldexp(main + correction * 2^-11, exponent), rounded once to f32. The product is exact in
// f64: exponents stay within a few hundred.
inline float combine(float main, float correction, int exponent) {
    const float sum = main + correction * 0x1p-11F;
    const auto scale = std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
    return static_cast<float>(static_cast<double>(sum) * scale);
}

void fast_gemm(const MatrixView<const float>& left, const MatrixView<const float>& right, float* d,
               const Arithmetic& arithmetic, const KernelTable& table, const HealExecution& how);

}  // namespace heal
}  // namespace bitwitness
