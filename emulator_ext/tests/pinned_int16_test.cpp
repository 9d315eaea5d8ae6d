// INT16 vectors: scales and ties at their edges, halves that add up, sums that are exact.
#include "bitwitness/pinned_int16.h"

#include <cmath>

#include "bitwitness/pinned_int16_operators.hpp"
#include "pinned_check.hpp"

namespace {

namespace bw = bitwitness;
using pinned_check::same_bits;
using pinned_check::that;

void scales() {
    that(bw::int16_scale(0) == 1, "zeros have the least scale");
    that(bw::int16_scale(bw::bits_of(1.0F)) == 113, "1 is 2^14 * 2^(113 - 127)");
    that(bw::int16_scale(bw::bits_of(0x1.fffffep127F)) == 240, "the greatest scale");
    that(bw::int16_quantise(1.0F, 113) == 16384, "a power of two is 2^14");
    that(bw::int16_quantise(std::nextafterf(2.0F, 0.0F), 113) == bw::kInt16Max, "saturation");
    that(bw::int16_quantise(-std::nextafterf(2.0F, 0.0F), 113) == -bw::kInt16Max, "saturation");
    const float half = 0x1p-15F;  // half a unit of scale 113
    that(bw::int16_quantise(half, 113) == 0, "ties to even, down");
    that(bw::int16_quantise(3 * half, 113) == 2, "ties to even, up");
    that(bw::int16_quantise(-0.0F, 113) == 0, "minus zero");
    that(bw::int16_quantise(0x1p-149F, 1) == 0, "the least subnormal");
}

void halves() {
    bool adds = true;
    bool small = true;
    for (int q = -bw::kInt16Max; q <= bw::kInt16Max; ++q) {
        const int high = bw::int16_high(q);
        const int low = bw::int16_low(q);
        adds = adds && 256 * high + low == q;
        small = small && std::abs(high) <= 128 && low >= -128 && low < 128;
    }
    that(adds, "halves add up");
    that(small, "halves are balanced");
}

void weights() {
    that(bw::int24_scale(bw::bits_of(1.0F)) == 105, "1 is 2^22 * 2^(105 - 127)");
    that(bw::int24_quantise(1.0F, 105) == 1 << 22, "a power of two is 2^22");
    that(bw::int24_quantise(std::nextafterf(2.0F, 0.0F), 105) == bw::kInt24Max, "saturation");
    that(bw::int24_quantise(-std::nextafterf(2.0F, 0.0F), 105) == -bw::kInt24Max, "saturation");
    bool adds = true;
    for (int w = -bw::kInt24Max; w <= bw::kInt24Max; w += 127) {
        const int rest = bw::int24_rest(w);
        adds = adds && 65536 * bw::int24_top(w) + rest == w && std::abs(bw::int24_top(w)) <= 128;
        adds = adds && std::abs(bw::int16_high(rest)) <= 128;
    }
    that(adds, "three balanced digits add up");
}

// The widest head, every product at its largest.
void widest_sum() {
    constexpr std::int64_t kWidth = bw::kInt16Width;
    const std::vector<float> x(static_cast<std::size_t>(kWidth), 0x1.fffep0F);
    std::vector<std::uint16_t> q(x.size());
    std::uint8_t scale = 0;
    bw::int16_quantise({1, kWidth}, x.data(), q.data(), &scale, 1);
    that(q[0] == 32767 && scale == 113, "the largest magnitude");
    float score = 0;
    bw::int16_scores({1, 1, 1, kWidth}, x.data(), q.data(), &scale, &score, 1);
    that(same_bits(score, static_cast<float>(std::ldexp(32767.0 * 32767.0 * 1024.0, -28))),
         "the widest sum is exact");
    bool refused = false;
    try {
        bw::int16_scores({1, 1, 1, kWidth + 1}, x.data(), q.data(), &scale, &score, 1);
    } catch (const bw::OutOfRange&) {
        refused = true;
    }
    that(refused, "a wider head is refused");
}

}  // namespace

int main() {
    scales();
    halves();
    weights();
    widest_sum();
    return pinned_check::result();
}
