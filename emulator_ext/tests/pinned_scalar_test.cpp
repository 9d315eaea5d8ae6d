// The scalar functions against the C library's long double ones, at exact values, at the
// edges of their domains, and the laws that the operators rest on.
#include <cmath>
#include <cstdint>
#include <limits>

#include "bitwitness/philox.h"
#include "bitwitness/pinned.h"
#include "pinned_check.hpp"

namespace {

namespace bw = bitwitness;
using pinned_check::same_bits;
using pinned_check::that;

constexpr float kInf = std::numeric_limits<float>::infinity();

using Function = float (*)(float);
using Reference = long double (*)(long double);

// Every `stride`-th bit pattern: faithfully rounded, and correctly rounded but for a few.
void against_long_double(const char* name, Function f, Reference reference) {
    constexpr std::uint64_t kStride = 4099;  // prime, so that low bits vary too
    std::int64_t tested = 0;
    std::int64_t not_nearest = 0;
    for (std::uint64_t bits = 0; bits <= 0xffffffffULL; bits += kStride) {
        const float x = bw::float_of(static_cast<std::uint32_t>(bits));
        const long double exact = reference(x);
        const float result = f(x);
        if (std::isnan(exact)) {
            that(std::isnan(result), name, x, result);
            continue;
        }
        const auto nearest = static_cast<float>(exact);
        ++tested;
        if (same_bits(result, nearest)) continue;
        ++not_nearest;
        const float next = std::nextafter(nearest, exact > nearest ? kInf : -kInf);
        that(same_bits(result, next), name, x, result);
    }
    that(not_nearest * 1'000'000 < tested, name, static_cast<double>(not_nearest));
}

long double reference_sigmoid(long double x) { return 1.0L / (1.0L + std::exp(-x)); }

void functions_are_faithful() {
    against_long_double(
        "exp2", [](float x) { return bw::exp2(x); }, [](long double x) { return std::exp2(x); });
    against_long_double(
        "log2", [](float x) { return bw::log2(x); }, [](long double x) { return std::log2(x); });
    against_long_double(
        "tanh", [](float x) { return bw::tanh(x); }, [](long double x) { return std::tanh(x); });
    against_long_double(
        "erf", [](float x) { return bw::erf(x); }, [](long double x) { return std::erf(x); });
    against_long_double("sigmoid", [](float x) { return bw::sigmoid(x); }, reference_sigmoid);
}

void powers_of_two_are_exact() {
    for (int k = -149; k <= 127; ++k) {
        const float power = std::ldexp(1.0F, k);
        that(same_bits(bw::exp2(static_cast<float>(k)), power), "exp2 of an integer", k);
        that(same_bits(bw::log2(power), static_cast<float>(k)), "log2 of a power of two", k);
    }
}

void edges() {
    that(bw::exp2(128.0F) == kInf, "exp2(128)");
    that(bw::exp2(kInf) == kInf, "exp2(Inf)");
    that(same_bits(bw::exp2(-kInf), 0.0F), "exp2(-Inf)");
    that(bw::log2(0.0F) == -kInf && bw::log2(-0.0F) == -kInf, "log2(0)");
    that(bw::log2(kInf) == kInf && std::isnan(bw::log2(-1.0F)), "log2 at Inf and below 0");
    that(same_bits(bw::tanh(-0.0F), -0.0F) && same_bits(bw::erf(-0.0F), -0.0F), "odd at -0");
    that(bw::tanh(kInf) == 1.0F && bw::erf(-kInf) == -1.0F, "odd limits");
    that(same_bits(bw::sigmoid(-kInf), 0.0F) && bw::sigmoid(kInf) == 1.0F, "sigmoid's limits");
    that(bw::sigmoid(0.0F) == 0.5F, "sigmoid(0)");
}

// Softmax may rescale what it has summed so far: only the power of two changes.
void shifts_are_powers_of_two() {
    std::uint32_t state = 1;
    for (int i = 0; i < 100000; ++i) {
        state = state * 1664525U + 1013904223U;
        const float t = (bw::unit_interval(state) - 0.5F) * 60.0F;
        const auto shift = static_cast<float>(static_cast<int>(state % 41U) - 20);
        const float direct = bw::exp2_shifted(t, shift);
        const float rescaled = std::ldexp(bw::exp2_shifted(t, 0.0F), -static_cast<int>(shift));
        that(same_bits(direct, rescaled), "exp2_shifted", t, shift);
    }
    that(same_bits(bw::exp2_shifted(0x1p40F, 0x1p40F), 1.0F), "a huge exponent");
    that(std::isnan(bw::exp2_shifted(kInf, 0.0F)), "an infinite exponent");
    that(std::isnan(bw::exp2_shifted(-kInf, 0.0F)), "a negative infinite exponent");
}

void keys_keep_order() {
    const float ascending[] = {-kInf, -1.5F, -0x1p-149F, -0.0F, 0.0F, 0x1p-149F, 1.0F, kInf};
    for (int i = 0; i < 8; ++i) {
        that(same_bits(bw::from_order_key(bw::order_key(ascending[i])), ascending[i]), "key");
        for (int j = 0; j < 8; ++j) {
            const bool less = bw::order_key(ascending[i]) < bw::order_key(ascending[j]);
            that(less == (i < j), "key order", ascending[i], ascending[j]);
        }
    }
}

// Known answers of the Random123 distribution for philox4x32, 10 rounds.
void philox_known_answers() {
    struct Case {
        bw::PhiloxBlock counter;
        std::uint32_t key0;
        std::uint32_t key1;
        bw::PhiloxBlock expected;
    };
    constexpr std::uint32_t kOnes = 0xffffffffU;
    const Case cases[] = {
        {{{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}}},
        {{{kOnes, kOnes, kOnes, kOnes}},
         kOnes,
         kOnes,
         {{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}}},
        {{{0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}},
         0xa4093822U,
         0x299f31d0U,
         {{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}}},
    };
    for (const Case& c : cases) {
        const bw::PhiloxBlock block = bw::philox4x32_10(c.counter, c.key0, c.key1);
        for (int i = 0; i < 4; ++i) that(block.word[i] == c.expected.word[i], "Philox", i);
    }
    that(bw::unit_interval(0xffffffffU) < 1.0F && bw::unit_interval(0xffU) == 0.0F, "unit map");
}

}  // namespace

int main() {
    functions_are_faithful();
    powers_of_two_are_exact();
    edges();
    shifts_are_powers_of_two();
    keys_keep_order();
    philox_known_answers();
    return pinned_check::result();
}
