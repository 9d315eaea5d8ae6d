// The operations struct of AVX-512, in a header of its own so that a test can compile the
// same text over an emulation of the intrinsics. Include the intrinsics first.
#pragma once

#include <cstdint>

namespace bitwitness {
namespace {

struct Avx512 {
    static constexpr int lanes = 16;
    using Floats = __m512;
    using Ints = __m512i;
    using Bytes = __m512i;

    static Floats load(const float* p) { return _mm512_load_ps(p); }
    static void store(float* p, Floats x) { _mm512_store_ps(p, x); }
    static Floats broadcast(const float* p) { return _mm512_set1_ps(*p); }
    static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
    static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static Ints truncate(Floats x) { return _mm512_cvttps_epi32(x); }
    // Rounds as MXCSR says.
    static Floats convert(Ints x) { return _mm512_cvtepi32_ps(x); }
    static Ints as_ints(Floats x) { return _mm512_castps_si512(x); }
    static Floats as_floats(Ints x) { return _mm512_castsi512_ps(x); }

    static Ints fill(std::int32_t x) { return _mm512_set1_epi32(x); }
    static void store_ints(std::int32_t* p, Ints x) { _mm512_store_si512(p, x); }
    static Ints load_ints(const std::int32_t* p) { return _mm512_load_si512(p); }
    // The sum of the two products of int16 in each lane.
    static Ints dot_pairs(Ints a, Ints b) { return _mm512_madd_epi16(a, b); }
    static Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
    static Ints subtract(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
    static Ints max(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
    static Ints max_unsigned(Ints a, Ints b) { return _mm512_max_epu32(a, b); }
    // Has x computed here. Else GCC puts additions off and keeps the terms in memory.
#ifdef BITWITNESS_EMULATED_AVX512
    static void settle(Ints&) {}
#else
    static void settle(Ints& x) { asm volatile("" : "+v"(x)); }
#endif
    static Ints absolute(Ints x) { return _mm512_abs_epi32(x); }
    static Ints bit_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
    static Ints bit_or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
    static Ints bit_xor(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
    static Ints bit_and_not(Ints a, Ints b) { return _mm512_andnot_si512(a, b); }  // ~a & b
    // All ones where it holds.
    static Ints equal(Ints a, Ints b) { return _mm512_movm_epi32(_mm512_cmpeq_epi32_mask(a, b)); }
    static Ints is_positive(Ints x) {
        return _mm512_movm_epi32(_mm512_cmpgt_epi32_mask(x, _mm512_setzero_si512()));
    }
    // Rounded to f16, to nearest even whatever MXCSR says, and widened again.
    static Floats nearest_half(Floats x) {
        return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    template <int kBits>
    static Ints shift_left(Ints x) {
        return _mm512_slli_epi32(x, kBits);
    }
    static bool any_negative(Ints x) {
        return _mm512_cmplt_epi32_mask(x, _mm512_setzero_si512()) != 0;
    }
    // One byte of each lane, 0 the lowest, at the place of an f32's exponent field. Bits outside of
    // the field are left over.
    static Ints byte_to_exponent(Ints x, int byte) {
        if (byte == 0) return _mm512_slli_epi32(x, 23);
        if (byte == 1) return _mm512_slli_epi32(x, 15);
        return byte == 2 ? _mm512_slli_epi32(x, 7) : _mm512_srli_epi32(x, 1);
    }

    template <int kBits>
    static Ints shift_right(Ints x) {  // arithmetic
        return _mm512_srai_epi32(x, kBits);
    }

    // Words: 2 * lanes 16-bit integers.
    static Ints fill_words(std::int16_t x) { return _mm512_set1_epi16(x); }
    static Ints load_words(const std::int16_t* p) { return _mm512_load_si512(p); }
    static Ints add_words(Ints a, Ints b) { return _mm512_adds_epi16(a, b); }       // saturating
    static Ints subtract_words(Ints a, Ints b) { return _mm512_subs_epi16(a, b); }  // saturating
    static Ints max_words(Ints a, Ints b) { return _mm512_max_epi16(a, b); }
    // Half of the words, 4 of every 8, each moved to the upper half of a 32-bit lane.
    static Ints unpack_low(Ints x) { return _mm512_unpacklo_epi16(_mm512_setzero_si512(), x); }
    static Ints unpack_high(Ints x) { return _mm512_unpackhi_epi16(_mm512_setzero_si512(), x); }
    // The inverse: the upper halves of two vectors of lanes.
    static Ints pack_high(Ints low, Ints high) {
        return _mm512_packs_epi32(_mm512_srai_epi32(low, 16), _mm512_srai_epi32(high, 16));
    }

    static Bytes fill_bytes(std::uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
    static Bytes broadcast_bytes(std::uint32_t four) {
        return _mm512_set1_epi32(static_cast<int>(four));
    }
    static Bytes load_bytes(const std::uint32_t* p) { return _mm512_load_si512(p); }
    static Bytes add_bytes(Bytes a, Bytes b) { return _mm512_add_epi8(a, b); }  // modulo 2^8
    static Bytes max_bytes(Bytes a, Bytes b) { return _mm512_max_epi8(a, b); }  // signed
};

}  // namespace
}  // namespace bitwitness
