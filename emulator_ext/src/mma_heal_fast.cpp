// heal on the vector kernels. Both parts of both operands are f16, so one scale holds for
// every element, nothing is special and nothing comes near the accumulator's limits.
#include <vector>

#include "bitwitness/parallel.hpp"
#include "mma_gather.hpp"
#include "mma_heal.hpp"
#include "mma_pack.hpp"

namespace bitwitness::heal {
namespace {

constexpr std::int64_t kRowBlock = 32;
// A chain of 2 * kBlock scaled products, each below 4, stays below 2^8.
constexpr int kGrowth = 9;

Operand operand_of(const MatrixView<const float>& x) {
    return {x.data, x.rows, x.cols, x.row_stride, x.col_stride, Format::f32};
}

// Both parts of an operand lie in one plane, which the allocator hands out again to the next
// product: of several smaller ones it returns most to the operating system each time.
struct Left {
    std::int64_t rows;
    LeftPlane plane;
    std::vector<int> exponents;

    Left(std::int64_t row_count, std::int64_t depth)
        : rows(row_count),
          plane(2 * row_count, depth, kBlock),
          exponents(static_cast<std::size_t>(row_count)) {}

    LeftEntry* high(std::int64_t row, std::int64_t k) const { return plane.at(row, k); }
    LeftEntry* low(std::int64_t row, std::int64_t k) const { return plane.at(rows + row, k); }

    void pack(const Kernels& kernels, const Operand& left, std::int64_t first, int pre) {
        const std::int64_t count = std::min(kPackRows, rows - first);
        alignas(kAlignment) std::uint32_t raw[kPackRows * kPackDepth];
        MagnitudeRange ranges[kPackRows];
        for (std::int64_t k = 0; k < plane.depth; k += kPackDepth) {
            gather(left, {first, count, k, kPackDepth}, raw);
            for (std::int64_t i = 0; i < count; ++i) {
                kernels.scan_line(raw + i * kPackDepth, kPackDepth, Format::f32, ranges[i]);
            }
        }
        for (std::int64_t i = 0; i < count; ++i) {
            exponents[static_cast<std::size_t>(first + i)] = exponent_of(ranges[i].most);
        }
        for (std::int64_t k = 0; k < plane.depth; k += kPackDepth) {
            gather(left, {first, count, k, kPackDepth}, raw);
            for (std::int64_t i = 0; i < count; ++i) {
                const Factors f = factors_of(exponents[static_cast<std::size_t>(first + i)]);
                kernels.split_left(raw + i * kPackDepth, kPackDepth, f.first, f.second, pre,
                                   {high(first + i, k), low(first + i, k)});
            }
        }
    }
};

struct Right {
    std::int64_t panels;
    BytePlane plane;
    std::vector<int> exponents;  // one per column, padding included

    Right(int width, std::int64_t panel_count, std::int64_t depth)
        : panels(panel_count),
          plane(width, 2 * panel_count, depth),
          exponents(static_cast<std::size_t>(panel_count * width)) {}

    // Where the planes take a panel's parts.
    std::int64_t high(std::int64_t panel) const { return panel; }
    std::int64_t low(std::int64_t panel) const { return panels + panel; }

