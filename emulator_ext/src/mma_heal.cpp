// heal on the reference path.
#include "mma_heal.hpp"

#include <vector>

#include "bitwitness/parallel.hpp"
#include "mma_fold.hpp"

namespace bitwitness {
namespace {

using heal::kBlock;

constexpr std::int64_t kPanel = 32;
constexpr float kLowScale = 0x1p11F;

// One row of A or column of B: hi and lo parts, K padded to whole blocks by zeros.
struct Parts {
    std::vector<Unpacked> high;
    std::vector<Unpacked> low;
    int exponent = 0;
};

Unpacked half_of(std::uint32_t bits) { return unpack(layout_of(Format::f16), bits); }

Parts split_row(const MatrixView<const float>& x, std::int64_t i) {
    std::uint32_t most = 0;
    for (std::int64_t k = 0; k < x.cols; ++k) {
        most = std::max(most, std::bit_cast<std::uint32_t>(x.at(i, k)) & 0x7fffffffU);
    }
    const auto depth = static_cast<std::size_t>((x.cols + kBlock - 1) / kBlock * kBlock);
    Parts parts{std::vector<Unpacked>(depth, half_of(0)), std::vector<Unpacked>(depth, half_of(0)),
                heal::exponent_of(most)};
    const heal::Factors factors = heal::factors_of(parts.exponent);
    for (std::int64_t k = 0; k < x.cols; ++k) {
        const float y = x.at(i, k) * factors.first * factors.second;
        const std::uint32_t high = f32_to_f16_bits(std::bit_cast<std::uint32_t>(y));
        const float rest = (y - std::bit_cast<float>(f16_to_f32_bits(high))) * kLowScale;
        const auto at = static_cast<std::size_t>(k);
        parts.high[at] = half_of(high);
        parts.low[at] = half_of(f32_to_f16_bits(std::bit_cast<std::uint32_t>(rest)));
    }
    return parts;
}

float element(const Parts& a, const Parts& b, const Arithmetic& t) {
    constexpr int fraction_bits = 2 * layout_of(Format::f16).fraction_bits;
    const auto run = [&](const std::vector<Unpacked>& x, const std::vector<Unpacked>& y,
                         std::size_t k, std::uint32_t c) {
        return chain(std::span(x).subspan(k, kBlock), std::span(y).subspan(k, kBlock),
                     fraction_bits, c, t, nullptr);
    };
    float main = 0.0F;
    float correction = 0.0F;
    for (std::size_t k = 0; k < a.high.size(); k += kBlock) {
        main += std::bit_cast<float>(run(a.high, b.high, k, 0U));
        const std::uint32_t part = run(a.low, b.high, k, run(a.high, b.low, k, 0U));
        correction += std::bit_cast<float>(part);
    }
    return heal::combine(main, correction, a.exponent + b.exponent);
}

void reference_gemm(const MatrixView<const float>& left, const MatrixView<const float>& right,
                    float* d, const Arithmetic& arithmetic, int threads) {
    const MatrixView<const float> columns = right.transposed();
    const std::int64_t panels = (right.cols + kPanel - 1) / kPanel;
    parallel_for(threads, panels, [&](std::int64_t panel) {
        const std::int64_t j0 = panel * kPanel;
        const std::int64_t j1 = std::min(j0 + kPanel, right.cols);
        std::vector<Parts> panel_parts;
        for (std::int64_t j = j0; j < j1; ++j) panel_parts.push_back(split_row(columns, j));
        for (std::int64_t i = 0; i < left.rows; ++i) {
            const Parts row = split_row(left, i);
            for (std::int64_t j = j0; j < j1; ++j) {
                const Parts& column = panel_parts[static_cast<std::size_t>(j - j0)];
                d[i * right.cols + j] = element(row, column, arithmetic);
            }
        }
    });
}

}  // namespace

void heal_gemm(const MatrixView<const float>& left, const MatrixView<const float>& right, float* d,
               const Arithmetic& arithmetic, const HealExecution& how) {
    if (const KernelTable* k = kernels(how.path)) {
        heal::fast_gemm(left, right, d, arithmetic, *k, how);
    } else {
        reference_gemm(left, right, d, arithmetic, how.threads);
    }
}

}  // namespace bitwitness
