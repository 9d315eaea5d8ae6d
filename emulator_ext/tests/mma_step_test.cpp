// The reference step: rounding, special values and conversions, against exact expectations.
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "bitwitness/step.hpp"
#include "mma_check.hpp"
#include "mma_fold.hpp"

namespace {

using namespace bitwitness;
using mma_check::same;

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

// f16 -> f32 -> f16 is the identity, and every midpoint goes to the even neighbour.
void half_conversions() {
    for (std::uint32_t h = 0; h <= 0xffffU; ++h) {
        const bool nan = (h & 0x7fffU) > kInfF16;
        same(f32_to_f16_bits(f16_to_f32_bits(h)), nan ? kNanF16 : h, "f16 round trip");
        if ((h & 0x7fffU) >= kInfF16) continue;
        const float here = std::bit_cast<float>(f16_to_f32_bits(h));
        const std::uint32_t up =
            (h & 0x7fffU) + 1U == kInfF16 ? bits(65536.0F) : f16_to_f32_bits(h + 1);
        const float next = (h & 0x7fffU) + 1U == kInfF16 ? std::copysign(65536.0F, here)
                                                         : std::bit_cast<float>(up);
        const float middle = here + (next - here) / 2;
        same(f32_to_f16_bits(bits(middle)), (h & 1U) == 0U ? h : h + 1, "f16 tie");
        same(f32_to_f16_bits(bits(std::nextafter(middle, here))), h, "f16 below the tie");
        same(f32_to_f16_bits(bits(std::nextafter(middle, next))), h + 1, "f16 above the tie");
    }
}

// round_sum on sums that a double holds exactly, against conversions of the double.
void rounding() {
    mma_check::Random random(1);
    for (int i = 0; i < 200000; ++i) {
        const auto width = static_cast<int>(random() % 34) + 1;
        auto sum = static_cast<std::int64_t>(random() >> (64 - width));
        if ((random() & 1U) != 0U) sum = -sum;
        const int exponent = static_cast<int>(random() % 280) - 170;
        const double exact = std::ldexp(static_cast<double>(sum), exponent);
        auto toward_zero = static_cast<float>(exact);
        if (std::fabs(static_cast<double>(toward_zero)) > std::fabs(exact)) {
            toward_zero =
                std::fabs(exact) >= 0x1p128 ? toward_zero : std::nextafter(toward_zero, 0.0F);
        }
        if (toward_zero == 0.0F) toward_zero = 0.0F;  // -0 becomes +0
        same(round_sum(sum, exponent, Rounding::rz_f32), bits(toward_zero + 0.0F), "RZ to f32");
        const std::uint32_t cut = bits(toward_zero) & ~0x3ffU;
        same(round_sum(sum, exponent, Rounding::rz_e8m13), (cut << 1) == 0U ? 0U : cut,
             "RZ to E8M13");
    }
    same(round_sum(65519, 0, Rounding::rne_f16), 0x7bffU, "65519");
    same(round_sum(65520, 0, Rounding::rne_f16), kInfF16, "65520");
    same(round_sum(-(std::int64_t{1} << 40), -65, Rounding::rne_f16), 0U, "half the least f16");
    same(round_sum(-3, -26, Rounding::rne_f16), 0x8001U, "three quarters of the least f16");
    same(round_sum(4095, -12, Rounding::rne_f16), 0x3c00U, "a carry into the exponent");
}

std::uint32_t one_step(float a, float b, float c, const Arithmetic& t) {
    const FormatLayout half = layout_of(Format::f16);
    const std::vector<Unpacked> x{unpack(half, f32_to_f16_bits(bits(a)))};
    const std::vector<Unpacked> y{unpack(half, f32_to_f16_bits(bits(b)))};
    return chain(x, y, 20, bits(c), t, nullptr);
}

void special_values() {
    const Arithmetic hopper{25, 16, -133, Rounding::rz_f32};
    constexpr float inf = std::numeric_limits<float>::infinity();
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    same(one_step(nan, 0, 0, hopper), kNanF32, "NaN * 0");
    same(one_step(inf, 0, 0, hopper), kNanF32, "inf * 0");
    same(one_step(inf, 1, -inf, hopper), kNanF32, "inf - inf");
    same(one_step(inf, -1, 3, hopper), kInfF32 | 0x80000000U, "-inf");
    same(one_step(1, 1, inf, hopper), kInfF32, "c = inf");
    same(one_step(0, -1, -0.0F, hopper), 0U, "zeros");
    same(one_step(1, 1, 0x1p-25F, hopper), bits(1.0F), "the last aligned bit is cut by RZ");
    same(one_step(-1, 1, 0x1p-25F, hopper), bits(-0x1.fffffep-1F), "and by RZ of a difference");
}

void regions() {
    const Arithmetic half{25, 16, -21, Rounding::rne_f16};
    const FormatLayout f16 = layout_of(Format::f16);
    Region region;
    const std::vector<Unpacked> tiny{unpack(f16, 0x0400)};  // 2^-14
    chain(tiny, tiny, 20, 0U, half, &region);
    same(region.at_zero_floor, 1, "2^-28 aligns at e_zero");
    same(region.special, 0, "and is not special");
    chain(tiny, std::vector<Unpacked>{unpack(f16, 0x7c00)}, 20, 0U, half, &region);
    same(region.special, 1, "infinity is special");
}

}  // namespace

int main() {
    half_conversions();
    rounding();
    special_values();
    regions();
    return mma_check::result();
}
