// The exact profile as it is written down: row by row, element by element, in plain C++.
#include <vector>

#include "bitwitness/parallel.hpp"
#include "exact_product.hpp"

namespace bitwitness::exact {
namespace {

// A row of A or a column of B: digits with K padded to whole blocks, one exponent a block.
struct Line {
    std::vector<std::int16_t> digits[kDigits];
    std::vector<int> exponents;
    bool finite = true;
};

std::uint32_t magnitude_of(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffU; }

Line split(const MatrixView<const float>& x, std::int64_t row) {
    Line line;
    const std::int64_t blocks = (x.cols + kBlock - 1) / kBlock;
    for (auto& d : line.digits) d.resize(static_cast<std::size_t>(blocks * kBlock));
    for (std::int64_t first = 0; first < x.cols; first += kBlock) {
        const std::int64_t last = std::min(first + kBlock, x.cols);
        std::uint32_t most = 0;
        for (std::int64_t k = first; k < last; ++k)
            most = std::max(most, magnitude_of(x.at(row, k)));
        line.exponents.push_back(exponent_of(most));
        line.finite = line.finite && most < kInfinity;
        if (!line.finite) return line;
        const Factors factors = factors_of(line.exponents.back());
        for (std::int64_t k = first; k < last; ++k) {
            const float y = x.at(row, k) * factors.first * factors.second;
            const Digits d = digits_of(static_cast<std::int32_t>(std::rint(y)));
            const auto at = static_cast<std::size_t>(k);
            line.digits[0][at] = static_cast<std::int16_t>(d.d0);
            line.digits[1][at] = static_cast<std::int16_t>(d.d1);
            line.digits[2][at] = static_cast<std::int16_t>(d.d2);
        }
    }
    return line;
}

std::vector<Line> split_all(const MatrixView<const float>& x, int threads) {
    std::vector<Line> lines(static_cast<std::size_t>(x.rows));
    parallel_for(threads, x.rows,
                 [&](std::int64_t i) { lines[static_cast<std::size_t>(i)] = split(x, i); });
    return lines;
}

std::int32_t digit_sum(const Line& a, const Line& b, std::size_t first, int o) {
    std::int32_t sum = 0;
    for (int i = 0; i <= o; ++i) {
        const std::int16_t* x = a.digits[i].data() + first;
        const std::int16_t* y = b.digits[o - i].data() + first;
        for (std::int64_t k = 0; k < kBlock; ++k) sum += x[k] * y[k];
    }
    return sum;
}

float element(const Line& a, const Line& b) {
    float c = 0.0F;
    for (std::size_t block = 0; block < a.exponents.size(); ++block) {
        for (int o = 2; o >= 0; --o) {
            const std::int32_t sum = digit_sum(a, b, block * kBlock, o);
            c = combine(c, sum, unit_of(a.exponents[block], b.exponents[block], o));
        }
    }
    return c;
}

bool all_finite(const std::vector<Line>& lines) {
    return std::all_of(lines.begin(), lines.end(), [](const Line& x) { return x.finite; });
}

}  // namespace

Seen reference_product(const MatrixView<const float>& left, const MatrixView<const float>& right,
                       float* d, int threads) {
    const std::vector<Line> rows = split_all(left, threads);
    const std::vector<Line> columns = split_all(right.transposed(), threads);
    if (!all_finite(rows) || !all_finite(columns)) return {.operand = true};
    std::atomic<bool> overflowed{false};
    parallel_for(threads, left.rows, [&](std::int64_t i) {
        for (std::int64_t j = 0; j < right.cols; ++j) {
            const float c =
                element(rows[static_cast<std::size_t>(i)], columns[static_cast<std::size_t>(j)]);
            if (!std::isfinite(c)) overflowed = true;
            d[i * right.cols + j] = c;
        }
    });
    return {.product = overflowed};
}

}  // namespace bitwitness::exact
