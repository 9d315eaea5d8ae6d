// HEAL's error-compensated GEMM (NUMERICS section 2): each operand, scaled by a power of
// two per row or column, is split into two f16 parts; three products of parts run on the
// tensor core in blocks of 32 and are accumulated outside of it.
#include "mma_heal.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <vector>

#include "bitwitness/parallel.hpp"
#include "mma_fold.hpp"
#include "mma_kernels.hpp"
#include "mma_pack.hpp"

namespace bitwitness {
namespace {

constexpr std::int64_t kBlock = 32;
constexpr std::int64_t kRowBlock = 32;
constexpr int kTopExponent = 14;  // a scaled row's maximum lies in [2^14, 2^15)
constexpr float kLowScale = 0x1p11F;
constexpr int kScalarPanel = 32;

// Rows of x split as hi + lo * 2^-11, times 2^exponent. K is padded to whole blocks by 0.
struct SplitRows {
    std::int64_t rows;
    std::int64_t depth;
    Buffer<std::uint16_t> high;
    Buffer<std::uint16_t> low;
    std::vector<int> exponents;

    SplitRows(std::int64_t n, std::int64_t k)
        : rows(n),
          depth(round_up(k, kBlock)),
          high(n * depth),
          low(n * depth),
          exponents(static_cast<std::size_t>(n)) {}
    Operand high_rows() const { return {high.get(), rows, depth, depth, 1, Format::f16}; }
    Operand low_rows() const { return {low.get(), rows, depth, depth, 1, Format::f16}; }
};

float power_of_two(int exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// floor(log2 x) of the largest magnitude's bits, less 14; subnormals count their own bits.
int row_exponent(std::uint32_t magnitude) {
    if (magnitude == 0U) return 0;
    const auto field = static_cast<int>(magnitude >> 23);
    const int log2 = field != 0 ? field - 127 : static_cast<int>(std::bit_width(magnitude)) - 150;
    return log2 - kTopExponent;
}

void split_row(const MatrixView<const float>& x, std::int64_t i, SplitRows& out) {
    std::uint32_t most = 0;
    for (std::int64_t k = 0; k < x.cols; ++k) {
        most = std::max(most, std::bit_cast<std::uint32_t>(x.at(i, k)) & 0x7fffffffU);
    }
    const int e = row_exponent(most);
    out.exponents[static_cast<std::size_t>(i)] = e;
    // 2^-e is infinite for the smallest rows: two exact factors then.
    const float first = power_of_two(std::min(-e, 127));
    const float second = power_of_two(-e - std::min(-e, 127));
    std::uint16_t* high = out.high.get() + i * out.depth;
    std::uint16_t* low = out.low.get() + i * out.depth;
    for (std::int64_t k = 0; k < x.cols; ++k) {
        const float y = x.at(i, k) * first * second;
        const std::uint32_t hi = f32_to_f16_bits(std::bit_cast<std::uint32_t>(y));
        const float rest = (y - std::bit_cast<float>(f16_to_f32_bits(hi))) * kLowScale;
        high[k] = static_cast<std::uint16_t>(hi);
        low[k] = static_cast<std::uint16_t>(f32_to_f16_bits(std::bit_cast<std::uint32_t>(rest)));
    }
    std::fill(high + x.cols, high + out.depth, std::uint16_t{0});
    std::fill(low + x.cols, low + out.depth, std::uint16_t{0});
}

SplitRows split(const MatrixView<const float>& x, int threads) {
    SplitRows out(x.rows, x.cols);
    parallel_for(threads, x.rows, [&](std::int64_t i) { split_row(x, i, out); });
    return out;
}

// ldexp(main + corr * 2^-11, exponent), rounded once to f32.
float combine(float main, float correction, int exponent) {
    const float sum = main + correction * 0x1p-11F;
    return static_cast<float>(std::ldexp(static_cast<double>(sum), exponent));
}

struct Problem {
    const SplitRows& left;
    const SplitRows& right;  // rows are the columns of B
    float* d;
    Arithmetic arithmetic;

    int exponent(std::int64_t i, std::int64_t j) const {
        return left.exponents[static_cast<std::size_t>(i)] +
               right.exponents[static_cast<std::size_t>(j)];
    }
};

std::vector<Unpacked> unpack_part(const std::uint16_t* bits, std::int64_t count) {
    std::vector<Unpacked> out(static_cast<std::size_t>(count));
    for (std::int64_t k = 0; k < count; ++k) {
        out[static_cast<std::size_t>(k)] = unpack(layout_of(Format::f16), bits[k]);
    }
    return out;
}

struct Parts {
    std::vector<Unpacked> high;
    std::vector<Unpacked> low;
};

Parts unpack_parts(const SplitRows& rows, std::int64_t i) {
    return {unpack_part(rows.high.get() + i * rows.depth, rows.depth),
            unpack_part(rows.low.get() + i * rows.depth, rows.depth)};
}

float reference_element(const Parts& a, const Parts& b, int exponent, const Arithmetic& t) {
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
    return combine(main, correction, exponent);
}

void reference_gemm(const Problem& p, int threads) {
    const std::int64_t panels = round_up(p.right.rows, kScalarPanel) / kScalarPanel;
    parallel_for(threads, panels, [&](std::int64_t panel) {
        const std::int64_t j0 = panel * kScalarPanel;
        const std::int64_t j1 = std::min<std::int64_t>(j0 + kScalarPanel, p.right.rows);
        std::vector<Parts> columns;
        for (std::int64_t j = j0; j < j1; ++j) columns.push_back(unpack_parts(p.right, j));
        for (std::int64_t i = 0; i < p.left.rows; ++i) {
            const Parts row = unpack_parts(p.left, i);
            for (std::int64_t j = j0; j < j1; ++j) {
                p.d[i * p.right.rows + j] = reference_element(
                    row, columns[static_cast<std::size_t>(j - j0)], p.exponent(i, j), p.arithmetic);
            }
        }
    });
}

// Both parts of both operands, packed. All are f16, so one scale holds for every element.
class FastHeal {
  public:
    FastHeal(const Problem& p, const Kernels& kernels, int threads)
        : p_(p),
          kernels_(kernels),
          pre_(p.arithmetic.fraction_bits - kGrowth - 1),
          panels_(round_up(p.right.rows, kernels.panel_width) / kernels.panel_width),
          left_high_(p.left.rows, p.left.depth),
          left_low_(p.left.rows, p.left.depth),
          right_high_(kernels, panels_, p.left.depth),
          right_low_(kernels, panels_, p.left.depth) {
        parallel_for(threads, p.left.rows, [&](std::int64_t i) {
            left_high_.pack_row(kernels, p.left.high_rows(), i, pre_);
            left_low_.pack_row(kernels, p.left.low_rows(), i, pre_);
        });
        parallel_for(threads, panels_, [&](std::int64_t panel) {
            right_high_.pack_panel(kernels, p.right.high_rows().transposed(), panel);
            right_low_.pack_panel(kernels, p.right.low_rows().transposed(), panel);
        });
    }

    void run(int threads) const {
        const std::int64_t row_blocks = round_up(p_.left.rows, kRowBlock) / kRowBlock;
        parallel_for(threads, panels_ * row_blocks, [&](std::int64_t item) {
            const std::int64_t first = item % row_blocks * kRowBlock;
            tile(item / row_blocks, first, std::min(first + kRowBlock, p_.left.rows));
        });
    }

  private:
    // A chain of 2 * kBlock products of exponent at most 0 stays below 2^8.
    static constexpr int kGrowth = 9;

    struct Accumulators {
        Buffer<float> main, correction, main_part, correction_part;
        std::int64_t count;

        explicit Accumulators(std::int64_t n)
            : main(n), correction(n), main_part(n), correction_part(n), count(n) {
            std::fill(main.get(), main.get() + n, 0.0F);
            std::fill(correction.get(), correction.get() + n, 0.0F);
        }
        void clear_parts() const {
            std::fill(main_part.get(), main_part.get() + count, 0.0F);
            std::fill(correction_part.get(), correction_part.get() + count, 0.0F);
        }
        void fold() const {
            for (std::int64_t i = 0; i < count; ++i) main[i] += main_part[i];
            for (std::int64_t i = 0; i < count; ++i) correction[i] += correction_part[i];
        }
    };

    void chain(const LeftPack& left, const RightPack& right, std::int64_t panel, std::int64_t first,
               std::int64_t rows, std::int64_t k, float* out) const {
        const Arithmetic& t = p_.arithmetic;
        kernels_.chain({left.row(first) + k, left.depth, right.panel_values(panel, k),
                        right.panel_exponents(panel, k), out, rows, kBlock / t.group, t.group,
                        t.fraction_bits, false});
    }

    void tile(std::int64_t panel, std::int64_t first, std::int64_t last) const {
        const std::int64_t rows = last - first;
        const Accumulators acc(rows * kernels_.panel_width);
        for (std::int64_t k = 0; k < p_.left.depth; k += kBlock) {
            acc.clear_parts();
            {
                const RoundTowardZero mode;
                chain(left_high_, right_high_, panel, first, rows, k, acc.main_part.get());
                chain(left_high_, right_low_, panel, first, rows, k, acc.correction_part.get());
                chain(left_low_, right_high_, panel, first, rows, k, acc.correction_part.get());
            }
            acc.fold();
        }
        store(acc, panel, first, rows);
    }

    void store(const Accumulators& acc, std::int64_t panel, std::int64_t first,
               std::int64_t rows) const {
        const std::int64_t width = kernels_.panel_width;
        const std::int64_t cols = std::min(width, p_.right.rows - panel * width);
        const int unscale = 2 * layout_of(Format::f16).emax() - pre_;
        for (std::int64_t i = 0; i < rows; ++i) {
            float* d = p_.d + (first + i) * p_.right.rows + panel * width;
            for (std::int64_t j = 0; j < cols; ++j) {
                const std::int64_t at = i * width + j;
                d[j] = combine(acc.main[at], acc.correction[at],
                               p_.exponent(first + i, panel * width + j) + unscale);
            }
        }
    }

    const Problem& p_;
    const Kernels& kernels_;
    int pre_;
    std::int64_t panels_;
    LeftPack left_high_, left_low_;
    RightPack right_high_, right_low_;
};

}  // namespace

void heal_gemm(const MatrixView<const float>& left, const MatrixView<const float>& right, float* d,
               const Arithmetic& arithmetic, Path path, int threads) {
    const SplitRows a = split(left, threads);
    const SplitRows b = split(right.transposed(), threads);
    const Problem problem{a, b, d, arithmetic};
    if (const Kernels* k = kernels(path)) {
        FastHeal(problem, *k, threads).run(threads);
    } else {
        reference_gemm(problem, threads);
    }
}

}  // namespace bitwitness
