// The exact profile on the vector kernels. K is cut into slabs, for which both operands are
// packed; each work item then continues a block of rows of some panels, a few blocks of K at a
// time. Between slabs the sums rest in d.
#include "bitwitness/parallel.hpp"
#include "exact_packed.hpp"
#include "exact_product.hpp"

namespace bitwitness::exact {
namespace {

// The digits of kDepth blocks of one panel stay in L1, those of kRowBlock rows in L2; the
// latter is a whole number of strips.
constexpr std::int64_t kDepth = 4;
constexpr std::int64_t kRowBlock = 192;
constexpr std::int64_t kPanels = 8;
// Packed digits of a slab; more only if kDepth blocks need more.
constexpr std::int64_t kSlabBytes = 2 << 20;

// Blocks of K in a slab: a multiple of kDepth, unless all fit.
std::int64_t slab_blocks(std::int64_t lines, std::int64_t blocks) {
    const std::int64_t bytes = std::max<std::int64_t>(lines, 1) * kBlock * kDigits * 2;
    return std::min(blocks, std::max(kSlabBytes / bytes / kDepth * kDepth, kDepth));
}

// A block of rows of one panel, and its sums [rows][lanes].
struct Region {
    std::int64_t row;
    std::int64_t rows;
    std::int64_t panel;
    float* c;
};

class Product {
  public:
    Product(const MatrixView<const float>& left, const MatrixView<const float>& right, float* d,
            const Kernels& kernels, int threads)
        : rows_(left.rows),
          cols_(right.cols),
          blocks_(ceil_div(left.cols, kBlock)),
          slab_(slab_blocks(rows_ + cols_, blocks_)),
          d_(d),
          kernels_(kernels),
          threads_(threads),
          left_(left, kernels, true, slab_),
          right_(right, kernels, false, slab_) {}

    Seen run() {
        std::int64_t first = 0;
        do {  // once without any K, too: d becomes 0
            const std::int64_t blocks = std::min(slab_, blocks_ - first);
            pack(first, blocks);
            if (!left_.finite() || !right_.finite()) return {.operand = true};
            compute(first != 0, blocks);
            first += blocks;
        } while (first < blocks_);
        return {.product = overflowed_};
    }

  private:
    void pack(std::int64_t first, std::int64_t blocks) {
        parallel_for(threads_, left_.items() + right_.items(), [&](std::int64_t item) {
            if (item < left_.items()) {
                left_.pack(item, first, blocks);
            } else {
                right_.pack(item - left_.items(), first, blocks);
            }
        });
    }

    void compute(bool continued, std::int64_t blocks) {
        const std::int64_t row_blocks = ceil_div(rows_, kRowBlock);
        const std::int64_t step = std::clamp<std::int64_t>(right_.groups() / threads_, 1, kPanels);
        const std::int64_t items = row_blocks * ceil_div(right_.groups(), step);
        parallel_for(threads_, items, [&](std::int64_t item) {
            const std::int64_t row = item % row_blocks * kRowBlock;
            const std::int64_t rows = std::min(kRowBlock, rows_ - row);
            const std::int64_t panel = item / row_blocks * step;
            const std::int64_t panels = std::min(step, right_.groups() - panel);
            const std::int64_t size = rows * kernels_.lanes;
            const Buffer<float> c(panels * size);
            const auto each_panel = [&](auto&& use) {
                for (std::int64_t p = 0; p < panels; ++p) {
                    use(Region{row, rows, panel + p, &c[p * size]});
                }
            };
            each_panel([&](const Region& r) { load(r, continued); });
            for (std::int64_t k = 0; k < blocks; k += kDepth) {
                each_panel([&](const Region& r) { tiles(r, k, std::min(kDepth, blocks - k)); });
            }
            each_panel([&](const Region& r) { store(r); });
        });
    }

    void tiles(const Region& region, std::int64_t k, std::int64_t blocks) const {
        const std::int64_t height = kernels_.strip_rows;
        for (std::int64_t i = 0; i < region.rows; i += height) {
            const std::int64_t strip = (region.row + i) / height;
            kernels_.tile[std::min(height, region.rows - i) - 1]({
                left_.digits_at(strip, k),
                left_.exponents_at(strip, k),
                left_.spans_at(strip, k),
                right_.digits_at(region.panel, k),
                right_.exponents_at(region.panel, k),
                right_.spans_at(region.panel, k),
                region.c + i * kernels_.lanes,
                blocks,
            });
        }
    }

    // Columns of the region that exist, and where its row i lies in d.
    std::int64_t columns_of(const Region& region) const {
        return std::min<std::int64_t>(kernels_.lanes, cols_ - region.panel * kernels_.lanes);
    }
    float* row_of(const Region& region, std::int64_t i) const {
        return d_ + (region.row + i) * cols_ + region.panel * kernels_.lanes;
    }

    void load(const Region& region, bool continued) const {
        std::fill(region.c, region.c + region.rows * kernels_.lanes, 0.0F);
        if (!continued) return;
        for (std::int64_t i = 0; i < region.rows; ++i) {
            std::copy_n(row_of(region, i), columns_of(region), region.c + i * kernels_.lanes);
        }
    }

    void store(const Region& region) {
        bool finite = true;
        for (std::int64_t i = 0; i < region.rows; ++i) {
            float* out = row_of(region, i);
            for (std::int64_t j = 0; j < columns_of(region); ++j) {
                out[j] = region.c[i * kernels_.lanes + j];
                finite = finite && std::isfinite(out[j]);
            }
        }
        if (!finite) overflowed_ = true;
    }

    const std::int64_t rows_;
    const std::int64_t cols_;
    const std::int64_t blocks_;
    const std::int64_t slab_;
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
