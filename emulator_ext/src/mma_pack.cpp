#include "mma_pack.hpp"

#include <algorithm>
#include <limits>

#include "mma_gather.hpp"

namespace bitwitness {
namespace {

// Narrow formats need no range before decoding: their scale is a constant.
bool is_narrow(Format format) { return layout_of(format).exponent_bits < 8; }

// Calls use(k, depth) for consecutive blocks that cover [0, total).
template <class Use>
void for_depths(std::int64_t total, Use&& use) {
    for (std::int64_t k = 0; k < total; k += kPackDepth) use(k, std::min(kPackDepth, total - k));
}

}  // namespace

Panels cheapest_panels(const KernelTable& table, std::int64_t rows, std::int64_t cols) {
    Panels best{&table.wide, false};
    double least = 0.0;
    for (const Kernels* kernels : {&table.wide, &table.narrow}) {
        // A narrow panel makes less of each entry of the left operand.
        const double price = kernels == &table.wide ? 1.0 : 1.1;
        for (const bool on_its_side : {false, true}) {
            const std::int64_t across = on_its_side ? rows : cols;
            const std::int64_t along = on_its_side ? cols : rows;
            const double cost = price * static_cast<double>(along) *
                                static_cast<double>(round_up(across, kernels->panel_width));
            if (least != 0.0 && cost >= least) continue;
            least = cost;
            best = {kernels, on_its_side};
        }
    }
    return best;
}

ExponentRange exponent_range(const MagnitudeRange& magnitudes, Format format) {
    const FormatLayout f = layout_of(format);
    const std::uint32_t top = (1U << f.exponent_bits) - 1U;
    const std::uint32_t first_special =
        f.has_infinity ? top << f.fraction_bits
                       : (top << f.fraction_bits) | ((1U << f.fraction_bits) - 1U);
    const bool finite = magnitudes.most < first_special;
    if (is_narrow(format)) return {f.emin(), f.emax(), finite, finite};
    if (magnitudes.most == 0U) return {};
    const auto low = static_cast<std::int32_t>((magnitudes.least_less_one + 1U) >> f.fraction_bits);
    const auto high = static_cast<std::int32_t>(magnitudes.most >> f.fraction_bits);
    return {std::max(low, 1) - f.bias(), high - f.bias(), finite, finite && low > 0};
}

void LeftPack::pack(const Kernels& kernels, const Operand& left, std::int64_t first, int pre) {
    const std::int64_t rows = std::min(kPackRows, left.rows - first);
    std::uint32_t raw[kPackRows * kPackDepth];
    MagnitudeRange magnitudes[kPackRows];
    const auto scan = [&](std::int64_t, std::int64_t depth) {
        for (std::int64_t i = 0; i < rows; ++i) {
            kernels.scan_line(raw + i * depth, depth, left.format, magnitudes[i]);
        }
    };
    const auto set_ranges = [&] {
        for (std::int64_t i = 0; i < rows; ++i) {
            ranges[static_cast<std::size_t>(first + i)] =
                exponent_range(magnitudes[i], left.format);
        }
    };
    const auto load = [&](std::int64_t k, std::int64_t depth) {
        gather(left, {first, rows, k, depth}, raw);
    };
    const bool narrow = is_narrow(left.format);
    if (!narrow) {
        for_depths(plane.depth, [&](std::int64_t k, std::int64_t depth) {
            load(k, depth);
            scan(k, depth);
        });
    }
    set_ranges();
    for_depths(plane.depth, [&](std::int64_t k, std::int64_t depth) {
        load(k, depth);
        if (narrow) scan(k, depth);
        for (std::int64_t i = 0; i < rows; ++i) {
            kernels.decode_left(raw + i * depth, depth, left.format,
                                ranges[static_cast<std::size_t>(first + i)].high, pre,
                                plane.at(first + i, k));
        }
    });
    set_ranges();
}

RightPack::RightPack(const Kernels& kernels, std::int64_t panels, std::int64_t padded_depth)
    : plane(kernels.panel_width, panels, padded_depth),
      highs(static_cast<std::size_t>(panels * kernels.panel_width)),
      ranges(static_cast<std::size_t>(panels)),
      spans(static_cast<std::size_t>(panels)) {}

void RightPack::summarize(const std::vector<ExponentRange>& columns, std::int64_t panel) {
    ExponentRange total{std::numeric_limits<std::int32_t>::max(),
                        std::numeric_limits<std::int32_t>::min(), true, true};
    std::int32_t span = 0;
    std::int32_t* high = highs.data() + panel * plane.width;
    for (const ExponentRange& column : columns) {
        *high++ = column.high;
        total = {std::min(total.low, column.low), std::max(total.high, column.high),
                 total.finite && column.finite, total.normal && column.normal};
        span = std::max(span, column.span());
    }
    ranges[static_cast<std::size_t>(panel)] = total;
    spans[static_cast<std::size_t>(panel)] = span;
}

void RightPack::pack(const Kernels& kernels, const Operand& right, std::int64_t panel) {
    const std::int64_t width = plane.width;
    const Buffer<std::uint32_t> raw(kPackDepth * width);
    std::vector<std::uint32_t> least(static_cast<std::size_t>(width), ~0U);
    std::vector<std::uint32_t> most(static_cast<std::size_t>(width), 0U);
    const auto load = [&](std::int64_t k, std::int64_t depth) {
        gather(right, {k, depth, panel * width, width}, raw.get());
    };
    const auto scan = [&](std::int64_t depth) {
        kernels.scan_panel(raw.get(), depth, right.format, least.data(), most.data());
    };
    const auto set_ranges = [&] {
        std::vector<ExponentRange> columns;
        for (std::size_t j = 0; j < static_cast<std::size_t>(width); ++j) {
            columns.push_back(exponent_range({least[j], most[j]}, right.format));
        }
        summarize(columns, panel);
    };
    const bool narrow = is_narrow(right.format);
    if (!narrow) {
        for_depths(plane.depth, [&](std::int64_t k, std::int64_t depth) {
            load(k, depth);
            scan(depth);
        });
    }
    set_ranges();
    for_depths(plane.depth, [&](std::int64_t k, std::int64_t depth) {
        load(k, depth);
        if (narrow) scan(depth);
        kernels.decode_right(raw.get(), depth, right.format, highs.data() + panel * width,
                             plane.values_at(panel, k), plane.exponents_at(panel, k));
    });
    set_ranges();
}

void WidePack::pack_left(const Kernels& kernels, const Operand& operand, std::int64_t first) {
    const std::int64_t rows = std::min(kPackRows, operand.rows - first);
    std::uint32_t raw[kPackRows * kPackDepth];
    for_depths(left.depth, [&](std::int64_t k, std::int64_t depth) {
        gather(operand, {first, rows, k, depth}, raw);
        for (std::int64_t i = 0; i < rows; ++i) {
            kernels.decode_wide_left(raw + i * depth, depth, operand.format, left.at(first + i, k));
        }
    });
}

void WidePack::pack_right(const Kernels& kernels, const Operand& operand, std::int64_t panel) {
    const std::int64_t width = right.width;
    const Buffer<std::uint32_t> raw(kPackDepth * width);
    for_depths(right.depth, [&](std::int64_t k, std::int64_t depth) {
        gather(operand, {k, depth, panel * width, width}, raw.get());
        kernels.decode_wide_right(raw.get(), depth, operand.format, right.values_at(panel, k),
                                  right.exponents_at(panel, k));
    });
}

}  // namespace bitwitness
