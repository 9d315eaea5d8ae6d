// The chain kernel, written once over an operations struct V of one instruction set.
//
// Everything here has internal linkage: each translation unit that includes this header
// compiles its own copy with its own -m flags.
#pragma once

#include <cstdint>

#include "mma_kernels.hpp"
#include "mma_totals.hpp"

namespace bitwitness {
namespace {

// Where one step happens: the entries of a row and of a panel, and the row's accumulators.
struct Place {
    const LeftEntry* left;
    const float* right;
    const std::uint32_t* exponents;
    float* accumulators;
};

// Products whose exponents share a vector of bytes.
template <int kVectors>
inline constexpr int kDepthOfBytes = 4 / kVectors;

// top = max(top, exponents of the products from `i` on that share a vector).
template <class V, int kVectors>
[[gnu::always_inline]] inline typename V::Bytes raise(typename V::Bytes top, const Place& place,
                                                      int i) {
    const auto right = V::load_bytes(place.exponents + i * kWidth<V, kVectors> / 4);
    return V::max_bytes(top, V::add_bytes(V::broadcast_bytes(place.left[i].exponents), right));
}

// What all steps of a call share, as vectors.
template <class V, class S>
struct Constants {
    static constexpr bool half = S::rounding == Rounding::rne_f16;
    typename V::Bytes lowest;  // byte code of the least emax
    typename V::Bytes pre;     // from byte codes to fields
    typename V::Ints shift_base;
    typename V::Ints unit_base;
    typename V::Ints minimum;  // for f16 accumulators: 2^-14's field
    typename V::Floats scale;  // and their scale

    explicit Constants(const ChainCall& call)
        : lowest(bytes((half ? call.half.zero_field : call.fraction_bits + 1) - call.pre)),
          pre(bytes(call.pre)),
          shift_base(V::fill((call.fraction_bits + 127) * kField)),
          unit_base(V::fill((half ? 127 - call.half.half_scale : 127) * kField)),
          minimum(V::fill(call.half.minimum_field * kField)),
          scale(V::as_floats(V::fill((call.half.half_scale + 127) * kField))) {}

