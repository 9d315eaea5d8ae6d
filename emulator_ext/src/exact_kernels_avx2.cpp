// Compiled with -mavx2 -mfma; entered only after cpu.hpp has found them.
#include <immintrin.h>

#include "exact_kernel_body.hpp"

namespace bitwitness::exact {
namespace {

struct Avx2 {
    static constexpr int lanes = 8;
    static constexpr int strip_rows = 3;  // 9 sums, 3 columns, 2 operands: 14 of 16 registers
    static constexpr bool in_registers = true;
    using Floats = __m256;
    using Ints = __m256i;

    static Floats load(const float* p) { return _mm256_load_ps(p); }
    static void store(float* p, Floats x) { _mm256_store_ps(p, x); }
    static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
    static Floats convert(Ints x) { return _mm256_cvtepi32_ps(x); }
    static Floats as_floats(Ints x) { return _mm256_castsi256_ps(x); }

    static Ints fill(std::int32_t x) { return _mm256_set1_epi32(x); }
    static Ints broadcast(const std::int32_t* p) { return _mm256_set1_epi32(*p); }
    static void store_ints(std::int32_t* p, Ints x) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(p), x);
    }
    static Ints load_ints(const std::int32_t* p) {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    }
    // sum + the two products of int16 in each lane.
    static Ints add_dot(Ints sum, Ints a, Ints b) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    }
    static Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
    static Ints bit_and(Ints a, Ints b) { return _mm256_and_si256(a, b); }
    static Ints subtract(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
    static Ints min(Ints a, Ints b) { return _mm256_min_epi32(a, b); }
    static Ints max(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
    template <int kBits>
    static Ints shift_left(Ints x) {
        return _mm256_slli_epi32(x, kBits);
    }
    template <int kBits>
    static Ints shift_right(Ints x) {  // arithmetic
        return _mm256_srai_epi32(x, kBits);
    }
};

}  // namespace

const Kernels* avx2_kernels() { return make_kernels<Avx2>(); }

}  // namespace bitwitness::exact
