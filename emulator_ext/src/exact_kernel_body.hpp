// The exact profile's vector code, written once for every instruction set.
//
// V supplies vectors of `lanes` f32 or int32 and `strip_rows`, the rows of a register tile:
// three integer sums a row, three vectors of B and a few operands must fit the registers.
#pragma once

#include <array>
#include <cstring>
#include <utility>

#include "exact_kernels.hpp"

namespace bitwitness::exact {
namespace {

// sum + a . b. The empty asm ties old and new sum to one register: without it GCC carries
// copies of them from one pair to the next and spills half.
template <class V>
[[gnu::always_inline]] inline typename V::Ints add_dot(typename V::Ints sum, typename V::Ints a,
                                                       typename V::Ints b) {
    sum = V::add_dot(sum, a, b);
    if constexpr (V::in_registers) asm("" : "+v"(sum));
    return sum;
}

// sums[o] += the products of digits i of the row and o - i of the columns, for one pair of k.
template <class V>
[[gnu::always_inline]] inline void accumulate(const std::int32_t* row,
                                              const typename V::Ints (&columns)[kDigits],
                                              typename V::Ints (&sums)[kDigits]) {
    const typename V::Ints a0 = V::broadcast(row);
    sums[0] = add_dot<V>(sums[0], a0, columns[0]);
    sums[1] = add_dot<V>(sums[1], a0, columns[1]);
    sums[2] = add_dot<V>(sums[2], a0, columns[2]);
    const typename V::Ints a1 = V::broadcast(row + kPairs);
    sums[1] = add_dot<V>(sums[1], a1, columns[0]);
    sums[2] = add_dot<V>(sums[2], a1, columns[1]);
    const typename V::Ints a2 = V::broadcast(row + 2 * kPairs);
    sums[2] = add_dot<V>(sums[2], a2, columns[0]);
}

// The pinned chain of one block, o = 2, 1, 0, over sums [o][lane]. `exponents` holds eA + eB.
template <class V>
[[gnu::always_inline]] inline typename V::Floats combine_common(typename V::Floats c,
                                                                const std::int32_t* sums,
                                                                typename V::Ints exponents) {
    const auto biased = V::add(exponents, V::fill(unit_of(0, 0, 2) + 127));
    typename V::Ints scale = V::template shift_left<23>(biased);
    const typename V::Ints digit = V::fill(kDigitBits << 23);
    for (int o = 2; o >= 0; --o) {
        c = V::fma(V::convert(V::load_ints(sums + o * V::lanes)), V::as_floats(scale), c);
        scale = V::add(scale, digit);
    }
    return c;
}

// The same where a unit is no normal f32 number: see combine in exact_digits.hpp.
template <class V>
[[gnu::always_inline]] inline typename V::Floats combine_any(typename V::Floats c,
                                                             const std::int32_t* sums,
                                                             typename V::Ints exponents) {
    const auto power = [](typename V::Ints exponent) {
        return V::as_floats(V::template shift_left<23>(V::add(exponent, V::fill(127))));
    };
    for (int o = 2; o >= 0; --o) {
        const auto unit = V::add(exponents, V::fill(unit_of(0, 0, o)));
        const auto s = V::min(V::max(unit, V::fill(kLeastUnit)), V::fill(kGreatestUnit));
        const auto first = V::min(V::template shift_right<1>(s), V::fill(kGreatestFirst));
        const auto scaled =
            V::multiply(V::convert(V::load_ints(sums + o * V::lanes)), power(first));
        c = V::fma(scaled, power(V::subtract(s, first)), c);
    }
    return c;
}

inline bool is_common(const Span& left, const Span& right) {
    return left.least + right.least >= kLeastCommon &&
           left.greatest + right.greatest <= kGreatestCommon;
}

// sums [row][o][lane] of one block. A function of its own, so that the chain below takes no
// registers from it.
template <class V, int kRows>
[[gnu::noinline]] void digit_sums(const std::int32_t* left, const std::int32_t* right,
                                  std::int32_t* out) {
    typename V::Ints sums[kRows][kDigits];
    for (auto& row : sums) row[0] = row[1] = row[2] = V::fill(0);
    const std::int32_t* next = left + V::strip_rows * kDigits * kPairs;
    for (std::int64_t pair = 0; pair < kPairs; ++pair) {
        // Many short streams: the hardware does not see the next block coming. A line a turn
        // is more than it has.
        __builtin_prefetch(next + 16 * pair);
        const typename V::Ints columns[kDigits] = {V::load_ints(right),
                                                   V::load_ints(right + V::lanes),
                                                   V::load_ints(right + 2 * V::lanes)};
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
            accumulate<V>(left + r * kDigits * kPairs, columns, sums[r]);
        ++left;
        right += V::lanes * kDigits;
    }
    for (const auto& row : sums) {
        for (const auto& sum : row) {
            V::store_ints(out, sum);
            out += V::lanes;
        }
    }
}

template <class V, int kRows>
void tile(const TileCall& call) {
    alignas(64) std::int32_t sums[kRows * kDigits * V::lanes];
    for (std::int64_t block = 0; block < call.blocks; ++block) {
        digit_sums<V, kRows>(call.left + block * kPairs * V::strip_rows * kDigits,
                             call.right + block * kPairs * V::lanes * kDigits, sums);
        const std::int32_t* rows = call.left_exponents + block * V::strip_rows;
        const auto columns = V::load_ints(call.right_exponents + block * V::lanes);
        const bool common = is_common(call.left_spans[block], call.right_spans[block]);
        for (int r = 0; r < kRows; ++r) {
            float* c = call.c + r * V::lanes;
            const std::int32_t* row = sums + r * kDigits * V::lanes;
            const auto exponents = V::add(V::broadcast(rows + r), columns);
            V::store(c, common ? combine_common<V>(V::load(c), row, exponents)
                               : combine_any<V>(V::load(c), row, exponents));
        }
    }
}

inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Plain loops of known length: each file's instruction set vectorises them.
inline void split_left(const std::uint32_t* raw, Factors factors, std::int32_t* out) {
    alignas(64) std::int16_t digits[kDigits][kBlock];
    for (std::int64_t k = 0; k < kBlock; ++k) {
        const float y = float_of(raw[k]) * factors.first * factors.second;
        const Digits d = digits_of(static_cast<std::int32_t>(std::rint(y)));
        digits[0][k] = static_cast<std::int16_t>(d.d0);
        digits[1][k] = static_cast<std::int16_t>(d.d1);
        digits[2][k] = static_cast<std::int16_t>(d.d2);
    }
    std::memcpy(out, digits, sizeof digits);
}

template <class V>
void split_right(const std::uint32_t* raw, const float* first, const float* second,
                 std::int32_t* out) {
    const auto join = [](std::int32_t even, std::int32_t odd) {
        return static_cast<std::int32_t>((static_cast<std::uint32_t>(even) & 0xffffU) |
                                         (static_cast<std::uint32_t>(odd) << 16));
    };
    for (std::int64_t pair = 0; pair < kPairs; ++pair) {
        const std::uint32_t* even = raw + 2 * pair * V::lanes;
        const std::uint32_t* odd = even + V::lanes;
        std::int32_t* to = out + pair * V::lanes * kDigits;
        for (int j = 0; j < V::lanes; ++j) {
            const float x = float_of(even[j]) * first[j] * second[j];
            const float y = float_of(odd[j]) * first[j] * second[j];
            const Digits p = digits_of(static_cast<std::int32_t>(std::rint(x)));
            const Digits q = digits_of(static_cast<std::int32_t>(std::rint(y)));
            to[j] = join(p.d0, q.d0);
            to[V::lanes + j] = join(p.d1, q.d1);
            to[2 * V::lanes + j] = join(p.d2, q.d2);
        }
    }
}

inline std::uint32_t greatest(const std::uint32_t* raw) {
    std::uint32_t most = 0;
    for (std::int64_t k = 0; k < kBlock; ++k) most = std::max(most, raw[k] & 0x7fffffffU);
    return most;
}

template <class V>
void greatest_of_columns(const std::uint32_t* raw, std::uint32_t* out) {
    auto most = V::fill(0);
    for (std::int64_t k = 0; k < kBlock; ++k) {
        const auto bits = V::load_ints(reinterpret_cast<const std::int32_t*>(raw + k * V::lanes));
        most = V::max(most, V::bit_and(bits, V::fill(0x7fffffff)));
    }
    V::store_ints(reinterpret_cast<std::int32_t*>(out), most);
}

template <class V, int... kRow>
constexpr auto tiles(std::integer_sequence<int, kRow...>) {
    return std::array<void (*)(const TileCall&), sizeof...(kRow)>{tile<V, kRow + 1>...};
}

template <class V>
const Kernels* make_kernels() {
    static constexpr auto by_rows = tiles<V>(std::make_integer_sequence<int, V::strip_rows>{});
    static constexpr Kernels table = {
        .strip_rows = V::strip_rows,
        .lanes = V::lanes,
        .tile = by_rows.data(),
        .split_left = split_left,
        .split_right = split_right<V>,
        .greatest = greatest,
        .greatest_of_columns = greatest_of_columns<V>,
    };
    return &table;
}

}  // namespace
}  // namespace bitwitness::exact
