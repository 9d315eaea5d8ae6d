// The chain kernel with exponents apart from significands: see WideCall. Internal linkage, as
// in mma_kernel_body.hpp.
#pragma once

#include <cstdint>

#include "mma_kernel_body.hpp"

namespace bitwitness {
namespace {

// How WideCall interleaves exponents: where column `column` of a group of 2 * lanes goes.
template <class V>
constexpr int word_position(int column) {
    const int vector = column / V::lanes;
    const int within = column % V::lanes;
    return within / 4 * 8 + vector * 4 + within % 4;
}

// One step with exponents apart from significands; see WideCall.
template <class V, int kVectors, int L, Overflow kOverflow>
[[gnu::always_inline]] inline void wide_step(const LeftEntry* left, const float* right,
                                             const std::int16_t* exponents, const WideCall& call,
                                             typename V::Floats (&acc)[kVectors]) {
    using Floats = typename V::Floats;
    using Ints = typename V::Ints;
    constexpr int width = kWidth<V, kVectors>;
    constexpr int pairs = kVectors / 2;
    const auto load_words = [&](int i, int pair) {
        return V::load_words(exponents + i * width + pair * 2 * V::lanes);
    };
    Ints top[pairs];
    for (auto& x : top) x = V::fill_words(static_cast<std::int16_t>(call.zero_exponent * 128));
    for (int i = 0; i < L; ++i) {
        const Ints own = V::broadcast_bytes(left[i].exponents);
        for (int p = 0; p < pairs; ++p) {
            top[p] = V::max_words(top[p], V::add_words(own, load_words(i, p)));
        }
    }
    const Ints one = V::fill(127 << 23);
    Ints emax[kVectors];  // times 2^23
    for (int v = 0; v < kVectors; ++v) {
        const Ints magnitude = V::bit_and(V::as_ints(acc[v]), V::fill(0x7fffffff));
        const Ints field = V::max(V::bit_and(magnitude, V::fill(0x7f800000)), V::fill(1 << 23));
        const Ints nonzero = V::is_positive(magnitude);
        const Ints own = V::bit_or(V::bit_and(V::subtract(field, one), nonzero),
                                   V::bit_and_not(nonzero, V::fill(-0x7fffffff - 1)));
        const Ints products = v % 2 == 0 ? V::unpack_low(top[v / 2]) : V::unpack_high(top[v / 2]);
        emax[v] = V::max(products, own);
    }
    Ints emax_words[pairs];
    for (int p = 0; p < pairs; ++p) emax_words[p] = V::pack_high(emax[2 * p], emax[2 * p + 1]);

    Totals<V, kVectors, 1, kOverflow> totals;
    for (auto& s : totals.partial[0]) s = V::fill(0);
    // A product below 4 that lies 64 binades under emax truncates to 0 wherever it lies.
    const Ints lowest = V::fill_words(-64 * 128);
    const Ints bias = V::fill_words(static_cast<std::int16_t>((call.fraction_bits + 127) * 128));
    for (int i = 0; i < L; ++i) {
        const Floats a = V::broadcast(&left[i].value);
        const Ints own = V::broadcast_bytes(left[i].exponents);
        for (int p = 0; p < pairs; ++p) {
            const Ints below =
                V::subtract_words(V::add_words(own, load_words(i, p)), emax_words[p]);
            const Ints scale = V::add_words(V::max_words(below, lowest), bias);
            const Floats scales[2] = {V::as_floats(V::unpack_low(scale)),
                                      V::as_floats(V::unpack_high(scale))};
            for (int h = 0; h < 2; ++h) {
                const int v = 2 * p + h;
                const Floats product = V::multiply(a, V::load(right + i * width + v * V::lanes));
                const Ints term = V::truncate(V::multiply(product, scales[h]));
                totals.partial[0][v] = V::add(totals.partial[0][v], term);
            }
        }
    }
    // 2^(F - emax) does not fit an f32: two factors. Both roundings are toward zero on nested
    // grids, which makes one.
    Ints first[kVectors], second[kVectors];
    for (int v = 0; v < kVectors; ++v) {
        const Ints shift = V::subtract(V::fill(call.fraction_bits << 23), emax[v]);
        first[v] = V::template shift_left<23>(V::template shift_right<24>(shift));
        second[v] = V::subtract(shift, first[v]);
        const Floats halfway = V::multiply(acc[v], V::as_floats(V::add(one, first[v])));
        totals.c[v] = V::truncate(V::multiply(halfway, V::as_floats(V::add(one, second[v]))));
    }
    Watch<V> watch;
    totals.add_up(watch);
    totals.round(acc, watch);
    for (int v = 0; v < kVectors; ++v) {
        const Floats halfway = V::multiply(acc[v], V::as_floats(V::subtract(one, first[v])));
        acc[v] = V::multiply(halfway, V::as_floats(V::subtract(one, second[v])));
    }
}

template <class V, int kVectors, int L, Overflow kOverflow>
[[gnu::noinline]] void wide_rows(const WideCall& call) {
    constexpr int width = kWidth<V, kVectors>;
    for (std::int64_t row = 0; row < call.rows; ++row) {
        float* out = call.accumulators + row * width;
        typename V::Floats acc[kVectors];
        for (int v = 0; v < kVectors; ++v) acc[v] = V::load(out + v * V::lanes);
        for (std::int64_t g = 0; g < call.groups; ++g) {
            wide_step<V, kVectors, L, kOverflow>(call.left + row * call.left_stride + g * L,
                                                 call.right_values + g * L * width,
                                                 call.right_exponents + g * L * width, call, acc);
        }
        for (int v = 0; v < kVectors; ++v) V::store(out + v * V::lanes, acc[v]);
    }
}

template <class V, int kVectors>
void wide_chain(const WideCall& call) {
    const bool may_overflow = call.group == 16 && call.fraction_bits == 25;
    if (may_overflow) return wide_rows<V, kVectors, 16, Overflow::repair>(call);
    if (call.group == 16) return wide_rows<V, kVectors, 16, Overflow::none>(call);
    if (call.group == 8) return wide_rows<V, kVectors, 8, Overflow::none>(call);
    return wide_rows<V, kVectors, 4, Overflow::none>(call);
}

}  // namespace
}  // namespace bitwitness
