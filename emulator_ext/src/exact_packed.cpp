#include "exact_packed.hpp"

#include "mma_gather.hpp"

namespace bitwitness::exact {
namespace {

constexpr std::int64_t kMaxWidth = 16;
// Rows gathered together: a transposed operand's cache lines are then read once.
constexpr std::int64_t kGatherRows = 24;

Operand operand_of(const MatrixView<const float>& x) {
    return {x.data, x.rows, x.cols, x.row_stride, x.col_stride, Format::f32};
}

}  // namespace

Packed::Packed(const MatrixView<const float>& x, const Kernels& kernels, bool left,
               std::int64_t capacity)
    : operand_(operand_of(x)),
      kernels_(kernels),
      left_(left),
      width_(left ? kernels.strip_rows : kernels.lanes),
      groups_(ceil_div(left ? x.rows : x.cols, width_)),
      capacity_(capacity),
      groups_per_item_(left ? kGatherRows / width_ : 1),
      digits_(groups_ * capacity * width_ * kPairs * kDigits),
      exponents_(groups_ * capacity * width_),
      spans_(groups_ * capacity) {}

void Packed::pack(std::int64_t item, std::int64_t first_block, std::int64_t blocks) {
    const std::int64_t first = item * groups_per_item_;
    const std::int64_t count = std::min(groups_per_item_, groups_ - first);
    for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t k = (first_block + block) * kBlock;
        if (left_) {
            pack_strips(first, count, k, block);
        } else {
            pack_panel(first, k, block);
        }
    }
}

bool Packed::note(std::int64_t at, const std::uint32_t* greatest) const {
    std::uint32_t most = 0;
    Span span{packed_exponent(greatest[0]), packed_exponent(greatest[0])};
    for (std::int64_t i = 0; i < width_; ++i) {
        const int exponent = packed_exponent(greatest[i]);
        exponents_[at * width_ + i] = exponent;
        span = {std::min(span.least, exponent), std::max(span.greatest, exponent)};
        most = std::max(most, greatest[i]);
    }
    spans_[at] = span;
    return most < kInfinity;
}

void Packed::pack_strips(std::int64_t first, std::int64_t count, std::int64_t k,
                         std::int64_t block) {
    alignas(kAlignment) std::uint32_t raw[kGatherRows * kBlock];
    gather(operand_, {first * width_, count * width_, k, kBlock}, raw);
    for (std::int64_t strip = 0; strip < count; ++strip) {
        const std::uint32_t* lines = raw + strip * width_ * kBlock;
        std::uint32_t greatest[kMaxWidth];
        for (std::int64_t i = 0; i < width_; ++i) {
            greatest[i] = kernels_.greatest(lines + i * kBlock);
        }
        const std::int64_t at = index(first + strip, block);
        if (!note(at, greatest)) {
            finite_ = false;
            return;
        }
        std::int32_t* out = digits_.get() + at * width_ * kPairs * kDigits;
        for (std::int64_t i = 0; i < width_; ++i) {
            kernels_.split_left(lines + i * kBlock, factors_of(exponents_[at * width_ + i]),
                                out + i * kDigits * kPairs);
        }
    }
}

void Packed::pack_panel(std::int64_t panel, std::int64_t k, std::int64_t block) {
    alignas(kAlignment) std::uint32_t raw[kBlock * kMaxWidth];
    gather(operand_, {k, kBlock, panel * width_, width_}, raw);
    alignas(kAlignment) std::uint32_t greatest[kMaxWidth];
    kernels_.greatest_of_columns(raw, greatest);
    const std::int64_t at = index(panel, block);
    if (!note(at, greatest)) {
        finite_ = false;
        return;
    }
    float first[kMaxWidth];
    float second[kMaxWidth];
    for (std::int64_t j = 0; j < width_; ++j) {
        const Factors factors = factors_of(exponents_[at * width_ + j]);
        first[j] = factors.first;
        second[j] = factors.second;
    }
    kernels_.split_right(raw, first, second, digits_.get() + at * width_ * kPairs * kDigits);
}

}  // namespace bitwitness::exact