  private:
    static constexpr std::int32_t kField = 1 << 23;
    static typename V::Bytes bytes(int code) {
        return V::fill_bytes(static_cast<std::uint8_t>(code));
    }
};

// 2^(F - emax) of each lane as an addition to exponent fields, from the largest code of the
// products and the accumulators.
template <class V, int kVectors>
struct Shifts {
    typename V::Ints shift[kVectors];
};

template <class V, int kVectors, class S>
[[gnu::always_inline]] inline Shifts<V, kVectors> align(typename V::Bytes top,
                                                        const float* accumulators,
                                                        const Constants<V, S>& constants) {
    using Ints = typename V::Ints;
    const Ints exponent_mask = V::fill(0x7f800000);
    if constexpr (kVectors == 2) top = V::max_bytes(top, V::template shift_right<16>(top));
    top = V::add_bytes(top, constants.pre);
    Shifts<V, kVectors> out;
    for (int v = 0; v < kVectors; ++v) {
        Ints own = V::bit_and(V::as_ints(V::load(accumulators + v * V::lanes)), exponent_mask);
        if constexpr (Constants<V, S>::half) {  // a nonzero accumulator counts as at least 2^-14
            own = V::max(own, V::bit_and(V::is_positive(own), constants.minimum));
        }
        const Ints field = V::bit_and(V::byte_to_exponent(top, v), exponent_mask);
        out.shift[v] = V::subtract(constants.shift_base, V::max(field, own));
    }
    return out;
}

// sum[v] += each product of entries [first, last), truncated to the common grid; meanwhile the
// exponents of the next step.
template <class V, int kVectors, int kFirst, int kLast>
[[gnu::always_inline]] inline void add_products(const Place& here,
                                                const Shifts<V, kVectors>& shifts,
                                                typename V::Ints (&sum)[kVectors],
                                                const Place& next, typename V::Bytes& top) {
    constexpr int width = kWidth<V, kVectors>;
    for (auto& s : sum) s = V::fill(0);
#pragma GCC unroll 32
    for (int i = kFirst; i < kLast; ++i) {
        const auto a = V::broadcast(&here.left[i].value);
        typename V::Ints terms[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            const auto b = V::load(here.right + i * width + v * V::lanes);
            terms[v] = V::as_ints(V::multiply(a, b));
        }
        for (int v = 0; v < kVectors; ++v) terms[v] = V::add(terms[v], shifts.shift[v]);
        for (int v = 0; v < kVectors; ++v) terms[v] = V::truncate(V::as_floats(terms[v]));
        for (int v = 0; v < kVectors; ++v) {
            sum[v] = V::add(sum[v], terms[v]);
            V::settle(sum[v]);
        }
        if (i % kDepthOfBytes<kVectors> == 0) top = raise<V, kVectors>(top, next, i);
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

// The rest of a step: c's term, the sum and its rounding.
template <class V, int kVectors, class S>
[[gnu::always_inline]] inline void finish(Totals<V, kVectors, S::sums, S::overflow>& totals,
                                          const Shifts<V, kVectors>& shifts, float* accumulators,
                                          const Constants<V, S>& constants, Watch<V>& watch) {
    using Floats = typename V::Floats;
    for (int v = 0; v < kVectors; ++v) {
        const auto c = V::as_ints(V::load(accumulators + v * V::lanes));
        totals.c[v] = V::truncate(V::as_floats(V::add(c, shifts.shift[v])));
    }
    totals.add_up(watch);
    Floats unit[kVectors];  // 2^(emax - F), less the scale of f16 accumulators
    for (int v = 0; v < kVectors; ++v) {
        unit[v] = V::as_floats(V::subtract(constants.unit_base, shifts.shift[v]));
    }
    Floats rounded[kVectors];
    if constexpr (S::rounding == Rounding::rne_f16) {
        const auto infinite = V::fill(0x7f800000);
        for (int v = 0; v < kVectors; ++v) {
            rounded[v] = round_to_half<V>(totals.total[v], unit[v]);
            const auto exponent = V::bit_and(V::as_ints(rounded[v]), infinite);
            watch.flags = V::bit_or(watch.flags, V::equal(exponent, infinite));
            rounded[v] = V::multiply(rounded[v], constants.scale);
        }
    } else {
        totals.round(rounded, watch);
        for (int v = 0; v < kVectors; ++v) rounded[v] = V::multiply(rounded[v], unit[v]);
    }
    for (int v = 0; v < kVectors; ++v) {
        if constexpr (S::rounding == Rounding::rz_e8m13) {
            rounded[v] = V::as_floats(V::bit_and(V::as_ints(rounded[v]), V::fill(~0x3ff)));
        }
        V::store(accumulators + v * V::lanes, rounded[v]);
    }
}

// Steps in software-pipelined order: while the products of one step are added, the exponents of the
// next one are compared. With two rows in turn, no step waits for the one before.
template <class V, int kVectors, class S>
class Pipeline {
  public:
    [[gnu::always_inline]] Pipeline(const ChainCall& call, const Place& first) : constants_(call) {
        auto top = constants_.lowest;
        for (int i = 0; i < S::group; i += kDepthOfBytes<kVectors>) {
            top = raise<V, kVectors>(top, first, i);
        }
        shifts_ = align<V, kVectors, S>(top, first.accumulators, constants_);
    }

    // `here` was `next` in the call before.
    [[gnu::always_inline]] void step(const Place& here, const Place& next) {
        Totals<V, kVectors, S::sums, S::overflow> totals;
        constexpr int middle = S::group / S::sums;
        auto top = constants_.lowest;
        add_products<V, kVectors, 0, middle>(here, shifts_, totals.partial[0], next, top);
        if constexpr (S::sums == 2) {
            add_products<V, kVectors, middle, S::group>(here, shifts_, totals.partial[1], next,
                                                        top);
        }
        finish<V, kVectors, S>(totals, shifts_, here.accumulators, constants_, watch_);
        shifts_ = align<V, kVectors, S>(top, next.accumulators, constants_);
    }
    bool trouble() const { return watch_.trouble(); }

  private:
    const Constants<V, S> constants_;
    Shifts<V, kVectors> shifts_;
    Watch<V> watch_;
};

// `rows` rows, kRows of them in turn: a whole number of times. Whether there was trouble.
template <class V, int kVectors, class S, int kRows>
[[gnu::noinline]] bool chain_rows(const ChainCall& call) {
    constexpr int width = kWidth<V, kVectors>;
    const auto place = [&](std::int64_t row, std::int64_t group) {
        const std::int64_t k = group * S::group;
        return Place{call.left + row * call.left_stride + k, call.right_values + k * width,
                     call.right_exponents + k * width / 4, call.accumulators + row * width};
    };
    Pipeline<V, kVectors, S> pipeline(call, place(0, 0));
    for (std::int64_t row = 0; row < call.rows; row += kRows) {
        const std::int64_t following = row + kRows < call.rows ? row + kRows : row;
        for (std::int64_t g = 0; g < call.groups; ++g) {
            const Place here = place(row, g);
            const Place next = g + 1 < call.groups ? place(row, g + 1) : place(following, 0);
            if constexpr (kRows == 1) {
                pipeline.step(here, next);
            } else {
                const Place other = place(row + 1, g);
                pipeline.step(here, other);
                pipeline.step(other, next);
            }
        }
    }
    return pipeline.trouble();
}

// A call for `rows` of the rows from `first` on.
[[gnu::always_inline]] inline ChainCall part_of(const ChainCall& call, std::int64_t first,
                                                std::int64_t rows, int width) {
    ChainCall part = call;
    part.left += first * call.left_stride;
    part.accumulators += first * width;
    part.rows = rows;
    return part;
}

template <class V, int kVectors, class S>
[[gnu::always_inline]] inline bool chain_all(const ChainCall& call) {
    constexpr int width = kWidth<V, kVectors>;
    const std::int64_t odd = call.rows % 2;
    const std::int64_t even = call.rows - odd;
    bool trouble = false;
    if (even > 0) trouble |= chain_rows<V, kVectors, S, 2>(part_of(call, 0, even, width));
    if (odd > 0) trouble |= chain_rows<V, kVectors, S, 1>(part_of(call, even, 1, width));
    return trouble;
}

// Totals hardly ever leave 32 bits: some rows at a time as if they could not, and once more where
// they may have.
template <class V, int kVectors, int L, int kPartialSums>
[[gnu::noinline]] void chain_watched(const ChainCall& call) {
    constexpr auto mode = Rounding::rz_f32;
    constexpr int width = kWidth<V, kVectors>;
    constexpr std::int64_t block = 16;
    alignas(64) float saved[block * width];
    for (std::int64_t row = 0; row < call.rows; row += block) {
        const std::int64_t rows = call.rows - row < block ? call.rows - row : block;
        const ChainCall part = part_of(call, row, rows, width);
        for (std::int64_t i = 0; i < rows * width; ++i) saved[i] = part.accumulators[i];
        if (!chain_all<V, kVectors, Shape<L, kPartialSums, Overflow::watch, mode>>(part)) continue;
        for (std::int64_t i = 0; i < rows * width; ++i) part.accumulators[i] = saved[i];
        chain_rows<V, kVectors, Shape<L, kPartialSums, Overflow::repair, mode>, 1>(part);
    }
}

// A product is at most (2^(f+1) - 1)^2 / 2^2f < 4 units of 2^emax, c less than 2.
//
// One sum: L * 2^(F+2) <= 2^31, and because products stay below 4 (1 - 2^-11)^2 (f16, tf32) or
// less, even F = 25 and L = 16 sum to less than 2^31; adding c may reach it, which is checked.
// Two sums: F = 25 and L = 32 occur with FP8 only; 16 products of at most 1.875^2 * 2^25 fit.
// In both cases all terms together stay below 2^32: 32 * 1.875^2 + 2 < 128.
template <class V, int kVectors, int L>
bool chain_of(const ChainCall& call) {
    constexpr auto e8m13 = Rounding::rz_e8m13;
    constexpr auto f16 = Rounding::rne_f16;
    constexpr auto f32 = Rounding::rz_f32;
    if (call.rounding == e8m13) {
        chain_all<V, kVectors, Shape<L, 1, Overflow::none, e8m13>>(call);
        return true;
    }
    if constexpr (L >= 16) {
        const std::int64_t products = std::int64_t{L} << (call.fraction_bits + 2);
        const std::int64_t c = std::int64_t{1} << (call.fraction_bits + 1);
        if (products + c > std::int64_t{0x7fffffff}) {
            constexpr int sums = L == 32 ? 2 : 1;
            if (call.rounding == f16) {
                return !chain_all<V, kVectors, Shape<L, sums, Overflow::watch, f16>>(call);
            }
            chain_watched<V, kVectors, L, sums>(call);
            return true;
        }
    }
    if (call.rounding == f16) {
        return !chain_all<V, kVectors, Shape<L, 1, Overflow::none, f16>>(call);
    }
    chain_all<V, kVectors, Shape<L, 1, Overflow::none, f32>>(call);
    return true;
}

template <class V, int kVectors>
bool chain(const ChainCall& call) {
    switch (call.group) {
        case 4:
            return chain_of<V, kVectors, 4>(call);
        case 8:
            return chain_of<V, kVectors, 8>(call);
        case 16:
            return chain_of<V, kVectors, 16>(call);
        default:
            return chain_of<V, kVectors, 32>(call);
    }
}

}  // namespace
}  // namespace bitwitness
