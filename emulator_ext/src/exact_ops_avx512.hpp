// The operations structs of AVX-512, in a header of their own so that a test can compile the
// same text over an emulation of the intrinsics. Include the intrinsics first.
#pragma once

#include <cstdint>

namespace bitwitness::exact {
namespace {

struct Avx512Base {
    static constexpr int lanes = 16;
    static constexpr int strip_rows = 8;  // 24 sums, 3 columns, 2 operands: 29 of 32 registers
    static constexpr bool in_registers = true;  // false in an emulation
    using Floats = __m512;
    using Ints = __m512i;

    static Floats load(const float* p) { return _mm512_load_ps(p); }
    static void store(float* p, Floats x) { _mm512_store_ps(p, x); }
    static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static Floats convert(Ints x) { return _mm512_cvtepi32_ps(x); }
    static Floats as_floats(Ints x) { return _mm512_castsi512_ps(x); }

    static Ints fill(std::int32_t x) { return _mm512_set1_epi32(x); }
    static Ints broadcast(const std::int32_t* p) { return _mm512_set1_epi32(*p); }
    static void store_ints(std::int32_t* p, Ints x) { _mm512_store_si512(p, x); }
    static Ints load_ints(const std::int32_t* p) { return _mm512_load_si512(p); }
    static Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
    static Ints bit_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
    static Ints subtract(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
    static Ints min(Ints a, Ints b) { return _mm512_min_epi32(a, b); }
    static Ints max(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
    template <int kBits>
    static Ints shift_left(Ints x) {
        return _mm512_slli_epi32(x, kBits);
    }
    template <int kBits>
    static Ints shift_right(Ints x) {  // arithmetic
        return _mm512_srai_epi32(x, kBits);
    }
};

struct Avx512 : Avx512Base {
    // sum + the two products of int16 in each lane.
    static Ints add_dot(Ints sum, Ints a, Ints b) {
        return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
    }
};

#ifdef BITWITNESS_VNNI
struct Avx512Vnni : Avx512Base {
    static Ints add_dot(Ints sum, Ints a, Ints b) { return _mm512_dpwssd_epi32(sum, a, b); }
};
#endif

}  // namespace
}  // namespace bitwitness::exact
