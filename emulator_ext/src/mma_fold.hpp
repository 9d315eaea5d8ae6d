// Adding partial results outside the tensor core: one IEEE operation, round to nearest even.
#pragma once

#include <cstdint>

#include "bitwitness/step.hpp"

namespace bitwitness {

// f16 <-> f32 by bits. to_f16 rounds to nearest even and gives infinity from 65520 on.
std::uint32_t f16_to_f32_bits(std::uint32_t half);
std::uint32_t f32_to_f16_bits(std::uint32_t single);

// a + b in the accumulator's format; a NaN result is the canonical one.
std::uint32_t add_bits(std::uint32_t a, std::uint32_t b, bool half);

}  // namespace bitwitness
