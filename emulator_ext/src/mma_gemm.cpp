#include <algorithm>
#include <bit>
#include <cmath>

#include "bitwitness/gemm.hpp"
#include "bitwitness/matmul.hpp"
#include "bitwitness/parallel.hpp"
#include "mma_buffer.hpp"
#include "mma_heal.hpp"
#include "mma_kernels.hpp"
#include "mma_pack.hpp"
#include "mma_threads.hpp"

namespace bitwitness {
namespace {

constexpr std::int64_t kFmaRows = 64;

struct Pair {
    MatrixView<const float> left;
    MatrixView<const float> right;
    float* d;
};

Pair pair_of(const GemmCall& call, std::int64_t index) {
    const auto i = static_cast<std::size_t>(index);
    Pair pair{call.left, call.right, call.d + index * call.left.rows * call.right.cols};
    pair.left.data += call.left_offsets[i];
    pair.right.data += call.right_offsets[i];
    return pair;
}

// Row-major index of the first NaN or infinity, or -1.
std::int64_t first_nonfinite(const MatrixView<const float>& x) {
    for (std::int64_t i = 0; i < x.rows; ++i) {
        std::uint32_t most = 0;
        for (std::int64_t j = 0; j < x.cols; ++j) {
            most = std::max(most, std::bit_cast<std::uint32_t>(x.at(i, j)) & 0x7fffffffU);
        }
        if (most < kInfF32) continue;
        std::int64_t j = 0;
        while (std::isfinite(x.at(i, j))) ++j;
        return i * x.cols + j;
    }
    return -1;
}

// Round to nearest even; finite values beyond bf16's range become infinite.
std::uint16_t to_bf16(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// C-contiguous along the operand's tighter stride, so that both passes stream.
struct Bf16 {
    Buffer<std::uint16_t> bits;
    Operand operand;

    Bf16(const MatrixView<const float>& x, int threads) : bits(x.rows * x.cols), operand{} {
        const bool by_rows = std::abs(x.col_stride) <= std::abs(x.row_stride);
        const MatrixView<const float> lines = by_rows ? x : x.transposed();
        parallel_for(threads, lines.rows, [&](std::int64_t i) {
            std::uint16_t* out = bits.get() + i * lines.cols;
            const float* in = &lines.at(i, 0);
            if (lines.col_stride == 1) {
                for (std::int64_t j = 0; j < lines.cols; ++j) out[j] = to_bf16(in[j]);
            } else {
                for (std::int64_t j = 0; j < lines.cols; ++j)
                    out[j] = to_bf16(in[j * lines.col_stride]);
            }
        });
        operand = {bits.get(), lines.rows, lines.cols, lines.cols, 1, Format::bf16};
        if (!by_rows) operand = operand.transposed();
    }
};

void bf16_gemm(const Pair& pair, const GemmCall& call, int threads) {
    const Bf16 left(pair.left, threads);
    const Bf16 right(pair.right, threads);
    matmul({left.operand, right.operand, nullptr, pair.d, call.arithmetic, 0, false, call.path,
            threads, call.packing_bytes});
}

float fma_element(const Pair& pair, std::int64_t i, std::int64_t j) {
    float sum = 0.0F;
    for (std::int64_t k = 0; k < pair.left.cols; ++k) {
        sum = std::fma(pair.left.at(i, k), pair.right.at(k, j), sum);
    }
    return sum;
}

// One panel of columns: B's panel is packed once, A's rows in blocks.
void fma_panel(const Pair& pair, const DenseKernels& kernels, std::int64_t panel) {
    const std::int64_t width = kernels.panel_width;
    const std::int64_t depth = pair.left.cols;
    const std::int64_t cols = std::min(width, pair.right.cols - panel * width);
    const Buffer<float> right(depth * width);
    const Buffer<float> left(kFmaRows * depth);
    const Buffer<float> acc(kFmaRows * width);
    std::fill(right.get(), right.get() + depth * width, 0.0F);
    for (std::int64_t k = 0; k < depth; ++k) {
        for (std::int64_t j = 0; j < cols; ++j)
            right[k * width + j] = pair.right.at(k, panel * width + j);
    }
    for (std::int64_t first = 0; first < pair.left.rows; first += kFmaRows) {
        const std::int64_t rows = std::min(kFmaRows, pair.left.rows - first);
        std::fill(acc.get(), acc.get() + rows * width, 0.0F);
        for (std::int64_t i = 0; i < rows; ++i) {
            for (std::int64_t k = 0; k < depth; ++k)
                left[i * depth + k] = pair.left.at(first + i, k);
        }
        kernels.fma_chain({left.get(), depth, right.get(), acc.get(), rows, depth});
        for (std::int64_t i = 0; i < rows; ++i) {
            std::copy_n(acc.get() + i * width, cols,
                        pair.d + (first + i) * pair.right.cols + panel * width);
        }
    }
}

void fp32_gemm(const Pair& pair, const GemmCall& call, int threads) {
    if (const KernelTable* table = kernels(call.path)) {
        const DenseKernels* k = &table->dense;
        const std::int64_t panels = round_up(pair.right.cols, k->panel_width) / k->panel_width;
        parallel_for(threads, panels, [&](std::int64_t panel) { fma_panel(pair, *k, panel); });
        return;
    }
    parallel_for(threads, pair.left.rows, [&](std::int64_t i) {
        for (std::int64_t j = 0; j < pair.right.cols; ++j) {
            pair.d[i * pair.right.cols + j] = fma_element(pair, i, j);
        }
    });
}

std::optional<NonFinite> compute(const GemmCall& call, std::int64_t index, int threads) {
    const Pair pair = pair_of(call, index);
    const auto check = [&](const MatrixView<const float>& x, NonFinite::Where where) {
        const std::int64_t at = first_nonfinite(x);
        return at < 0 ? std::optional<NonFinite>{}
                      : NonFinite{where, index, at / x.cols, at % x.cols};
    };
    if (auto found = check(pair.left, NonFinite::Where::left)) return found;
    if (auto found = check(pair.right, NonFinite::Where::right)) return found;
    switch (call.profile) {
        case Profile::fp32:
            fp32_gemm(pair, call, threads);
            break;
        case Profile::bf16:
            bf16_gemm(pair, call, threads);
            break;
        case Profile::heal:
            heal_gemm(pair.left, pair.right, pair.d, call.arithmetic,
                      {call.path, threads, call.packing_bytes});
            break;
    }
    const std::int64_t cols = call.right.cols;
    return check({pair.d, call.left.rows, cols, cols, 1}, NonFinite::Where::product);
}

}  // namespace

std::optional<NonFinite> gemm(const GemmCall& call) {
    const auto batch = std::ssize(call.left_offsets);
    std::vector<std::optional<NonFinite>> found(static_cast<std::size_t>(batch));
    const int threads =
        useful_threads(call.threads, batch * call.left.rows, call.right.cols, call.left.cols);
    const bool outer = batch >= threads;  // else the threads work inside one product
    const int inner =
        outer ? 1 : useful_threads(threads, call.left.rows, call.right.cols, call.left.cols);
    parallel_for(outer ? threads : 1, batch, [&](std::int64_t i) {
        found[static_cast<std::size_t>(i)] = compute(call, i, inner);
    });
    for (const auto& f : found) {
        if (f) return f;
    }
    return {};
}

}  // namespace bitwitness
