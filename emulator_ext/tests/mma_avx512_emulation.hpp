// The AVX-512 intrinsics that mma_ops_avx512.hpp uses, each as two AVX2 halves, so that its
// text and the kernels' 16-lane instantiation run on processors without AVX-512. Macros of
// the real names shadow the compiler's own.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace emulated {

struct Floats {
    __m256 low, high;
};
struct Ints {
    __m256i low, high;
};

inline __m256i* at(void* p, int half) { return static_cast<__m256i*>(p) + half; }
inline const __m256i* at(const void* p, int half) { return static_cast<const __m256i*>(p) + half; }

inline Floats load_ps(const float* p) { return {_mm256_load_ps(p), _mm256_load_ps(p + 8)}; }
inline void store_ps(float* p, Floats x) {
    _mm256_store_ps(p, x.low);
    _mm256_store_ps(p + 8, x.high);
}
inline Ints load_si512(const void* p) {
    return {_mm256_load_si256(at(p, 0)), _mm256_load_si256(at(p, 1))};
}
inline void store_si512(void* p, Ints x) {
    _mm256_store_si256(at(p, 0), x.low);
    _mm256_store_si256(at(p, 1), x.high);
}
inline Floats set1_ps(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Ints setzero_si512() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Ints abs_epi32(Ints x) { return {_mm256_abs_epi32(x.low), _mm256_abs_epi32(x.high)}; }
inline Floats mul_ps(Floats a, Floats b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Floats sub_ps(Floats a, Floats b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Floats fmadd_ps(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Ints cvttps_epi32(Floats x) {
    return {_mm256_cvttps_epi32(x.low), _mm256_cvttps_epi32(x.high)};
}
inline Floats cvtepi32_ps(Ints x) {
    return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)};
}
inline Ints castps_si512(Floats x) {
    return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)};
}
inline Floats castsi512_ps(Ints x) {
    return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)};
}
inline __m256i cvtps_ph(Floats x, int) {
    return _mm256_set_m128i(_mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT));
}
inline Floats cvtph_ps(__m256i x) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(x)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}

template <int kBits>
Ints slli_epi32(Ints x) {
    return {_mm256_slli_epi32(x.low, kBits), _mm256_slli_epi32(x.high, kBits)};
}
template <int kBits>
Ints srli_epi32(Ints x) {
    return {_mm256_srli_epi32(x.low, kBits), _mm256_srli_epi32(x.high, kBits)};
}
template <int kBits>
Ints srai_epi32(Ints x) {
    return {_mm256_srai_epi32(x.low, kBits), _mm256_srai_epi32(x.high, kBits)};
}

// Both halves alike.
#define BITWITNESS_UNARY(name, type, intrinsic) \
    inline Ints name(type x) { return {intrinsic(x), intrinsic(x)}; }
#define BITWITNESS_BINARY(name, intrinsic)                           \
    inline Ints name(Ints a, Ints b) {                               \
        return {intrinsic(a.low, b.low), intrinsic(a.high, b.high)}; \
    }
BITWITNESS_UNARY(set1_epi8, char, _mm256_set1_epi8)
BITWITNESS_UNARY(set1_epi16, short, _mm256_set1_epi16)
BITWITNESS_UNARY(set1_epi32, int, _mm256_set1_epi32)
BITWITNESS_BINARY(add_epi32, _mm256_add_epi32)
BITWITNESS_BINARY(sub_epi32, _mm256_sub_epi32)
BITWITNESS_BINARY(max_epi32, _mm256_max_epi32)
BITWITNESS_BINARY(max_epu32, _mm256_max_epu32)
BITWITNESS_BINARY(and_si512, _mm256_and_si256)
BITWITNESS_BINARY(or_si512, _mm256_or_si256)
BITWITNESS_BINARY(xor_si512, _mm256_xor_si256)
BITWITNESS_BINARY(andnot_si512, _mm256_andnot_si256)
BITWITNESS_BINARY(madd_epi16, _mm256_madd_epi16)
BITWITNESS_BINARY(adds_epi16, _mm256_adds_epi16)
BITWITNESS_BINARY(subs_epi16, _mm256_subs_epi16)
BITWITNESS_BINARY(max_epi16, _mm256_max_epi16)
BITWITNESS_BINARY(unpacklo_epi16, _mm256_unpacklo_epi16)
BITWITNESS_BINARY(unpackhi_epi16, _mm256_unpackhi_epi16)
BITWITNESS_BINARY(packs_epi32, _mm256_packs_epi32)
BITWITNESS_BINARY(add_epi8, _mm256_add_epi8)
BITWITNESS_BINARY(max_epi8, _mm256_max_epi8)
#undef BITWITNESS_UNARY
#undef BITWITNESS_BINARY

