// The chain kernel, written once over an operations struct V of one instruction set.
//
// Everything here has internal linkage: each translation unit that includes this header
// compiles its own copy with its own -m flags.
#pragma once

#include <cstdint>

#include "mma_kernels.hpp"

namespace bitwitness {
namespace {

// The panel is four vectors of columns wide: one vector of byte exponents.
inline constexpr int kVectors = 4;

template <class V>
inline constexpr int kWidth = kVectors * V::lanes;

// How one chain kernel is specialised.
template <int kGroup, int kPartialSums, bool kMayOverflowInt, Rounding kRoundingMode>
struct Shape {
    static constexpr int group = kGroup;
    // 32-bit partial sums of the products: two where one could reach 2^31.
    static constexpr int sums = kPartialSums;
    // Whether the partial sums and c together can reach 2^31.
    static constexpr bool may_overflow = kMayOverflowInt;
    static constexpr Rounding rounding = kRoundingMode;
};

// Where a lane's terms leave 32 bits, adds them again in 64 and rounds toward zero to f32.
// Their magnitude stays below 2^32 (see chain_of), so the low 8 bits are what is dropped.
template <class V>
[[gnu::noinline, gnu::cold]] void repair_overflow(const std::int32_t* const (&terms)[3],
                                                  float* rounded) {
    for (int lane = 0; lane < kWidth<V>; ++lane) {
        std::int64_t total = 0;
        for (const std::int32_t* term : terms) total += term[lane];
        const std::int64_t magnitude = total < 0 ? -total : total;
        if (magnitude < (std::int64_t{1} << 31)) continue;
        const auto kept = static_cast<double>(magnitude & ~std::int64_t{0xff});
        rounded[lane] = static_cast<float>(total < 0 ? -kept : kept);
    }
}

// The sum of a step's terms, lane by lane.
template <class V, int kPartialSums, bool kMayOverflow>
struct Totals {
    typename V::Ints partial[kPartialSums][kVectors];  // of the products
    typename V::Ints c[kVectors];
    typename V::Ints total[kVectors];
    typename V::Ints wrapped;  // negative where a total left 32 bits

