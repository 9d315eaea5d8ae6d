// Every set of vector kernels gives the reference path's bits in the exact profile: AVX2 as the
// processor runs it, AVX-512 with and without VNNI over emulated intrinsics.
#include "mma_avx512_emulation.hpp"

namespace emulated {

inline Ints min_epi32(Ints a, Ints b) {
    return {_mm256_min_epi32(a.low, b.low), _mm256_min_epi32(a.high, b.high)};
}
// Both products of a lane and the lane itself, modulo 2^32, as the instruction sums them.
inline Ints dpwssd_epi32(Ints sum, Ints a, Ints b) { return add_epi32(sum, madd_epi16(a, b)); }

}  // namespace emulated

#define _mm512_min_epi32 emulated::min_epi32
#define _mm512_dpwssd_epi32 emulated::dpwssd_epi32
#define BITWITNESS_VNNI

#include <bit>
#include <vector>

#include "exact_kernel_body.hpp"
#include "exact_ops_avx512.hpp"
#include "exact_product.hpp"
#include "mma_check.hpp"

namespace {

using namespace bitwitness;
using mma_check::Random;

struct Emulated : exact::Avx512 {
    static constexpr bool in_registers = false;
};
struct EmulatedVnni : exact::Avx512Vnni {
    static constexpr bool in_registers = false;
};

struct Shape {
    std::int64_t m, n, k;
};

// Lines of values around a place of their own in f32, some zero, some of a whole block zero.
std::vector<float> lines(Random& random, std::int64_t count, std::int64_t k, int spread) {
    std::vector<float> out;
    for (std::int64_t i = 0; i < count; ++i) {
        const int place = spread == 0 ? 0 : static_cast<int>(random() % 180) - 125;
        for (std::int64_t j = 0; j < k; ++j) {
            const auto word = static_cast<std::uint32_t>(random());
            const float significand = std::bit_cast<float>((word & 0x807fffffU) | 0x3f800000U);
            const bool zero = word >> 23 & (j / exact::kBlock % 3 == 1 ? 1U : 0U);
            const int fall = static_cast<int>(random() % 30);
            out.push_back(zero ? 0.0F : std::ldexp(significand, place - fall));
        }
    }
    return out;
}

// left is row-major; right column-major, or row-major where the test says so.
void compare(Random& random, const exact::Kernels& kernels, const Shape& shape, int spread,
             const char* what) {
    const auto [m, n, k] = shape;
    const auto a = lines(random, m, k, spread);
    const auto b = lines(random, n, k, spread);
    const bool transposed = random() % 2 == 0;
    const MatrixView<const float> left{a.data(), m, k, k, 1};
    MatrixView<const float> right{b.data(), n, k, k, 1};
    std::vector<float> rows;
    if (transposed) {
        for (std::int64_t i = 0; i < k; ++i) {
            for (std::int64_t j = 0; j < n; ++j) rows.push_back(right.at(j, i));
        }
    }
    right = transposed ? MatrixView<const float>{rows.data(), k, n, n, 1} : right.transposed();
    std::vector<float> expected(static_cast<std::size_t>(m * n));
    std::vector<float> actual(expected.size());
    const auto seen = exact::reference_product(left, right, expected.data(), 1);
    const auto found = exact::vector_product(left, right, actual.data(), kernels, 1);
    mma_check::same(found.product ? 1 : 0, seen.product ? 1 : 0, what);
    for (std::size_t i = 0; i < expected.size(); ++i) {
        mma_check::same(std::bit_cast<std::uint32_t>(actual[i]),
                        std::bit_cast<std::uint32_t>(expected[i]), what);
    }
}

// A NaN in either operand is seen, whichever block of whichever line holds it.
void nonfinite(const exact::Kernels& kernels) {
    for (const std::size_t at : {0U, 64U, 129U, 130U * 19U - 1U}) {
        std::vector<float> a(130 * 19, 1.0F);
        const std::vector<float> b(130 * 19, 1.0F);
        std::vector<float> d(19 * 19);
        a[at] = std::bit_cast<float>(0x7fc00000U);
        const auto view = [](const auto& x) {
            return MatrixView<const float>{x.data(), 19, 130, 130, 1};
        };
        const auto left =
            exact::vector_product(view(a), view(b).transposed(), d.data(), kernels, 1);
        mma_check::same(left.operand ? 1 : 0, 1, "NaN in the left operand");
        const auto right =
            exact::vector_product(view(b), view(a).transposed(), d.data(), kernels, 1);
        mma_check::same(right.operand ? 1 : 0, 1, "NaN in the right operand");
    }
}

void all(const exact::Kernels& kernels, const char* what) {
    Random random(41);
    constexpr Shape shapes[] = {{1, 1, 1},      {1, 16, 64},    {2, 17, 65},
                                {3, 8, 0},      {9, 33, 70},    {23, 40, 300},
                                {200, 20, 130}, {20, 150, 321}, {70, 61, 11000}};
    for (const Shape& shape : shapes) {
        for (const int spread : {0, 1}) compare(random, kernels, shape, spread, what);
    }
    nonfinite(kernels);
}

}  // namespace

int main() {
    if (!supported(Path::avx2)) {
        std::puts("skipped: this processor has no AVX2");
        return 77;
    }
    all(*exact::avx2_kernels(), "avx2");
    all(*exact::make_kernels<Emulated>(), "avx512");
    all(*exact::make_kernels<EmulatedVnni>(), "avx512 with vnni");
    return mma_check::result();
}
