// Compiled with -mavx2 -mfma -mf16c; entered only after cpu.hpp has found them.
#include <immintrin.h>

#include "mma_kernel_table.hpp"

namespace bitwitness {
namespace {

struct Avx2 {
    static constexpr int lanes = 8;
    using Floats = __m256;
    using Ints = __m256i;
    using Bytes = __m256i;

    static Floats load(const float* p) { return _mm256_load_ps(p); }
    static void store(float* p, Floats x) { _mm256_store_ps(p, x); }
    static Floats broadcast(const float* p) { return _mm256_broadcast_ss(p); }
    static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    static Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
    static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
    static Ints truncate(Floats x) { return _mm256_cvttps_epi32(x); }
    // Rounds as MXCSR says.
    static Floats convert(Ints x) { return _mm256_cvtepi32_ps(x); }
    static Ints as_ints(Floats x) { return _mm256_castps_si256(x); }
    static Floats as_floats(Ints x) { return _mm256_castsi256_ps(x); }

    static Ints fill(std::int32_t x) { return _mm256_set1_epi32(x); }
    static void store_ints(std::int32_t* p, Ints x) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(p), x);
    }
    static Ints load_ints(const std::int32_t* p) {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    }
    // The sum of the two products of int16 in each lane.
    static Ints dot_pairs(Ints a, Ints b) { return _mm256_madd_epi16(a, b); }
    static Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
    static Ints subtract(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
    static Ints max(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
    static Ints max_unsigned(Ints a, Ints b) { return _mm256_max_epu32(a, b); }
    // Has x computed here. Else GCC puts additions off and keeps the terms in memory.
    static void settle(Ints& x) { asm volatile("" : "+x"(x)); }
    static Ints absolute(Ints x) { return _mm256_abs_epi32(x); }
    static Ints bit_and(Ints a, Ints b) { return _mm256_and_si256(a, b); }
    static Ints bit_or(Ints a, Ints b) { return _mm256_or_si256(a, b); }
    static Ints bit_xor(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
    static Ints bit_and_not(Ints a, Ints b) { return _mm256_andnot_si256(a, b); }  // ~a & b
    // All ones where it holds.
    static Ints equal(Ints a, Ints b) { return _mm256_cmpeq_epi32(a, b); }
    static Ints is_positive(Ints x) { return _mm256_cmpgt_epi32(x, _mm256_setzero_si256()); }
    // Rounded to f16, to nearest even whatever MXCSR says, and widened again.
    static Floats nearest_half(Floats x) {
        return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    template <int kBits>
    static Ints shift_left(Ints x) {
        return _mm256_slli_epi32(x, kBits);
    }
    static bool any_negative(Ints x) { return _mm256_movemask_ps(_mm256_castsi256_ps(x)) != 0; }
    // One byte of each lane, 0 the lowest, at the place of an f32's exponent field. Bits outside of
    // the field are left over.
    static Ints byte_to_exponent(Ints x, int byte) {
        if (byte == 0) return _mm256_slli_epi32(x, 23);
        if (byte == 1) return _mm256_slli_epi32(x, 15);
        return byte == 2 ? _mm256_slli_epi32(x, 7) : _mm256_srli_epi32(x, 1);
    }

    template <int kBits>
    static Ints shift_right(Ints x) {  // arithmetic
        return _mm256_srai_epi32(x, kBits);
    }

    // Words: 2 * lanes 16-bit integers.
    static Ints fill_words(std::int16_t x) { return _mm256_set1_epi16(x); }
    static Ints load_words(const std::int16_t* p) {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    }
    static Ints add_words(Ints a, Ints b) { return _mm256_adds_epi16(a, b); }       // saturating
    static Ints subtract_words(Ints a, Ints b) { return _mm256_subs_epi16(a, b); }  // saturating
    static Ints max_words(Ints a, Ints b) { return _mm256_max_epi16(a, b); }
    // Half of the words, 4 of every 8, each moved to the upper half of a 32-bit lane.
    static Ints unpack_low(Ints x) { return _mm256_unpacklo_epi16(_mm256_setzero_si256(), x); }
    static Ints unpack_high(Ints x) { return _mm256_unpackhi_epi16(_mm256_setzero_si256(), x); }
    // The inverse: the upper halves of two vectors of lanes.
    static Ints pack_high(Ints low, Ints high) {
        return _mm256_packs_epi32(_mm256_srai_epi32(low, 16), _mm256_srai_epi32(high, 16));
    }

    static Bytes fill_bytes(std::uint8_t x) { return _mm256_set1_epi8(static_cast<char>(x)); }
    static Bytes broadcast_bytes(std::uint32_t four) {
        return _mm256_set1_epi32(static_cast<int>(four));
    }
    static Bytes load_bytes(const std::uint32_t* p) {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    }
    static Bytes add_bytes(Bytes a, Bytes b) { return _mm256_add_epi8(a, b); }  // modulo 2^8
    static Bytes max_bytes(Bytes a, Bytes b) { return _mm256_max_epi8(a, b); }  // signed
};

}  // namespace

const KernelTable* avx2_kernels() {
    static constexpr KernelTable table = make_table<Avx2>();
    return &table;
}

}  // namespace bitwitness