    void pack(const Kernels& kernels, const Operand& right, std::int64_t panel) {
        const std::int64_t width = plane.width;
        const auto columns = static_cast<std::size_t>(width);
        const Buffer<std::uint32_t> raw(kPackDepth * width);
        std::vector<std::uint32_t> least(columns, ~0U), most(columns, 0U);
        for (std::int64_t k = 0; k < plane.depth; k += kPackDepth) {
            gather(right, {k, kPackDepth, panel * width, width}, raw.get());
            kernels.scan_panel(raw.get(), kPackDepth, Format::f32, least.data(), most.data());
        }
        const Buffer<float> first(width), second(width);
        for (std::size_t j = 0; j < columns; ++j) {
            const int exponent = exponent_of(most[j]);
            exponents[static_cast<std::size_t>(panel * width) + j] = exponent;
            first.get()[j] = factors_of(exponent).first;
            second.get()[j] = factors_of(exponent).second;
        }
        for (std::int64_t k = 0; k < plane.depth; k += kPackDepth) {
            gather(right, {k, kPackDepth, panel * width, width}, raw.get());
            kernels.split_right(
                raw.get(), kPackDepth, first.get(), second.get(),
                {plane.values_at(high(panel), k), plane.exponents_at(high(panel), k),
                 plane.values_at(low(panel), k), plane.exponents_at(low(panel), k)});
        }
    }
};
static_assert(kBlock % kPackDepth == 0);  // blocks have no rest

// Sums of one tile, in the kernel's scaled domain: a power of two changes no rounding here.
struct Sums {
    std::int64_t count;
    Buffer<float> main, correction, main_part, correction_part;

    explicit Sums(std::int64_t n)
        : count(n), main(n), correction(n), main_part(n), correction_part(n) {
        for (float* sum : {main.get(), correction.get(), main_part.get(), correction_part.get()}) {
            std::fill(sum, sum + n, 0.0F);
        }
    }
    // Adds the parts and clears them. Outside RoundTowardZero: this rounds to nearest.
    void fold() const {
        add_and_clear(main.get(), main_part.get());
        add_and_clear(correction.get(), correction_part.get());
    }

  private:
    void add_and_clear(float* __restrict sum, float* __restrict part) const {
        for (std::int64_t i = 0; i < count; ++i) {
            sum[i] += part[i];
            part[i] = 0.0F;
        }
    }
};

// Where results go. `transposed`: the operands come as B^T and A^T, whose product has the
// same bits, because products commute and chains keep their order along K.
struct Output {
    float* d;
    std::int64_t row_stride;
    std::int64_t col_stride;
    bool transposed;
};

class Product {
  public:
    Product(const Operand& left, const Operand& right, const Output& out,
            const Arithmetic& arithmetic, const Kernels& kernels)
        : left_operand_(left),
          right_operand_(right),
          out_(out),
          arithmetic_(arithmetic),
          kernels_(kernels),
          pre_(arithmetic.fraction_bits - kGrowth - 1),
          depth_(round_up(left.cols, kBlock)),
          panels_(round_up(right.cols, kernels.panel_width) / kernels.panel_width),
          left_(left.rows, depth_),
          right_(kernels.panel_width, panels_, depth_) {}

    void run(int threads) {
        const std::int64_t strips = round_up(left_operand_.rows, kPackRows) / kPackRows;
        parallel_for(threads, strips + panels_, [&](std::int64_t item) {
            if (item < strips) {
                left_.pack(kernels_, left_operand_, item * kPackRows, pre_);
            } else {
                right_.pack(kernels_, right_operand_, item - strips);
            }
        });
        const std::int64_t row_blocks = round_up(left_operand_.rows, kRowBlock) / kRowBlock;
        parallel_for(threads, panels_ * row_blocks, [&](std::int64_t item) {
            const std::int64_t first = item / panels_ * kRowBlock;
            tile(item % panels_, first, std::min(kRowBlock, left_operand_.rows - first));
        });
    }

  private:
    // The rows' `left` entries and the panel's plane at k, one block.
    void chain(const LeftEntry* left, std::int64_t right, std::int64_t rows, std::int64_t k,
               float* out) const {
        const Arithmetic& t = arithmetic_;
        kernels_.chain({left,
                        left_.plane.chunk,
                        right_.plane.values_at(right, k),
                        right_.plane.exponents_at(right, k),
                        out,
                        rows,
                        kBlock / t.group,
                        t.group,
                        t.fraction_bits,
                        pre_,
                        Rounding::rz_f32,
                        {}});
    }

