// The sum of a step's terms and its rounding, over an operations struct V. Internal linkage, as in
// mma_kernel_body.hpp.
#pragma once

#include <cstdint>

#include "mma_kernels.hpp"

namespace bitwitness {
namespace {

// A panel is kVectors vectors of columns wide: 4, or 2 where the product is narrow.
template <class V, int kVectors>
inline constexpr int kWidth = kVectors * V::lanes;

// Whether the partial sums and c together can reach 2^31, and what is done about it.
enum class Overflow : std::uint8_t {
    none,    // they cannot
    watch,   // whether any of a call's totals may have is found out at the end
    repair,  // looked for in every step, and put right
};

// How one chain kernel is specialised.
template <int kGroup, int kPartialSums, Overflow kOverflow, Rounding kRoundingMode>
struct Shape {
    static constexpr int group = kGroup;
    // 32-bit partial sums of the products: two where one could reach 2^31.
    static constexpr int sums = kPartialSums;
    static constexpr Overflow overflow = kOverflow;
    static constexpr Rounding rounding = kRoundingMode;
};

// Where a lane's terms leave 32 bits, adds them again in 64 and rounds toward zero to f32.
// Their magnitude stays below 2^32 (see chain_of), so the low 8 bits are what is dropped.
template <int kColumns>
[[gnu::noinline, gnu::cold]] void repair_overflow(const std::int32_t* const (&terms)[3],
                                                  float* rounded) {
    for (int lane = 0; lane < kColumns; ++lane) {
        std::int64_t total = 0;
        for (const std::int32_t* term : terms) total += term[lane];
        const std::int64_t magnitude = total < 0 ? -total : total;
        if (magnitude < (std::int64_t{1} << 31)) continue;
        const auto kept = static_cast<double>(magnitude & ~std::int64_t{0xff});
        rounded[lane] = static_cast<float>(total < 0 ? -kept : kept);
    }
}

// What a chain notices and tells at its end.
template <class V>
struct Watch {
    typename V::Ints most = V::fill(0);   // of the totals' magnitudes
    typename V::Ints flags = V::fill(0);  // negative: a sum left 32 bits, or the accumulator f16

    // |c| < 2^26, so that a total which c made wrap is within 2^26 of the ends; so may others be,
    // which only costs time.
    [[gnu::always_inline]] bool trouble() const {
        const auto room = V::fill(1 << (kMaxFractionBits + 1));
        return V::any_negative(V::bit_or(flags, V::add(most, room)));
    }
};

// The sum of a step's terms, lane by lane.
template <class V, int kVectors, int kPartialSums, Overflow kOverflow>
struct Totals {
    typename V::Ints partial[kPartialSums][kVectors];  // of the products
    typename V::Ints c[kVectors];
    typename V::Ints total[kVectors];

    [[gnu::always_inline]] void add_up(Watch<V>& watch) {
        for (int v = 0; v < kVectors; ++v) {
            total[v] = partial[0][v];
            if constexpr (kPartialSums == 2) {
                total[v] = V::add(total[v], partial[1][v]);
                const auto signs = V::bit_and(V::bit_xor(total[v], partial[0][v]),
                                              V::bit_xor(total[v], partial[1][v]));
                if constexpr (kOverflow != Overflow::none) {
                    watch.flags = V::bit_or(watch.flags, signs);
                }
            }
            total[v] = V::add(total[v], c[v]);
            if constexpr (kOverflow != Overflow::none) {
                watch.most = V::max_unsigned(watch.most, V::absolute(total[v]));
            }
        }
    }
    // Rounded as MXCSR says, which is toward zero.
    [[gnu::always_inline]] void round(typename V::Floats (&rounded)[kVectors],
                                      Watch<V>& watch) const {
        constexpr int width = kWidth<V, kVectors>;
        for (int v = 0; v < kVectors; ++v) rounded[v] = V::convert(total[v]);
        if constexpr (kOverflow == Overflow::repair) {
            if (!watch.trouble()) return;
            watch = {};
            alignas(64) std::int32_t terms[3][width] = {};
            alignas(64) float repaired[width];
            for (int v = 0; v < kVectors; ++v) {
                const int at = v * V::lanes;
                V::store_ints(terms[0] + at, partial[0][v]);
                if constexpr (kPartialSums == 2) V::store_ints(terms[1] + at, partial[1][v]);
                V::store_ints(terms[2] + at, c[v]);
                V::store(repaired + at, rounded[v]);
            }
            repair_overflow<width>({terms[0], terms[1], terms[2]}, repaired);
            for (int v = 0; v < kVectors; ++v) rounded[v] = V::load(repaired + v * V::lanes);
        }
    }
};

}  // namespace
}  // namespace bitwitness
