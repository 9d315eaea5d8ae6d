// The exact profile on the vector kernels: both operands are packed whole, then each work item
// computes a block of rows of some panels, a few blocks of K at a time.
#include "bitwitness/parallel.hpp"
#include "exact_packed.hpp"
#include "exact_product.hpp"

namespace bitwitness::exact {
namespace {

// The digits of kDepth blocks of one panel stay in L1, those of kRowBlock rows in L2; both
// are multiples of what the kernels take.
constexpr std::int64_t kDepth = 4;
constexpr std::int64_t kRowBlock = 192;
constexpr std::int64_t kPanels = 8;

class Product {
  public:
    Product(const MatrixView<const float>& left, const MatrixView<const float>& right, float* d,
            const Kernels& kernels, int threads)
        : rows_(left.rows),
          cols_(right.cols),
          d_(d),
          kernels_(kernels),
          threads_(threads),
          left_(left, kernels, true),
          right_(right, kernels, false) {}

    Seen run() {
        parallel_for(threads_, left_.items() + right_.items(), [&](std::int64_t item) {
            if (item < left_.items()) {
                left_.pack(item);
            } else {
                right_.pack(item - left_.items());
            }
        });
        if (!left_.finite() || !right_.finite()) return {!left_.finite(), !right_.finite(), false};
        const std::int64_t row_blocks = ceil_div(rows_, kRowBlock);
        const std::int64_t step = std::clamp<std::int64_t>(right_.groups() / threads_, 1, kPanels);
        parallel_for(threads_, row_blocks * ceil_div(right_.groups(), step),
                     [&](std::int64_t item) {
                         const std::int64_t panel = item / row_blocks * step;
                         block(item % row_blocks * kRowBlock, panel,
                               std::min(step, right_.groups() - panel));
                     });
        return {false, false, overflowed_};
    }

  private:
    // c [panel][row][lane].
    void block(std::int64_t row, std::int64_t panel, std::int64_t panels) {
        const std::int64_t rows = std::min(kRowBlock, rows_ - row);
        const std::int64_t size = rows * kernels_.lanes;
        const Buffer<float> c(panels * size);
        std::fill(c.get(), c.get() + panels * size, 0.0F);
        for (std::int64_t k = 0; k < left_.blocks(); k += kDepth) {
            for (std::int64_t p = 0; p < panels; ++p) strips(row, rows, panel + p, k, &c[p * size]);
        }
        for (std::int64_t p = 0; p < panels; ++p) store(row, rows, panel + p, &c[p * size]);
    }

    void strips(std::int64_t row, std::int64_t rows, std::int64_t panel, std::int64_t k,
                float* c) const {
        const std::int64_t blocks = std::min(kDepth, left_.blocks() - k);
        const std::int64_t height = kernels_.strip_rows;
        for (std::int64_t i = 0; i < rows; i += height) {
            const std::int64_t strip = (row + i) / height;
            kernels_.tile[std::min(height, rows - i) - 1]({
                left_.digits_at(strip, k),
                left_.exponents_at(strip, k),
                left_.spans_at(strip, k),
                right_.digits_at(panel, k),
                right_.exponents_at(panel, k),
                right_.spans_at(panel, k),
                c + i * kernels_.lanes,
                blocks,
            });
        }
    }

    void store(std::int64_t row, std::int64_t rows, std::int64_t panel, const float* c) {
        const std::int64_t lanes = kernels_.lanes;
        const std::int64_t cols = std::min(lanes, cols_ - panel * lanes);
        bool finite = true;
        for (std::int64_t i = 0; i < rows; ++i) {
            float* out = d_ + (row + i) * cols_ + panel * lanes;
            for (std::int64_t j = 0; j < cols; ++j) {
                const float x = c[i * lanes + j];
                finite = finite && std::isfinite(x);
                out[j] = x;
            }
        }
        if (!finite) overflowed_ = true;
    }

    const std::int64_t rows_;
    const std::int64_t cols_;
    float* const d_;
    const Kernels& kernels_;
    const int threads_;
    Packed left_;
    Packed right_;
    std::atomic<bool> overflowed_{false};
};

}  // namespace

Seen vector_product(const MatrixView<const float>& left, const MatrixView<const float>& right,
                    float* d, const Kernels& kernels, int threads) {
    return Product(left, right, d, kernels, threads).run();
}

}  // namespace bitwitness::exact
