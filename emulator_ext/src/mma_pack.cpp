#include "mma_pack.hpp"

#include <algorithm>
#include <limits>

namespace bitwitness {
namespace {

constexpr std::int64_t kGatherDepth = 32;

template <class T>
ExponentRange scan(const MatrixView<const T>& view, std::int64_t row, const FormatLayout& f) {
    constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();
    const std::uint32_t magnitude_mask = (1U << (f.exponent_bits + f.fraction_bits)) - 1U;
    std::uint32_t least = none;
    std::uint32_t most = 0;
    const T* p = &view.at(row, 0);
    for (std::int64_t k = 0; k < view.cols; ++k, p += view.col_stride) {
        const std::uint32_t magnitude =
            (static_cast<std::uint32_t>(*p) >> f.dropped_bits) & magnitude_mask;
        most = std::max(most, magnitude);
        least = std::min(least, magnitude - 1U);  // zero wraps to the top and never wins
    }
    if (most == 0U) return {};
    const auto high = static_cast<std::int32_t>(most >> f.fraction_bits);
    const auto low = static_cast<std::int32_t>((least + 1U) >> f.fraction_bits);
    const std::uint32_t largest_finite =
        f.has_infinity ? ((1U << f.exponent_bits) - 1U) << f.fraction_bits : magnitude_mask;
    const bool narrow = f.exponent_bits < 8;
    const bool clean = most < largest_finite && (narrow || low > 0);
    if (narrow) return {f.emin(), f.emax(), clean};
    return {std::max(low, 1) - f.bias(), high - f.bias(), clean};
}

// out[k][j] = right[k0 + k][j0 + j] for a block, zero outside; loops follow the memory.
template <class T>
void gather(const MatrixView<const T>& right, std::int64_t k0, std::int64_t depth, std::int64_t j0,
            std::int64_t width, std::uint32_t* out) {
    const std::int64_t cols = std::min(width, right.cols - j0);
    const std::int64_t rows = std::clamp<std::int64_t>(right.rows - k0, 0, depth);
    if (cols < width || rows < depth) std::fill(out, out + depth * width, 0U);
    if (right.col_stride == 1) {
        for (std::int64_t k = 0; k < rows; ++k) {
            const T* p = &right.at(k0 + k, j0);
            for (std::int64_t j = 0; j < cols; ++j) out[k * width + j] = p[j];
        }
        return;
    }
    for (std::int64_t j = 0; j < cols; ++j) {
        const T* p = &right.at(k0, j0 + j);
        for (std::int64_t k = 0; k < rows; ++k) out[k * width + j] = p[k * right.row_stride];
    }
}

}  // namespace

ExponentRange range_of_row(const Operand& operand, std::int64_t row) {
    if (operand.cols == 0) return {};
    const FormatLayout f = layout_of(operand.format);
    return with_view(operand, [&](const auto& view) { return scan(view, row, f); });
}

void LeftPack::pack_row(const Kernels& kernels, const Operand& left, std::int64_t i, int pre) {
    const ExponentRange range = range_of_row(left, i);
    ranges[static_cast<std::size_t>(i)] = range;
    std::uint32_t raw[kGatherDepth];
    for (std::int64_t k = 0; k < depth; k += kGatherDepth) {
        const std::int64_t count = std::min(kGatherDepth, depth - k);
        with_view(left, [&](const auto& view) {
            for (std::int64_t n = 0; n < count; ++n) {
                raw[n] = k + n < view.cols ? view.at(i, k + n) : 0U;
            }
        });
        LeftEntry* out = entries.get() + i * depth + k;
        kernels.decode_left(raw, count, left.format, range.high, pre, out);
    }
}

RightPack::RightPack(const Kernels& kernels, std::int64_t panels, std::int64_t padded_depth)
    : width(kernels.panel_width),
      depth(padded_depth),
      values(panels * padded_depth * width),
      exponents(panels * padded_depth * width),
      highs(static_cast<std::size_t>(panels * width)),
      ranges(static_cast<std::size_t>(panels)),
      spans(static_cast<std::size_t>(panels)) {}

void RightPack::pack_panel(const Kernels& kernels, const Operand& right, std::int64_t panel) {
    const std::int64_t j0 = panel * width;
    const Operand columns = right.transposed();
    std::int32_t* high = highs.data() + j0;
    ExponentRange total{std::numeric_limits<std::int32_t>::max(),
                        std::numeric_limits<std::int32_t>::min(), true};
    std::int32_t span = 0;
    for (int j = 0; j < width; ++j) {
        const ExponentRange range =
            j0 + j < right.cols ? range_of_row(columns, j0 + j) : ExponentRange{};
        high[j] = range.high;
        total = {std::min(total.low, range.low), std::max(total.high, range.high),
                 total.clean && range.clean};
        span = std::max(span, range.span());
    }
    ranges[static_cast<std::size_t>(panel)] = total;
    spans[static_cast<std::size_t>(panel)] = span;
    Buffer<std::uint32_t> raw(kGatherDepth * width);
    for (std::int64_t k = 0; k < depth; k += kGatherDepth) {
        const std::int64_t count = std::min(kGatherDepth, depth - k);
        with_view(right, [&](const auto& view) { gather(view, k, count, j0, width, raw.get()); });
        for (std::int64_t n = 0; n < count; ++n) {
            const std::int64_t at = (panel * depth + k + n) * width;
            kernels.decode_right(raw.get() + n * width, right.format, high, values.get() + at,
                                 exponents.get() + at);
        }
    }
}

}  // namespace bitwitness
