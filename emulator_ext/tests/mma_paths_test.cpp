// Every vector path gives the reference path's bits. Built a second time with the AVX-512
// kernels over emulated intrinsics, whose path then counts as available.
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "bitwitness/gemm.hpp"
#include "bitwitness/matmul.hpp"
#include "bitwitness/other_engines.hpp"
#include "mma_check.hpp"

namespace {

using namespace bitwitness;
using mma_check::Random;

std::vector<Path> vector_paths() {
    std::vector<Path> paths;
    if (supported(Path::avx2)) paths.push_back(Path::avx2);
#ifdef BITWITNESS_EMULATED_AVX512
    paths.push_back(Path::avx512);
#else
    if (supported(Path::avx512)) paths.push_back(Path::avx512);
#endif
    return paths;
}

struct Case {
    Format left;
    Format right;
    Arithmetic arithmetic;
    std::int64_t block;
};

enum class Bits : std::uint8_t { any, moderate, large, wide };

// One element: any bits at all, moderate values, values near the top of a narrow range, or
// finite values of any exponent.
std::uint32_t element(Random& random, Format format, Bits kind) {
    const FormatLayout f = layout_of(format);
    const int width = 1 + f.exponent_bits + f.fraction_bits;
    auto x = static_cast<std::uint32_t>(random() & ((std::uint64_t{1} << width) - 1U));
    const std::uint32_t fraction = x & ((1U << f.fraction_bits) - 1U);
    const std::uint32_t sign = x >> (width - 1) << (width - 1);
    auto field = static_cast<std::uint32_t>(f.bias()) - static_cast<std::uint32_t>(random() % 5);
    if (kind == Bits::large) field = static_cast<std::uint32_t>(f.bias());
    if (kind == Bits::wide)
        field = static_cast<std::uint32_t>(
            random() % static_cast<std::uint64_t>(
                           f.bias() + 20 < (1 << f.exponent_bits) ? f.bias() + 20 : f.bias()));
    if (kind != Bits::any) x = sign | field << f.fraction_bits | fraction;
    if (kind != Bits::any && random() % 9 == 0) x = sign;
    return x << f.dropped_bits |
           (f.dropped_bits != 0 ? static_cast<std::uint32_t>(random() & 0x1fffU) : 0U);
}

// Elements in registers of the format's width, as raw memory.
std::vector<std::uint32_t> operand(Random& random, Format format, std::int64_t count, Bits kind) {
    const int bytes = layout_of(format).bytes;
    std::vector<std::uint32_t> memory(static_cast<std::size_t>(count) + 1);
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t x = element(random, format, kind);
        std::memcpy(reinterpret_cast<char*>(memory.data()) + i * bytes, &x,
                    static_cast<std::size_t>(bytes));
    }
    return memory;
}

void compare(const std::vector<std::uint32_t>& actual, const std::vector<std::uint32_t>& expected,
             const char* what) {
    for (std::size_t i = 0; i < expected.size(); ++i) mma_check::same(actual[i], expected[i], what);
}

void products(const Case& which, Bits kind, std::int64_t m, std::int64_t n, std::int64_t k,
              Random& random) {
    const auto a = operand(random, which.left, m * k, kind);
    const auto b = operand(random, which.right, k * n, kind);
    const bool half = which.arithmetic.rounding == Rounding::rne_f16;
    const auto c = operand(random, half ? Format::f16 : Format::f32, m * n,
                           random() % 2 == 0 ? Bits::moderate : kind);
    const bool with_c = random() % 2 == 0;
    const auto run = [&](Path path, int threads, std::int64_t packing_bytes) {
        std::vector<std::uint32_t> d(static_cast<std::size_t>(m * n) + 1);
        const MatmulCall call{.left = {a.data(), m, k, k, 1, which.left},
                              .right = {b.data(), k, n, 1, k, which.right},
                              .c = with_c ? c.data() : nullptr,
                              .d = d.data(),
                              .arithmetic = which.arithmetic,
                              .block = which.block,
                              .count_regions = false,
                              .path = path,
                              .threads = threads,
                              .packing_bytes = packing_bytes};
        matmul(call);
        return d;
    };
    const auto expected = run(Path::scalar, 1, kPackingBytes);
    for (const Path path : vector_paths()) {
        compare(run(path, 2, kPackingBytes), expected, "matmul");
        compare(run(path, 1, 1), expected, "matmul in the smallest pieces");
    }
}

void gemms(Profile profile, std::int64_t m, std::int64_t n, std::int64_t k, Random& random) {
    std::vector<float> a(static_cast<std::size_t>(m * k) + 1),
        b(static_cast<std::size_t>(k * n) + 1);
    const auto fill = [&](std::vector<float>& x) {
        for (float& value : x) {
            const auto mantissa =
                static_cast<double>(static_cast<std::int64_t>(random() >> 12)) - 0x1p51;
            value = static_cast<float>(std::ldexp(mantissa, -51 - static_cast<int>(random() % 60)));
        }
    };
    fill(a);
    fill(b);
    const auto run = [&](Path path, std::int64_t packing_bytes) {
        std::vector<std::uint32_t> d(static_cast<std::size_t>(m * n));
        gemm({profile,
              {a.data(), m, k, k, 1},
              {b.data(), k, n, n, 1},
              {0},
              {0},
              reinterpret_cast<float*>(d.data()),
              {25, 16, -133, Rounding::rz_f32},
              path,
              1,
              packing_bytes});
        return d;
    };
    const auto expected = run(Path::scalar, kPackingBytes);
    for (const Path path : vector_paths()) {
        compare(run(path, kPackingBytes), expected, "gemm");
        compare(run(path, 1), expected, "gemm in the smallest pieces");
    }
}

