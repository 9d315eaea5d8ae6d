// Strided views of operands.
#pragma once

#include <cstdint>

#include "bitwitness/format.hpp"

namespace bitwitness {

// rows x cols elements; strides count elements and may be zero or negative.
template <class T>
struct MatrixView {
    T* data;
    std::int64_t rows;
    std::int64_t cols;
    std::int64_t row_stride;
    std::int64_t col_stride;

    T& at(std::int64_t row, std::int64_t col) const {
        return data[row * row_stride + col * col_stride];
    }
    MatrixView transposed() const { return {data, cols, rows, col_stride, row_stride}; }
};

// An operand whose element type is known only by its format.
struct Operand {
    const void* data;
    std::int64_t rows;
    std::int64_t cols;
    std::int64_t row_stride;
    std::int64_t col_stride;
    Format format;

    template <class T>
    MatrixView<const T> view() const {
        return {static_cast<const T*>(data), rows, cols, row_stride, col_stride};
    }
    Operand transposed() const { return {data, cols, rows, col_stride, row_stride, format}; }
    // Rows [first, first + count).
    Operand row_piece(std::int64_t first, std::int64_t count) const {
        const auto* bytes = static_cast<const char*>(data);
        const std::int64_t offset = first * row_stride * layout_of(format).bytes;
        return {bytes + offset, count, cols, row_stride, col_stride, format};
    }
    Operand col_piece(std::int64_t first, std::int64_t count) const {
        return transposed().row_piece(first, count).transposed();
    }
};

// Calls use(view) with a view of the operand's register type.
template <class Use>
decltype(auto) with_view(const Operand& operand, Use&& use) {
    switch (layout_of(operand.format).bytes) {
        case 1:
            return use(operand.view<std::uint8_t>());
        case 2:
            return use(operand.view<std::uint16_t>());
        default:
            return use(operand.view<std::uint32_t>());
    }
}

}  // namespace bitwitness
