// FP64 and 8-bit integer products: panels of packed columns, blocks of packed rows.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "bitwitness/other_engines.hpp"
#include "bitwitness/parallel.hpp"
#include "mma_buffer.hpp"
#include "mma_kernels.hpp"
#include "mma_pack.hpp"

namespace bitwitness {
namespace {

constexpr std::int64_t kRows = 32;
constexpr int kPortablePanel = 32;

void double_chain(const DoubleCall& call) {
    for (std::int64_t r = 0; r < call.rows; ++r) {
        double* out = call.accumulators + r * kPortablePanel;
        for (std::int64_t k = 0; k < call.depth; ++k) {
            const double a = call.left[r * call.depth + k];
            const double* b = call.right + k * kPortablePanel;
            for (int j = 0; j < kPortablePanel; ++j) out[j] = std::fma(a, b[j], out[j]);
        }
    }
}

void integer_chain(const IntegerCall& call) {
    const auto low = [](std::int32_t pair) { return static_cast<std::int16_t>(pair); };
    const auto high = [](std::int32_t pair) { return static_cast<std::int16_t>(pair >> 16); };
    for (std::int64_t r = 0; r < call.rows; ++r) {
        std::int32_t* out = call.accumulators + r * kPortablePanel;
        for (std::int64_t p = 0; p < call.pairs; ++p) {
            const std::int32_t a = call.left[r * call.pairs + p];
            for (int j = 0; j < kPortablePanel; ++j) {
                const std::int32_t b = call.right[p * kPortablePanel + j];
                const std::int32_t dot = low(a) * low(b) + high(a) * high(b);
                out[j] = static_cast<std::int32_t>(static_cast<std::uint32_t>(out[j]) +
                                                   static_cast<std::uint32_t>(dot));
            }
        }
    }
}

// Calls body(first row, row count, accumulators) for each block of rows of one panel, with
// the accumulators loaded from c and stored to d around it.
template <class T, class Body>
void for_row_blocks(const T* c, T* d, std::int64_t rows, std::int64_t cols, std::int64_t j0,
                    std::int64_t width, Body&& body) {
    const std::int64_t count = std::min(width, cols - j0);
    const Buffer<T> acc(kRows * width);
    for (std::int64_t first = 0; first < rows; first += kRows) {
        const std::int64_t block = std::min(kRows, rows - first);
        std::fill(acc.get(), acc.get() + block * width, T{0});
        for (std::int64_t i = 0; i < block && c != nullptr; ++i) {
            std::copy_n(c + (first + i) * cols + j0, count, acc.get() + i * width);
        }
        body(first, block, acc.get());
        for (std::int64_t i = 0; i < block; ++i) {
            std::copy_n(acc.get() + i * width, count, d + (first + i) * cols + j0);
        }
    }
}

std::int16_t integer_at(const Operand& x, std::int64_t i, std::int64_t k) {
    if (i >= x.rows || k >= x.cols) return 0;
    const std::uint8_t bits = x.view<std::uint8_t>().at(i, k);
    return x.format == Format::s8 ? static_cast<std::int8_t>(bits) : bits;
}

std::int32_t pair_at(const Operand& x, std::int64_t i, std::int64_t pair) {
    const auto low = static_cast<std::uint16_t>(integer_at(x, i, 2 * pair));
    const auto high = static_cast<std::uint16_t>(integer_at(x, i, 2 * pair + 1));
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(high) << 16 | low);
}

std::int64_t canonicalise(double* d, std::int64_t count) {
    std::int64_t special = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        if (std::isnan(d[i])) d[i] = std::bit_cast<double>(0x7fffffffffffffffU);
        special += std::isfinite(d[i]) ? 0 : 1;
    }
    return special;
}

}  // namespace

std::int64_t matmul_f64(const DoubleMatmulCall& call) {
    const KernelTable* k = kernels(call.path);
    const std::int64_t width = k != nullptr ? k->dense.panel_width : kPortablePanel;
    const auto chain = k != nullptr ? k->dense.double_chain : double_chain;
    const std::int64_t depth = call.left.cols;
    const std::int64_t cols = call.right.cols;
    parallel_for(call.threads, round_up(cols, width) / width, [&](std::int64_t panel) {
        const std::int64_t j0 = panel * width;
        const Buffer<double> right(depth * width);
        const Buffer<double> left(kRows * depth);
        for (std::int64_t p = 0; p < depth; ++p) {
            for (std::int64_t j = 0; j < width; ++j) {
                right[p * width + j] = j0 + j < cols ? call.right.at(p, j0 + j) : 0.0;
            }
        }
        const auto block = [&](std::int64_t first, std::int64_t rows, double* acc) {
            for (std::int64_t i = 0; i < rows; ++i) {
                for (std::int64_t p = 0; p < depth; ++p) {
                    left[i * depth + p] = call.left.at(first + i, p);
                }
            }
            chain({left.get(), right.get(), acc, rows, depth});
        };
        for_row_blocks(call.c, call.d, call.left.rows, cols, j0, width, block);
    });
    return canonicalise(call.d, call.left.rows * cols);
}

std::int64_t dot_f64(const DoubleMatmulCall& call) {
    for (std::int64_t n = 0; n < call.left.rows; ++n) {
        double sum = call.c != nullptr ? call.c[n] : 0.0;
        for (std::int64_t k = 0; k < call.left.cols; ++k) {
            sum = std::fma(call.left.at(n, k), call.right.at(n, k), sum);
        }
        call.d[n] = sum;
    }
    return canonicalise(call.d, call.left.rows);
}

void matmul_integer(const IntegerMatmulCall& call) {
    const KernelTable* k = kernels(call.path);
    const std::int64_t width = k != nullptr ? k->dense.panel_width : kPortablePanel;
    const auto chain = k != nullptr ? k->dense.integer_chain : integer_chain;
    const std::int64_t pairs = (call.left.cols + 1) / 2;
    const Operand columns = call.right.transposed();
    const Buffer<std::int32_t> left(call.left.rows * pairs);
    parallel_for(call.threads, call.left.rows, [&](std::int64_t i) {
        for (std::int64_t p = 0; p < pairs; ++p) left[i * pairs + p] = pair_at(call.left, i, p);
    });
    parallel_for(call.threads, round_up(columns.rows, width) / width, [&](std::int64_t panel) {
        const std::int64_t j0 = panel * width;
        const Buffer<std::int32_t> right(pairs * width);
        for (std::int64_t p = 0; p < pairs; ++p) {
            for (std::int64_t j = 0; j < width; ++j) {
                right[p * width + j] = pair_at(columns, j0 + j, p);
            }
        }
        const auto block = [&](std::int64_t first, std::int64_t rows, std::int32_t* acc) {
            chain({left.get() + first * pairs, right.get(), acc, rows, pairs});
        };
        for_row_blocks(call.c, call.d, call.left.rows, columns.rows, j0, width, block);
    });
}

}  // namespace bitwitness
