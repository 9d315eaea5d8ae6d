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

inline constexpr int kHalfHigh = layout_of(Format::f16).emax();

template <class V>
[[gnu::always_inline]] inline typename V::Floats fill(float x) {
    return V::as_floats(V::fill(static_cast<std::int32_t>(bits_of(x))));
}

// heal's two parts of x, as f32 values.
template <class V>
struct SplitVector {
    typename V::Floats high;
    typename V::Floats low;

    [[gnu::always_inline]] SplitVector(const std::uint32_t* raw, typename V::Floats first,
                                       typename V::Floats second) {
        const auto x = V::as_floats(V::load_bytes(raw));
        const auto y = V::multiply(V::multiply(x, first), second);
        high = V::nearest_half(y);
        low = V::nearest_half(V::multiply(V::subtract(y, high), fill<V>(0x1p11F)));
    }
};

// The exponents of f16 values, kept at -14 for subnormals, plus `offset`; `zero` for a zero.
template <class V>
[[gnu::always_inline]] inline typename V::Ints half_exponents(typename V::Floats x, int offset,
                                                              int zero) {
    constexpr int least = layout_of(Format::f16).emin() + 127;
    const auto field = V::bit_and(V::template shift_right<23>(V::as_ints(x)), V::fill(0xff));
    const auto none = V::equal(field, V::fill(0));
    const auto code = V::add(V::max(field, V::fill(least)), V::fill(offset - 127));
    return V::bit_or(V::bit_and(none, V::fill(zero)), V::bit_and_not(none, code));
}

template <class V, int kVectors>
[[gnu::always_inline]] inline void store_left(typename V::Floats part, typename V::Floats scale,
                                              LeftEntry* out) {
    alignas(64) float values[V::lanes];
    alignas(64) std::int32_t words[V::lanes];
    V::store(values, V::multiply(part, scale));
    const auto byte = half_exponents<V>(part, 127 - kHalfHigh, 0);
    const auto two = V::bit_or(byte, V::template shift_left<8>(byte));
    V::store_ints(words, V::bit_or(two, V::template shift_left<16>(two)));
    for (int i = 0; i < V::lanes; ++i) {
        out[i] = {values[i], static_cast<std::uint32_t>(words[i])};
    }
    share_words<kVectors>(out, V::lanes);
}

template <class V, int kVectors>
void split_left(const std::uint32_t* raw, std::int64_t count, float first, float second, int pre,
                SplitLeft out) {
    const auto scale = fill<V>(float_of(static_cast<std::uint32_t>(pre - kHalfHigh + 127) << 23));
    for (std::int64_t k = 0; k < count; k += V::lanes) {
        const SplitVector<V> x(raw + k, fill<V>(first), fill<V>(second));
        store_left<V, kVectors>(x.high, scale, out.high + k);
        store_left<V, kVectors>(x.low, scale, out.low + k);
    }
}

// Stores values and puts their byte in front of those in `words`.
template <class V>
[[gnu::always_inline]] inline void store_right(typename V::Floats part, float* values,
                                               typename V::Ints& words) {
    constexpr auto scale = static_cast<std::uint32_t>(127 - kHalfHigh) << 23;
    V::store(values, V::multiply(part, fill<V>(float_of(scale))));
    const auto byte = V::bit_and(half_exponents<V>(part, -kHalfHigh, -127), V::fill(0xff));
    words = V::bit_or(V::template shift_left<8>(words), byte);
}

template <class V, int kVectors>
void split_right(const std::uint32_t* raw, std::int64_t depth, const float* first,
                 const float* second, SplitRight out) {
    constexpr int panel = kWidth<V, kVectors>;
    for (std::int64_t k = 0; k < depth; k += kDepthOfBytes<kVectors>) {
        auto high = V::fill(0), low = V::fill(0);
        for (int place = 3; place >= 0; --place) {
            const int column = place % kVectors * V::lanes;
            const std::int64_t at = (k + place / kVectors) * panel + column;
            const SplitVector<V> x(raw + at, V::load(first + column), V::load(second + column));
            store_right<V>(x.high, out.high_values + at, high);
            store_right<V>(x.low, out.low_values + at, low);
        }
        V::store_ints(reinterpret_cast<std::int32_t*>(out.high_exponents + k * panel / 4), high);
        V::store_ints(reinterpret_cast<std::int32_t*>(out.low_exponents + k * panel / 4), low);
    }
}

}  // namespace
}  // namespace bitwitness