using Mask = std::uint16_t;

inline Mask mask_of(__m256i low, __m256i high) {
    const int bits = _mm256_movemask_ps(_mm256_castsi256_ps(low)) |
                     _mm256_movemask_ps(_mm256_castsi256_ps(high)) << 8;
    return static_cast<Mask>(bits);
}
inline Mask cmpeq_epi32_mask(Ints a, Ints b) {
    return mask_of(_mm256_cmpeq_epi32(a.low, b.low), _mm256_cmpeq_epi32(a.high, b.high));
}
inline Mask cmpgt_epi32_mask(Ints a, Ints b) {
    return mask_of(_mm256_cmpgt_epi32(a.low, b.low), _mm256_cmpgt_epi32(a.high, b.high));
}
inline Mask cmplt_epi32_mask(Ints a, Ints b) { return cmpgt_epi32_mask(b, a); }
inline Ints movm_epi32(Mask mask) {
    alignas(64) std::int32_t lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = (mask >> i & 1) != 0 ? -1 : 0;
    return load_si512(lanes);
}

}  // namespace emulated

#define __m512 emulated::Floats
#define __m512i emulated::Ints
#define _mm512_load_ps emulated::load_ps
#define _mm512_store_ps emulated::store_ps
#define _mm512_load_si512 emulated::load_si512
#define _mm512_store_si512 emulated::store_si512
#define _mm512_set1_ps emulated::set1_ps
#define _mm512_setzero_si512 emulated::setzero_si512
#define _mm512_mul_ps emulated::mul_ps
#define _mm512_sub_ps emulated::sub_ps
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_cvttps_epi32 emulated::cvttps_epi32
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_castps_si512 emulated::castps_si512
#define _mm512_castsi512_ps emulated::castsi512_ps
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph emulated::cvtps_ph
#define _mm512_cvtph_ps emulated::cvtph_ps
#undef _mm512_slli_epi32
#define _mm512_slli_epi32(x, bits) emulated::slli_epi32<bits>(x)
#undef _mm512_srli_epi32
#define _mm512_srli_epi32(x, bits) emulated::srli_epi32<bits>(x)
#undef _mm512_srai_epi32
#define _mm512_srai_epi32(x, bits) emulated::srai_epi32<bits>(x)
#define _mm512_set1_epi8 emulated::set1_epi8
#define _mm512_set1_epi16 emulated::set1_epi16
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_add_epi32 emulated::add_epi32
#define _mm512_sub_epi32 emulated::sub_epi32
#define _mm512_max_epi32 emulated::max_epi32
#define _mm512_max_epu32 emulated::max_epu32
#define _mm512_abs_epi32 emulated::abs_epi32
#define _mm512_and_si512 emulated::and_si512
#define _mm512_or_si512 emulated::or_si512
#define _mm512_xor_si512 emulated::xor_si512
#define _mm512_andnot_si512 emulated::andnot_si512
#define _mm512_madd_epi16 emulated::madd_epi16
#define _mm512_adds_epi16 emulated::adds_epi16
#define _mm512_subs_epi16 emulated::subs_epi16
#define _mm512_max_epi16 emulated::max_epi16
#define _mm512_unpacklo_epi16 emulated::unpacklo_epi16
#define _mm512_unpackhi_epi16 emulated::unpackhi_epi16
#define _mm512_packs_epi32 emulated::packs_epi32
#define _mm512_add_epi8 emulated::add_epi8
#define _mm512_max_epi8 emulated::max_epi8
#define _mm512_cmpeq_epi32_mask emulated::cmpeq_epi32_mask
#define _mm512_cmpgt_epi32_mask emulated::cmpgt_epi32_mask
#define _mm512_cmplt_epi32_mask emulated::cmplt_epi32_mask
#define _mm512_movm_epi32 emulated::movm_epi32