void other_engines(Random& random) {
    constexpr std::int64_t m = 5, n = 70, k = 33;
    const auto a = operand(random, Format::e4m3, m * k, Bits::any);
    const auto b = operand(random, Format::e5m2, k * n, Bits::any);
    std::vector<double> x(m * k), y(k * n);
    for (double& v : x) v = static_cast<double>(random()) * 0x1p-64 - 0.5;
    for (double& v : y) v = static_cast<double>(random()) * 0x1p-64 - 0.5;
    const auto run = [&](Path path) {
        std::vector<std::uint32_t> out(3 * m * n);
        const MatmulCall call{.left = {a.data(), m, k, k, 1, Format::e4m3},
                              .right = {b.data(), k, n, n, 1, Format::e5m2},
                              .c = nullptr,
                              .d = out.data(),
                              .arithmetic = {25, 16, -133, Rounding::rz_f32},
                              .block = 0,
                              .count_regions = false,
                              .path = path,
                              .threads = 1};
        matmul_fp8_through_f16(call);
        std::vector<std::int32_t> integers(m * n);
        matmul_integer({{a.data(), m, k, k, 1, Format::s8},
                        {b.data(), k, n, n, 1, Format::u8},
                        nullptr,
                        integers.data(),
                        path,
                        1});
        std::memcpy(out.data() + m * n, integers.data(), m * n * sizeof(std::int32_t));
        std::vector<double> doubles(m * n);
        matmul_f64(
            {{x.data(), m, k, k, 1}, {y.data(), k, n, n, 1}, nullptr, doubles.data(), path, 1});
        for (std::size_t i = 0; i < doubles.size(); ++i) {
            const auto bits = std::bit_cast<std::uint64_t>(doubles[i]);
            out[2 * m * n + i] = static_cast<std::uint32_t>(bits ^ bits >> 32);
        }
        return out;
    };
    const auto expected = run(Path::scalar);
    for (const Path path : vector_paths()) compare(run(path), expected, "other engines");
}

}  // namespace

int main() {
    constexpr auto f32 = Rounding::rz_f32;
    constexpr auto f16 = Rounding::rne_f16;
    const Case cases[] = {
        {Format::f16, Format::f16, {23, 4, -131, f32}, 0},
        {Format::f16, Format::f16, {24, 8, -132, f32}, 0},
        {Format::f16, Format::f16, {25, 16, -133, f32}, 0},
        {Format::f16, Format::f16, {25, 16, -133, f32}, 32},
        {Format::f16, Format::f16, {25, 16, -21, f16}, 0},
        {Format::f16, Format::f16, {23, 4, -19, f16}, 0},
        {Format::bf16, Format::bf16, {24, 8, -132, f32}, 0},
        {Format::bf16, Format::bf16, {25, 16, -133, f32}, 0},
        {Format::bf16, Format::bf16, {25, 16, -133, f32}, 48},
        {Format::tf32, Format::tf32, {24, 4, -132, f32}, 0},
        {Format::tf32, Format::tf32, {25, 8, -133, f32}, 0},
        {Format::e4m3, Format::e5m2, {13, 16, -132, Rounding::rz_e8m13}, 0},
        {Format::e4m3, Format::e4m3, {13, 32, -133, Rounding::rz_e8m13}, 128},
        {Format::e4m3, Format::e4m3, {25, 32, -133, f32}, 0},
        {Format::e5m2, Format::e4m3, {25, 32, -21, f16}, 0},
        // Floors of emax that no known architecture has, as a characterised one may.
        {Format::f16, Format::f16, {25, 16, 0, f32}, 0},
        {Format::f16, Format::f16, {24, 8, -40, f32}, 32},
        {Format::bf16, Format::bf16, {25, 16, -20, f32}, 0},
        {Format::bf16, Format::bf16, {25, 16, -512, f32}, 0},
        {Format::e4m3, Format::e4m3, {25, 32, 128, f32}, 0},
        {Format::f16, Format::f16, {25, 16, 128, f16}, 0},
        {Format::f16, Format::f16, {25, 16, 3, f16}, 0},
        {Format::f16, Format::f16, {25, 16, -512, f16}, 0},
    };
    Random random(2);
    for (const Case& which : cases) {
        for (const Bits kind : {Bits::any, Bits::moderate, Bits::large, Bits::wide}) {
            products(which, kind, 3, 130, 200, random);
            products(which, kind, 70, 5, 37, random);
            products(which, kind, 21, 16, 70, random);   // narrow panels
            products(which, kind, 37, 64, 150, random);  // wide ones, several blocks of rows
            products(which, kind, 1, 1, 1, random);
        }
    }
    for (const Profile profile : {Profile::fp32, Profile::bf16, Profile::heal}) {
        gemms(profile, 5, 130, 70, random);
        gemms(profile, 33, 3, 32, random);
        gemms(profile, 16, 16, 100, random);
        gemms(profile, 40, 64, 70, random);
        gemms(profile, 70, 140, 33, random);
    }
    other_engines(random);
    return mma_check::result();
}
