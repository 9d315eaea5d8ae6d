// The vector kernels, written once over an operations struct V of one instruction set.
//
// Everything here has internal linkage: each translation unit that includes this header
// compiles its own copy with its own -m flags.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "mma_kernels.hpp"

namespace bitwitness {
namespace {

// The panel is four vectors of columns wide: one vector of byte exponents.
inline constexpr int kVectors = 4;

template <class V>
inline constexpr int kWidth = kVectors * V::lanes;

// |sum + c| reached 2^31: add in 64 bits. |sum| <= 2^31 - 2^21 and |c| < 2^26, so the total
// keeps its top bit at 31 and RZ to f32 drops the low 8 bits.
template <class V>
[[gnu::noinline, gnu::cold]] void repair_overflow(const std::int32_t* sum, const std::int32_t* c,
                                                  const float* scale, float* accumulator) {
    for (int lane = 0; lane < kWidth<V>; ++lane) {
        const std::int64_t total = std::int64_t{sum[lane]} + c[lane];
        const std::int64_t magnitude = total < 0 ? -total : total;
        if (magnitude < (std::int64_t{1} << 31)) continue;
        const auto kept = static_cast<double>(magnitude & ~std::int64_t{0xff});
        const auto rounded = static_cast<float>(total < 0 ? -kept : kept);
        accumulator[lane] = rounded * scale[lane];
    }
}

// One step of L products on one row of accumulators.
template <class V, int L, bool kMayOverflow, bool kE8M13>
[[gnu::always_inline]] inline void step(const LeftEntry* left, const float* right,
                                        const std::uint8_t* exponents, int fraction_bits,
                                        typename V::Floats (&acc)[kVectors]) {
    using Floats = typename V::Floats;
    using Ints = typename V::Ints;
    constexpr int width = kWidth<V>;
    auto top = V::fill_bytes(static_cast<std::uint8_t>(fraction_bits + 1));
    for (int i = 0; i < L; ++i) {
        const auto e = V::subtract_saturating(V::broadcast_bytes(left[i].exponents),
                                              V::load_bytes(exponents + i * width));
        top = V::max_bytes(top, e);
    }
    alignas(64) std::uint8_t fields[width];
    V::store_bytes(fields, top);

    const Ints exponent_mask = V::fill(0x7f800000);
    const Ints shift_base = V::fill((fraction_bits + 127) << 23);
    const Ints unit_base = V::fill(fraction_bits << 23);
    Ints field[kVectors], shift[kVectors], sum[kVectors];
    for (int v = 0; v < kVectors; ++v) {
        const Ints own = V::bit_and(V::as_ints(acc[v]), exponent_mask);
        field[v] = V::max(V::template shift_left<23>(V::widen(fields + v * V::lanes)), own);
        shift[v] = V::subtract(shift_base, field[v]);
        sum[v] = V::fill(0);
    }
    for (int i = 0; i < L; ++i) {
        const Floats a = V::broadcast(&left[i].value);
        for (int v = 0; v < kVectors; ++v) {
            const Floats product = V::multiply(a, V::load(right + i * width + v * V::lanes));
            const Ints moved = V::add(V::as_ints(product), shift[v]);
            sum[v] = V::add(sum[v], V::truncate(V::as_floats(moved)));
        }
    }
    [[maybe_unused]] Ints overflow = V::fill(0);
    [[maybe_unused]] Ints c_terms[kVectors];
    for (int v = 0; v < kVectors; ++v) {
        const Ints c = V::truncate(V::as_floats(V::add(V::as_ints(acc[v]), shift[v])));
        const Ints total = V::add(sum[v], c);
        if constexpr (kMayOverflow) {
            const Ints wrapped = V::bit_and(V::bit_xor(sum[v], total), V::bit_xor(c, total));
            overflow = V::bit_or(overflow, wrapped);
            c_terms[v] = c;
        }
        const Floats unit = V::as_floats(V::subtract(field[v], unit_base));
        acc[v] = V::multiply(V::convert(total), unit);
    }
    if constexpr (kMayOverflow) {
        if (V::any_negative(overflow)) [[unlikely]] {
            alignas(64) std::int32_t sums[width], cs[width];
            alignas(64) float scales[width], accs[width];
            for (int v = 0; v < kVectors; ++v) {
                V::store_ints(sums + v * V::lanes, sum[v]);
                V::store_ints(cs + v * V::lanes, c_terms[v]);
                V::store(scales + v * V::lanes, V::as_floats(V::subtract(field[v], unit_base)));
                V::store(accs + v * V::lanes, acc[v]);
            }
            repair_overflow<V>(sums, cs, scales, accs);
            for (int v = 0; v < kVectors; ++v) acc[v] = V::load(accs + v * V::lanes);
        }
    }
    if constexpr (kE8M13) {
        for (auto& x : acc) x = V::as_floats(V::bit_and(V::as_ints(x), V::fill(~0x3ff)));
    }
}

template <class V, int L, bool kMayOverflow, bool kE8M13>
[[gnu::noinline]] void chain_rows(const ChainCall& call) {
    constexpr int width = kWidth<V>;
    for (std::int64_t row = 0; row < call.rows; ++row) {
        const LeftEntry* left = call.left + row * call.left_stride;
        const float* right = call.right_values;
        const std::uint8_t* exponents = call.right_exponents;
        float* out = call.accumulators + row * width;
        typename V::Floats acc[kVectors];
        for (int v = 0; v < kVectors; ++v) acc[v] = V::load(out + v * V::lanes);
        for (std::int64_t g = 0; g < call.groups; ++g) {
            step<V, L, kMayOverflow, kE8M13>(left, right, exponents, call.fraction_bits, acc);
            left += L;
            right += L * width;
            exponents += L * width;
        }
        for (int v = 0; v < kVectors; ++v) V::store(out + v * V::lanes, acc[v]);
    }
}

template <class V, int L>
void chain_of(const ChainCall& call) {
    // L products below 2^(F+2) and c below 2^(F+1) stay under 2^31 unless F = 25 and L = 16.
    const std::int64_t bound = (std::int64_t{L} << (call.fraction_bits + 2)) +
                               (std::int64_t{1} << (call.fraction_bits + 1));
    if (call.e8m13) return chain_rows<V, L, false, true>(call);
    if (bound > std::int64_t{0x7fffffff}) return chain_rows<V, L, true, false>(call);
    return chain_rows<V, L, false, false>(call);
}

template <class V>
void chain(const ChainCall& call) {
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

template <class V, int kRows>
void fma_rows(const float* left, std::int64_t left_stride, const FmaCall& call, float* out) {
    constexpr int width = kWidth<V>;
    typename V::Floats acc[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) acc[r][v] = V::load(out + r * width + v * V::lanes);
    }
    for (std::int64_t k = 0; k < call.depth; ++k) {
        for (int v = 0; v < kVectors; ++v) {
            const auto b = V::load(call.right + k * width + v * V::lanes);
            for (int r = 0; r < kRows; ++r) {
                acc[r][v] = V::fma(V::broadcast(left + r * left_stride + k), b, acc[r][v]);
            }
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) V::store(out + r * width + v * V::lanes, acc[r][v]);
    }
}

template <class V>
void fma_chain(const FmaCall& call) {
    constexpr int width = kWidth<V>;
    std::int64_t row = 0;
    for (; row + 2 <= call.rows; row += 2) {
        fma_rows<V, 2>(call.left + row * call.left_stride, call.left_stride, call,
                       call.accumulators + row * width);
    }
    if (row < call.rows) {
        fma_rows<V, 1>(call.left + row * call.left_stride, call.left_stride, call,
                       call.accumulators + row * width);
    }
}

struct Decoded {
    std::uint32_t value_bits;  // f32, 0 for a zero
    std::int32_t exponent;     // raw: a subnormal keeps emin
};

// Exact: every operand format is a subset of f32. Plain integer code, which vectorises.
template <Format kFormat>
[[gnu::always_inline]] inline Decoded decode(std::uint32_t raw) {
    constexpr FormatLayout f = layout_of(kFormat);
    constexpr int bits = f.exponent_bits + f.fraction_bits;
    const std::uint32_t x = raw >> f.dropped_bits;
    const std::uint32_t magnitude = x & ((1U << bits) - 1U);
    const auto field = static_cast<std::int32_t>(magnitude >> f.fraction_bits);
    const std::int32_t exponent = std::max(field, 1) - f.bias();
    const std::uint32_t sign = (x >> bits) << 31;
    const std::uint32_t wide = magnitude << (23 - f.fraction_bits);
    if constexpr (f.exponent_bits == 8) {
        return {magnitude == 0U ? 0U : (wide | sign), exponent};
    } else {
        constexpr float rebias =
            std::bit_cast<float>(static_cast<std::uint32_t>(254 - f.bias()) << 23);
        const float value = std::bit_cast<float>(wide) * rebias;
        return {magnitude == 0U ? 0U : (std::bit_cast<std::uint32_t>(value) | sign), exponent};
    }
}

[[gnu::always_inline]] inline float scaled(std::uint32_t value_bits, std::int32_t shift) {
    const std::uint32_t moved = value_bits + (static_cast<std::uint32_t>(shift) << 23);
    return std::bit_cast<float>(value_bits == 0U ? 0U : moved);
}

template <Format kFormat>
void decode_left_as(const std::uint32_t* raw, std::int64_t count, int high, int pre,
                    LeftEntry* out) {
    for (std::int64_t k = 0; k < count; ++k) {
        const Decoded d = decode<kFormat>(raw[k]);
        const std::int32_t biased = std::clamp(d.exponent - high + 127 + pre, 0, 255);
        const auto byte = d.value_bits == 0U ? 0U : static_cast<std::uint32_t>(biased);
        out[k] = {scaled(d.value_bits, pre - high), byte * 0x01010101U};
    }
}

template <class V, Format kFormat>
void decode_right_as(const std::uint32_t* raw, const std::int32_t* high, float* values,
                     std::uint8_t* exponents) {
    for (int j = 0; j < kWidth<V>; ++j) {
        const Decoded d = decode<kFormat>(raw[j]);
        const std::int32_t below = std::clamp(high[j] - d.exponent, 0, 255);
        values[j] = scaled(d.value_bits, -high[j]);
        exponents[j] = static_cast<std::uint8_t>(d.value_bits == 0U ? 255 : below);
    }
}

template <class V>
void decode_left(const std::uint32_t* raw, std::int64_t count, Format format, int high, int pre,
                 LeftEntry* out) {
    switch (format) {
        case Format::f16:
            return decode_left_as<Format::f16>(raw, count, high, pre, out);
        case Format::bf16:
            return decode_left_as<Format::bf16>(raw, count, high, pre, out);
        case Format::tf32:
            return decode_left_as<Format::tf32>(raw, count, high, pre, out);
        case Format::e4m3:
            return decode_left_as<Format::e4m3>(raw, count, high, pre, out);
        default:
            return decode_left_as<Format::e5m2>(raw, count, high, pre, out);
    }
}

template <class V>
void decode_right(const std::uint32_t* raw, Format format, const std::int32_t* high, float* values,
                  std::uint8_t* exponents) {
    switch (format) {
        case Format::f16:
            return decode_right_as<V, Format::f16>(raw, high, values, exponents);
        case Format::bf16:
            return decode_right_as<V, Format::bf16>(raw, high, values, exponents);
        case Format::tf32:
            return decode_right_as<V, Format::tf32>(raw, high, values, exponents);
        case Format::e4m3:
            return decode_right_as<V, Format::e4m3>(raw, high, values, exponents);
        default:
            return decode_right_as<V, Format::e5m2>(raw, high, values, exponents);
    }
}

template <class V>
constexpr Kernels make_kernels() {
    return {kWidth<V>, chain<V>, fma_chain<V>, decode_left<V>, decode_right<V>};
}

}  // namespace
}  // namespace bitwitness
