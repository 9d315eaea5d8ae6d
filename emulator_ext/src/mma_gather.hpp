// Strided operand bits into a small dense block, whichever way the memory runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "bitwitness/matrix.hpp"

namespace bitwitness {

// Rows [row, row + rows) x columns [col, col + cols) of an operand.
struct Block {
    std::int64_t row;
    std::int64_t rows;
    std::int64_t col;
    std::int64_t cols;
};

template <class T>
void gather_view(const MatrixView<const T>& view, const Block& block, std::uint32_t* out) {
    const std::int64_t rows = std::clamp<std::int64_t>(view.rows - block.row, 0, block.rows);
    const std::int64_t cols = std::clamp<std::int64_t>(view.cols - block.col, 0, block.cols);
    if (rows < block.rows || cols < block.cols) {
        std::fill(out, out + block.rows * block.cols, 0U);
    }
    if (rows == 0 || cols == 0) return;
    const T* base = &view.at(block.row, block.col);
    if (view.col_stride == 1) {
        for (std::int64_t i = 0; i < rows; ++i) {
            const T* p = base + i * view.row_stride;
            for (std::int64_t j = 0; j < cols; ++j) out[i * block.cols + j] = p[j];
        }
    } else if (std::abs(view.row_stride) <= std::abs(view.col_stride)) {
        for (std::int64_t j = 0; j < cols; ++j) {
            const T* p = base + j * view.col_stride;
            for (std::int64_t i = 0; i < rows; ++i) {
                out[i * block.cols + j] = p[i * view.row_stride];
            }
        }
    } else {
        for (std::int64_t i = 0; i < rows; ++i) {
            const T* p = base + i * view.row_stride;
            for (std::int64_t j = 0; j < cols; ++j)
                out[i * block.cols + j] = p[j * view.col_stride];
        }
    }
}

// out[rows][cols] = the block's register bits, 0 outside the operand.
inline void gather(const Operand& operand, const Block& block, std::uint32_t* out) {
    with_view(operand, [&](const auto& view) { gather_view(view, block, out); });
}

}  // namespace bitwitness
