// Decoding register bits into the planes of the chain kernel. Plain integer and float code
// in the shape that compilers vectorise; like the kernels it has internal linkage and is
// compiled once per instruction set (so nothing of the standard library is used, whose
// inline functions have no internal linkage).
#pragma once

#include <cstdint>

#include "mma_kernel_body.hpp"
#include "mma_wide_body.hpp"

namespace bitwitness {
namespace {

[[gnu::always_inline]] inline std::uint32_t bits_of(float x) {
    return __builtin_bit_cast(std::uint32_t, x);
}
[[gnu::always_inline]] inline float float_of(std::uint32_t x) {
    return __builtin_bit_cast(float, x);
}

struct Decoded {
    std::uint32_t value_bits;  // f32, all zero for a zero of either sign
    std::int32_t exponent;     // a subnormal keeps emin
};

// Exact: every operand format is a subset of f32.
template <Format kFormat>
[[gnu::always_inline]] inline Decoded decode(std::uint32_t raw) {
    constexpr FormatLayout f = layout_of(kFormat);
    constexpr int bits = f.exponent_bits + f.fraction_bits;
    const std::uint32_t x = raw >> f.dropped_bits;
    const std::uint32_t magnitude = x & ((1U << bits) - 1U);
    const auto field = static_cast<std::int32_t>(magnitude >> f.fraction_bits);
    const std::int32_t exponent = (field > 1 ? field : 1) - f.bias();
    const std::uint32_t sign = (x >> bits) << 31;
    const std::uint32_t wide = magnitude << (23 - f.fraction_bits);
    std::uint32_t value = wide;
    if constexpr (f.exponent_bits < 8) {
        constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - f.bias()) << 23;
        constexpr std::uint32_t least_normal = rebias + (1U << 23);
        const float subnormal = float_of(wide + least_normal) - float_of(least_normal);
        value = field == 0 ? bits_of(subnormal) : wide + rebias;
    }
    return {magnitude == 0U ? 0U : (value | sign), exponent};
}

// value * 2^shift for a normal f32 that stays normal; zero stays zero.
[[gnu::always_inline]] inline float scaled(std::uint32_t value_bits, std::int32_t shift) {
    const std::uint32_t moved = value_bits + (static_cast<std::uint32_t>(shift) << 23);
    return float_of(value_bits == 0U ? 0U : moved);
}

// See LeftEntry, for the exponents too. Bytes of rows that turn out ineligible may wrap; they are
// never used.
[[gnu::always_inline]] inline LeftEntry left_entry(const Decoded& d, int high, int pre) {
    const auto code = static_cast<std::uint32_t>(d.exponent - high + 127) & 0xffU;
    const std::uint32_t byte = d.value_bits == 0U ? 0U : code;
    return {scaled(d.value_bits, pre - high), byte * 0x01010101U};
}

[[gnu::always_inline]] inline std::uint32_t right_byte(const Decoded& d, std::int32_t high) {
    const std::int32_t code = d.value_bits == 0U ? -127 : d.exponent - high;
    return static_cast<std::uint32_t>(code) & 0xffU;
}

// Entries whose every byte is their own exponent: two products share a word.
template <int kVectors>
void share_words(LeftEntry* entries, std::int64_t count) {
    if constexpr (kVectors == 2) {
        for (std::int64_t k = 0; k < count; k += 2) {
            entries[k].exponents =
                (entries[k].exponents & 0xffffU) | (entries[k + 1].exponents & 0xffff0000U);
        }
    }
}

constexpr std::uint32_t magnitude_mask(const FormatLayout& f) {
    return (1U << (f.exponent_bits + f.fraction_bits)) - 1U;
}

[[gnu::always_inline]] inline std::uint32_t lesser(std::uint32_t a, std::uint32_t b) {
    return a < b ? a : b;
}
[[gnu::always_inline]] inline std::uint32_t greater(std::uint32_t a, std::uint32_t b) {
    return a > b ? a : b;
}

void scan_line(const std::uint32_t* raw, std::int64_t count, Format format, MagnitudeRange& range) {
    const FormatLayout f = layout_of(format);
    const std::uint32_t mask = magnitude_mask(f);
    std::uint32_t least = range.least_less_one;
    std::uint32_t most = range.most;
    for (std::int64_t k = 0; k < count; ++k) {
        const std::uint32_t magnitude = (raw[k] >> f.dropped_bits) & mask;
        most = greater(most, magnitude);
        least = lesser(least, magnitude - 1U);
    }
    range = {least, most};
}

template <int kPanel>
void scan_panel(const std::uint32_t* raw, std::int64_t depth, Format format, std::uint32_t* least,
                std::uint32_t* most) {
    const FormatLayout f = layout_of(format);
    const std::uint32_t mask = magnitude_mask(f);
    for (std::int64_t k = 0; k < depth; ++k) {
        for (int j = 0; j < kPanel; ++j) {
            const std::uint32_t magnitude = (raw[k * kPanel + j] >> f.dropped_bits) & mask;
            most[j] = greater(most[j], magnitude);
            least[j] = lesser(least[j], magnitude - 1U);
        }
    }
}

template <Format kFormat>
void decode_left_as(const std::uint32_t* __restrict raw, std::int64_t count, int high, int pre,
                    LeftEntry* __restrict out) {
    for (std::int64_t k = 0; k < count; ++k)
        out[k] = left_entry(decode<kFormat>(raw[k]), high, pre);
}

// Runs element(k, j) over `depth` lines of a panel; it returns a byte of exponents, which go to
// their places in `words`.
template <class V, int kVectors, class Element>
[[gnu::always_inline]] inline void for_panel(std::int64_t depth, std::uint32_t* __restrict words,
                                             Element&& element) {
    for (std::int64_t k = 0; k < depth; k += kDepthOfBytes<kVectors>, words += V::lanes) {
        std::uint32_t lanes[V::lanes] = {};
#pragma GCC unroll 4
        for (int place = 0; place < 4; ++place) {
#pragma GCC unroll 1
            for (int lane = 0; lane < V::lanes; ++lane) {
                const int column = place % kVectors * V::lanes + lane;
                lanes[lane] |= element(k + place / kVectors, column) << (8 * place);
            }
        }
        for (int lane = 0; lane < V::lanes; ++lane) words[lane] = lanes[lane];
    }
}

template <class V, int kVectors, Format kFormat>
void decode_right_as(const std::uint32_t* __restrict raw, std::int64_t depth,
                     const std::int32_t* __restrict high, float* __restrict values,
                     std::uint32_t* __restrict exponents) {
    constexpr int panel = kWidth<V, kVectors>;
    for_panel<V, kVectors>(depth, exponents, [&](std::int64_t k, int j) {
        const Decoded d = decode<kFormat>(raw[k * panel + j]);
        values[k * panel + j] = scaled(d.value_bits, -high[j]);
        return right_byte(d, high[j]);
    });
}

// Calls use with the format as a template argument; for tensor-core formats of at most 32 bits.
template <class Use>
void for_format(Format format, Use&& use) {
    switch (format) {
        case Format::f16:
            return use.template operator()<Format::f16>();
        case Format::bf16:
            return use.template operator()<Format::bf16>();
        case Format::tf32:
            return use.template operator()<Format::tf32>();
        case Format::e4m3:
            return use.template operator()<Format::e4m3>();
        default:
            return use.template operator()<Format::e5m2>();
    }
}

template <int kVectors>
void decode_left(const std::uint32_t* raw, std::int64_t count, Format format, int high, int pre,
                 LeftEntry* out) {
    for_format(format, [&]<Format f>() { decode_left_as<f>(raw, count, high, pre, out); });
    share_words<kVectors>(out, count);
}

template <class V, int kVectors>
void decode_right(const std::uint32_t* raw, std::int64_t depth, Format format,
                  const std::int32_t* high, float* values, std::uint32_t* exponents) {
    for_format(format, [&]<Format f>() {
        decode_right_as<V, kVectors, f>(raw, depth, high, values, exponents);
    });
}

struct WideDecoded {
    float significand;
    std::int16_t exponent;
};

// For formats with 8 exponent bits; see WideCall.
template <Format kFormat>
[[gnu::always_inline]] inline WideDecoded decode_wide(std::uint32_t raw) {
    constexpr FormatLayout f = layout_of(kFormat);
    static_assert(f.exponent_bits == 8);
    constexpr int up = f.bytes == 2 ? 16 : 0;
    const std::uint32_t bits = (raw >> f.dropped_bits << f.dropped_bits) << up;
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    const auto field = static_cast<std::int32_t>(magnitude >> 23);
    const float normal = float_of((bits & 0x7fffffU) | 0x3f800000U);
    const float unsigned_value = field == 0 ? normal - 1.0F : normal;
    const std::int32_t exponent = ((field > 1 ? field : 1) - 127) * 128;
    return {float_of(bits_of(unsigned_value) | (bits & 0x80000000U)),
            static_cast<std::int16_t>(magnitude == 0U ? std::int32_t{kWideZero} : exponent)};
}

template <Format kFormat>
void decode_wide_left_as(const std::uint32_t* raw, std::int64_t count, LeftEntry* out) {
    for (std::int64_t k = 0; k < count; ++k) {
        const WideDecoded d = decode_wide<kFormat>(raw[k]);
        out[k] = {d.significand, static_cast<std::uint16_t>(d.exponent) * 0x10001U};
    }
}

template <class V, int kVectors, Format kFormat>
void decode_wide_right_as(const std::uint32_t* raw, std::int64_t depth, float* values,
                          std::int16_t* exponents) {
    constexpr int panel = kWidth<V, kVectors>;
    for (std::int64_t k = 0; k < depth; ++k, raw += panel, values += panel, exponents += panel) {
        for (int j = 0; j < panel; ++j) {
            const WideDecoded d = decode_wide<kFormat>(raw[j]);
            constexpr int pair = 2 * V::lanes;
            values[j] = d.significand;
            exponents[j / pair * pair + word_position<V>(j % pair)] = d.exponent;
        }
    }
}

void decode_wide_left(const std::uint32_t* raw, std::int64_t count, Format format, LeftEntry* out) {
    if (format == Format::bf16) return decode_wide_left_as<Format::bf16>(raw, count, out);
    decode_wide_left_as<Format::tf32>(raw, count, out);
}

template <class V, int kVectors>
void decode_wide_right(const std::uint32_t* raw, std::int64_t depth, Format format, float* values,
                       std::int16_t* exponents) {
    if (format == Format::bf16) {
        return decode_wide_right_as<V, kVectors, Format::bf16>(raw, depth, values, exponents);
    }
    decode_wide_right_as<V, kVectors, Format::tf32>(raw, depth, values, exponents);
}

// The f32 value of x rounded to nearest even to f16, for |x| < 65520.
[[gnu::always_inline]] inline Decoded round_to_f16(float x) {
    const std::uint32_t bits = bits_of(x);
    const std::uint32_t sign = bits & 0x80000000U;
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    const std::uint32_t nearest = (magnitude + 0xfffU + ((magnitude >> 13) & 1U)) & ~0x1fffU;
    // Below 2^-14 the grid is 2^-24, the last place of 0.5f.
    const std::uint32_t on_grid = bits_of((float_of(magnitude) + 0.5F) - 0.5F);
    const std::uint32_t rounded = magnitude < 0x38800000U ? on_grid : nearest;
    const auto exponent = static_cast<std::int32_t>(rounded >> 23) - 127;
    return {rounded == 0U ? 0U : (rounded | sign), exponent < -14 ? -14 : exponent};
}

struct SplitValue {
    Decoded high;
    Decoded low;
};

[[gnu::always_inline]] inline SplitValue split(std::uint32_t raw, float first, float second) {
    const float y = float_of(raw) * first * second;
    const Decoded high = round_to_f16(y);
    return {high, round_to_f16((y - float_of(high.value_bits)) * 0x1p11F)};
}

inline constexpr int kHalfHigh = layout_of(Format::f16).emax();

template <int kVectors>
void split_left(const std::uint32_t* __restrict raw, std::int64_t count, float first, float second,
                int pre, SplitLeft out) {
    LeftEntry* __restrict high = out.high;
    LeftEntry* __restrict low = out.low;
    for (std::int64_t k = 0; k < count; ++k) {
        const SplitValue s = split(raw[k], first, second);
        high[k] = left_entry(s.high, kHalfHigh, pre);
        low[k] = left_entry(s.low, kHalfHigh, pre);
    }
    share_words<kVectors>(high, count);
    share_words<kVectors>(low, count);
}

template <class V, int kVectors>
void split_right(const std::uint32_t* __restrict raw, std::int64_t depth,
                 const float* __restrict first, const float* __restrict second, SplitRight out) {
    constexpr int panel = kWidth<V, kVectors>;
    float* __restrict high_values = out.high_values;
    float* __restrict low_values = out.low_values;
    std::uint32_t* __restrict high_words = out.high_exponents;
    std::uint32_t* __restrict low_words = out.low_exponents;
    for (std::int64_t k = 0; k < depth; k += kDepthOfBytes<kVectors>) {
        std::uint32_t high_lanes[V::lanes] = {}, low_lanes[V::lanes] = {};
#pragma GCC unroll 4
        for (int place = 0; place < 4; ++place) {
            for (int lane = 0; lane < V::lanes; ++lane) {
                const int j = place % kVectors * V::lanes + lane;
                const std::int64_t at = (k + place / kVectors) * panel + j;
                const SplitValue s = split(raw[at], first[j], second[j]);
                high_values[at] = scaled(s.high.value_bits, -kHalfHigh);
                low_values[at] = scaled(s.low.value_bits, -kHalfHigh);
                high_lanes[lane] |= right_byte(s.high, kHalfHigh) << (8 * place);
                low_lanes[lane] |= right_byte(s.low, kHalfHigh) << (8 * place);
            }
        }
        for (int lane = 0; lane < V::lanes; ++lane) *high_words++ = high_lanes[lane];
        for (int lane = 0; lane < V::lanes; ++lane) *low_words++ = low_lanes[lane];
    }
}

}  // namespace
}  // namespace bitwitness
