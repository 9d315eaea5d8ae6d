#include "mma_fold.hpp"

#include <bit>

namespace bitwitness {

std::uint32_t f16_to_f32_bits(std::uint32_t half) {
    const std::uint32_t sign = (half & 0x8000U) << 16;
    const std::uint32_t magnitude = half & 0x7fffU;
    if (magnitude >= kInfF16) return sign | kInfF32 | ((magnitude & 0x3ffU) << 13);
    const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112F;  // exact, subnormals too
    return sign | std::bit_cast<std::uint32_t>(value);
}

std::uint32_t f32_to_f16_bits(std::uint32_t single) {
    const std::uint32_t sign = (single >> 16) & 0x8000U;
    const std::uint32_t magnitude = single & 0x7fffffffU;
    if (magnitude > kInfF32) return kNanF16;
    if (magnitude >= 0x477ff000U) return sign | kInfF16;  // 65520
    if (magnitude < 0x38800000U) {
        // Below 2^-14 the grid is 2^-24, which is the last place of 0.5f.
        const float on_grid = std::bit_cast<float>(magnitude) + 0.5F;
        return sign | (std::bit_cast<std::uint32_t>(on_grid) - 0x3f000000U);
    }
    const std::uint32_t nearest = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
    return sign | ((nearest - (112U << 23)) >> 13);
}

std::uint32_t add_bits(std::uint32_t a, std::uint32_t b, bool half) {
    // Two f16 numbers add exactly in f32 whenever their f32 sum is not already a tie-safe
    // rounding: 24 >= 2 * 11 + 2 bits make the double rounding innocuous.
    const std::uint32_t x = half ? f16_to_f32_bits(a) : a;
    const std::uint32_t y = half ? f16_to_f32_bits(b) : b;
    const float sum = std::bit_cast<float>(x) + std::bit_cast<float>(y);
    if (sum != sum) return half ? kNanF16 : kNanF32;
    const auto bits = std::bit_cast<std::uint32_t>(sum);
    return half ? f32_to_f16_bits(bits) : bits;
}

}  // namespace bitwitness