    [[gnu::always_inline]] void add_up() {
        wrapped = V::fill(0);
        for (int v = 0; v < kVectors; ++v) {
            total[v] = partial[0][v];
            if constexpr (kPartialSums == 2) add_checked(v, partial[1][v]);
            add_checked(v, c[v]);
        }
    }
    [[gnu::always_inline]] void add_checked(int v, typename V::Ints term) {
        const auto next = V::add(total[v], term);
        if constexpr (kMayOverflow) {
            const auto signs = V::bit_and(V::bit_xor(total[v], next), V::bit_xor(term, next));
            wrapped = V::bit_or(wrapped, signs);
        }
        total[v] = next;
    }
    // Rounded as MXCSR says, which is toward zero.
    [[gnu::always_inline]] void round(typename V::Floats (&rounded)[kVectors]) const {
        constexpr int width = kWidth<V>;
        for (int v = 0; v < kVectors; ++v) rounded[v] = V::convert(total[v]);
        if constexpr (kMayOverflow) {
            if (V::any_negative(wrapped)) [[unlikely]] {
                alignas(64) std::int32_t terms[3][width] = {};
                alignas(64) float repaired[width];
                for (int v = 0; v < kVectors; ++v) {
                    const int at = v * V::lanes;
                    V::store_ints(terms[0] + at, partial[0][v]);
                    if constexpr (kPartialSums == 2) V::store_ints(terms[1] + at, partial[1][v]);
                    V::store_ints(terms[2] + at, c[v]);
                    V::store(repaired + at, rounded[v]);
                }
                repair_overflow<V>({terms[0], terms[1], terms[2]}, repaired);
                for (int v = 0; v < kVectors; ++v) rounded[v] = V::load(repaired + v * V::lanes);
            }
        }
    }
};

// The lanes of one row within a step, between finding emax and rounding.
template <class V>
struct Lanes {
    typename V::Ints field[kVectors];  // of emax, biased and in place
    typename V::Ints shift[kVectors];  // 2^(F - emax), as an addition to exponent fields
};

template <class V, class S>
[[gnu::always_inline]] inline Lanes<V> align(const LeftEntry* left, const std::uint8_t* exponents,
                                             const ChainCall& call,
                                             const typename V::Floats (&acc)[kVectors]) {
    using Ints = typename V::Ints;
    constexpr int width = kWidth<V>;
    constexpr bool half = S::rounding == Rounding::rne_f16;
    const int floor = half ? call.half.zero_field : call.fraction_bits + 1;
    auto top = V::fill_bytes(static_cast<std::uint8_t>(floor));
    for (int i = 0; i < S::group; ++i) {
        const auto e = V::subtract_saturating(V::broadcast_bytes(left[i].exponents),
                                              V::load_bytes(exponents + i * width));
        top = V::max_bytes(top, e);
    }
    alignas(64) std::uint8_t fields[width];
    V::store_bytes(fields, top);
    const Ints exponent_mask = V::fill(0x7f800000);
    const Ints shift_base = V::fill((call.fraction_bits + 127) << 23);
    Lanes<V> lanes;
    for (int v = 0; v < kVectors; ++v) {
        Ints own = V::bit_and(V::as_ints(acc[v]), exponent_mask);
        if constexpr (half) {  // a nonzero accumulator counts as at least 2^-14
            const Ints minimum = V::fill(call.half.minimum_field << 23);
            own = V::max(own, V::bit_and(V::is_positive(own), minimum));
        }
        lanes.field[v] = V::max(V::template shift_left<23>(V::widen(fields + v * V::lanes)), own);
        lanes.shift[v] = V::subtract(shift_base, lanes.field[v]);
    }
    return lanes;
}

// sum[v] += each product of entries [first, last), truncated to the common grid.
template <class V, int kFirst, int kLast>
[[gnu::always_inline]] inline void add_products(const LeftEntry* left, const float* right,
                                                const Lanes<V>& lanes,
                                                typename V::Ints (&sum)[kVectors]) {
    constexpr int width = kWidth<V>;
    for (auto& s : sum) s = V::fill(0);
#pragma GCC unroll 2
    for (int i = kFirst; i < kLast; ++i) {
        const auto a = V::broadcast(&left[i].value);
        for (int v = 0; v < kVectors; ++v) {
            const auto product = V::multiply(a, V::load(right + i * width + v * V::lanes));
            const auto moved = V::add(V::as_ints(product), lanes.shift[v]);
            sum[v] = V::add(sum[v], V::truncate(V::as_floats(moved)));
        }
    }
}

// Round to odd at 24 bits, then to nearest even at 11: one rounding, because 24 >= 11 + 2.
template <class V>
[[gnu::always_inline]] inline typename V::Floats round_to_half(typename V::Ints total,
                                                               typename V::Floats unit) {
    const auto truncated = V::convert(total);
    const auto exact = V::equal(V::truncate(truncated), total);
    const auto sticky = V::bit_and_not(exact, V::fill(1));
    const auto odd = V::as_floats(V::bit_or(V::as_ints(truncated), sticky));
    return V::nearest_half(V::multiply(odd, unit));
}

// One step on one row of accumulators. False, with an f16 accumulator only: it is infinite,
// or the sum left 32 bits.
template <class V, class S>
[[gnu::always_inline]] inline bool step(const LeftEntry* left, const float* right,
                                        const std::uint8_t* exponents, const ChainCall& call,
                                        typename V::Floats (&acc)[kVectors]) {
    using Floats = typename V::Floats;
    constexpr bool half = S::rounding == Rounding::rne_f16;
    const Lanes<V> lanes = align<V, S>(left, exponents, call, acc);
    Totals<V, S::sums, S::may_overflow> totals;
    add_products<V, 0, S::group / S::sums>(left, right, lanes, totals.partial[0]);
    if constexpr (S::sums == 2) {
        add_products<V, S::group / 2, S::group>(left, right, lanes, totals.partial[1]);
    }
    for (int v = 0; v < kVectors; ++v) {
        totals.c[v] = V::truncate(V::as_floats(V::add(V::as_ints(acc[v]), lanes.shift[v])));
    }
    totals.add_up();
    const int unscale = half ? call.half.half_scale : 0;
    const auto unit_base = V::fill((call.fraction_bits + unscale) * (1 << 23));
    Floats unit[kVectors];
    for (int v = 0; v < kVectors; ++v) {
        unit[v] = V::as_floats(V::subtract(lanes.field[v], unit_base));
    }
    if constexpr (half) {
        auto unusable = totals.wrapped;
        const auto infinite = V::fill(0x7f800000);
        const auto scale = V::as_floats(V::fill((unscale + 127) << 23));
        for (int v = 0; v < kVectors; ++v) {
            const Floats rounded = round_to_half<V>(totals.total[v], unit[v]);
            const auto exponent = V::bit_and(V::as_ints(rounded), infinite);
            unusable = V::bit_or(unusable, V::equal(exponent, infinite));
            acc[v] = V::multiply(rounded, scale);
        }
        return !V::any_negative(unusable);
    } else {
        Floats rounded[kVectors];
        totals.round(rounded);
        for (int v = 0; v < kVectors; ++v) acc[v] = V::multiply(rounded[v], unit[v]);
        if constexpr (S::rounding == Rounding::rz_e8m13) {
            for (auto& x : acc) x = V::as_floats(V::bit_and(V::as_ints(x), V::fill(~0x3ff)));
        }
        return true;
    }
}

template <class V, class S>
[[gnu::noinline]] bool chain_rows(const ChainCall& call) {
    constexpr int width = kWidth<V>;
    bool finite = true;
    for (std::int64_t row = 0; row < call.rows; ++row) {
        const LeftEntry* left = call.left + row * call.left_stride;
        const float* right = call.right_values;
        const std::uint8_t* exponents = call.right_exponents;
        float* out = call.accumulators + row * width;
        typename V::Floats acc[kVectors];
        for (int v = 0; v < kVectors; ++v) acc[v] = V::load(out + v * V::lanes);
        for (std::int64_t g = 0; g < call.groups; ++g) {
            finite &= step<V, S>(left, right, exponents, call, acc);
            left += S::group;
            right += S::group * width;
            exponents += S::group * width;
        }
        for (int v = 0; v < kVectors; ++v) V::store(out + v * V::lanes, acc[v]);
    }
    return finite;
}

// A product is at most (2^(f+1) - 1)^2 / 2^2f < 4 units of 2^emax, c less than 2.
//
// One sum: L * 2^(F+2) <= 2^31, and because products stay below 4 (1 - 2^-11)^2 (f16, tf32) or
// less, even F = 25 and L = 16 sum to less than 2^31; adding c may reach it, which is checked.
// Two sums: F = 25 and L = 32 occur with FP8 only; 16 products of at most 1.875^2 * 2^25 fit.
// In both cases all terms together stay below 2^32: 32 * 1.875^2 + 2 < 128.
template <class V, int L>
bool chain_of(const ChainCall& call) {
    const std::int64_t products = std::int64_t{L} << (call.fraction_bits + 2);
    const std::int64_t c = std::int64_t{1} << (call.fraction_bits + 1);
    constexpr int sums = L == 32 ? 2 : 1;
    const bool fits = products + c <= std::int64_t{0x7fffffff};
    switch (call.rounding) {
        case Rounding::rz_e8m13:
            return chain_rows<V, Shape<L, 1, false, Rounding::rz_e8m13>>(call);
        case Rounding::rne_f16:
            if (fits) return chain_rows<V, Shape<L, 1, false, Rounding::rne_f16>>(call);
            return chain_rows<V, Shape<L, sums, true, Rounding::rne_f16>>(call);
        case Rounding::rz_f32:
            break;
    }
    if (fits) return chain_rows<V, Shape<L, 1, false, Rounding::rz_f32>>(call);
    return chain_rows<V, Shape<L, sums, true, Rounding::rz_f32>>(call);
}

template <class V>
bool chain(const ChainCall& call) {
    switch (call.group) {
        case 4:
            return chain_of<V, 4>(call);
        case 8:
            return chain_of<V, 8>(call);
        case 16:
            return chain_of<V, 16>(call);
        default:
            return chain_of<V, 32>(call);
    }
}

}  // namespace
}  // namespace bitwitness