    // chain(hiA, loB), continued by chain(loA, hiB), whichever side A is on.
    void correct(std::int64_t panel, std::int64_t first, std::int64_t rows, std::int64_t k,
                 float* out) const {
        const auto low_left = [&] { chain(left_.low(first, k), right_.high(panel), rows, k, out); };
        if (out_.transposed) low_left();
        chain(left_.high(first, k), right_.low(panel), rows, k, out);
        if (!out_.transposed) low_left();
    }

    void tile(std::int64_t panel, std::int64_t first, std::int64_t rows) const {
        const Sums sums(rows * kernels_.panel_width);
        for (std::int64_t k = 0; k < depth_; k += kBlock) {
            {
                const RoundTowardZero mode;
                chain(left_.high(first, k), right_.high(panel), rows, k, sums.main_part.get());
                correct(panel, first, rows, k, sums.correction_part.get());
            }
            sums.fold();
        }
        store(sums, panel, first, rows);
    }

    void store(const Sums& sums, std::int64_t panel, std::int64_t first, std::int64_t rows) const {
        const std::int64_t width = kernels_.panel_width;
        const std::int64_t cols = std::min(width, right_operand_.cols - panel * width);
        const int unscale = 2 * layout_of(Format::f16).emax() - pre_;
        const int* columns = right_.exponents.data() + panel * width;
        for (std::int64_t i = 0; i < rows; ++i) {
            const int row = left_.exponents[static_cast<std::size_t>(first + i)] + unscale;
            float* d = out_.d + (first + i) * out_.row_stride + panel * width * out_.col_stride;
            for (std::int64_t j = 0; j < cols; ++j) {
                const std::int64_t at = i * width + j;
                d[j * out_.col_stride] =
                    combine(sums.main[at], sums.correction[at], row + columns[j]);
            }
        }
    }

    const Operand left_operand_;
    const Operand right_operand_;
    const Output out_;
    const Arithmetic arithmetic_;
    const Kernels& kernels_;
    int pre_;
    std::int64_t depth_;
    std::int64_t panels_;
    Left left_;
    Right right_;
};

// One side of the product after the other in pieces whose packed parts fit the budget.
void in_pieces(const Operand& left, const Operand& right, const Output& out,
               const Arithmetic& arithmetic, const Kernels& kernels, const HealExecution& how) {
    const std::int64_t depth = round_up(left.cols, kBlock);
    const std::int64_t left_bytes = 2 * depth * static_cast<std::int64_t>(sizeof(LeftEntry));
    const auto compute = [&](std::int64_t row, std::int64_t rows, std::int64_t col,
                             std::int64_t cols) {
        Output piece = out;
        piece.d += row * out.row_stride + col * out.col_stride;
        Product(left.row_piece(row, rows), right.col_piece(col, cols), piece, arithmetic, kernels)
            .run(how.threads);
    };
    for_pieces(left.rows, kRowBlock, left_bytes, how.packing_bytes,
               [&](std::int64_t row, std::int64_t rows) {
                   for_pieces(
                       right.cols, kernels.panel_width, 10 * depth, how.packing_bytes,
                       [&](std::int64_t col, std::int64_t cols) { compute(row, rows, col, cols); });
               });
}

}  // namespace

void fast_gemm(const MatrixView<const float>& left, const MatrixView<const float>& right, float* d,
               const Arithmetic& arithmetic, const KernelTable& table, const HealExecution& how) {
    const Operand a = operand_of(left);
    const Operand b = operand_of(right);
    const Panels panels = cheapest_panels(table, left.rows, right.cols);
    if (panels.on_its_side) {
        in_pieces(b.transposed(), a.transposed(), {d, 1, right.cols, true}, arithmetic,
                  *panels.kernels, how);
    } else {
        in_pieces(a, b, {d, right.cols, 1, false}, arithmetic, *panels.kernels, how);
    }
}

}  // namespace bitwitness::heal
