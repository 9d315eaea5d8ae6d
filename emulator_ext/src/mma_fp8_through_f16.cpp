#include <algorithm>

#include "bitwitness/other_engines.hpp"
#include "bitwitness/parallel.hpp"
#include "mma_buffer.hpp"
#include "mma_pack.hpp"

namespace bitwitness {
namespace {

constexpr std::int64_t kInstructionDepth = 32;

// Where product k of 32 goes: {0, 1} of every four to the first half, {2, 3} to the second.
std::int64_t position(std::int64_t k) { return k % 4 / 2 * 16 + k / 4 * 2 + k % 2; }

// Every FP8 number is an f16 number, and FP8 subnormals become normal.
std::uint16_t to_f16(Format format, std::uint8_t bits) {
    if (format == Format::e5m2) return static_cast<std::uint16_t>(bits << 8);
    const auto sign = static_cast<std::uint16_t>((bits & 0x80) << 8);
    const std::uint16_t magnitude = bits & 0x7f;
    if (magnitude == 0x7f) return static_cast<std::uint16_t>(sign | 0x7e00);
    if (magnitude >= 8) return static_cast<std::uint16_t>(sign | ((magnitude << 7) + (8 << 10)));
    constexpr std::uint16_t subnormals[8] = {0,      0x1800, 0x1c00, 0x1e00,
                                             0x2000, 0x2100, 0x2200, 0x2300};
    return static_cast<std::uint16_t>(sign | subnormals[magnitude]);
}

// Rows of an FP8 operand in f16, K permuted and padded by zeros to whole instructions.
struct Widened {
    Buffer<std::uint16_t> bits;
    Operand operand;

    Widened(const Operand& x, int threads)
        : bits(x.rows * round_up(x.cols, kInstructionDepth)), operand{} {
        const std::int64_t depth = round_up(x.cols, kInstructionDepth);
        const auto view = x.view<std::uint8_t>();
        parallel_for(threads, x.rows, [&](std::int64_t i) {
            std::uint16_t* out = bits.get() + i * depth;
            std::fill(out, out + depth, std::uint16_t{0});
            for (std::int64_t k = 0; k < x.cols; ++k) {
                const std::int64_t base = k / kInstructionDepth * kInstructionDepth;
                out[base + position(k - base)] = to_f16(x.format, view.at(i, k));
            }
        });
        operand = {bits.get(), x.rows, depth, depth, 1, Format::f16};
    }
};

}  // namespace

RegionCounts matmul_fp8_through_f16(const MatmulCall& call) {
    const Widened left(call.left, call.threads);
    const Widened right(call.right.transposed(), call.threads);
    MatmulCall halves = call;
    halves.left = left.operand;
    halves.right = right.operand.transposed();
    halves.block = kInstructionDepth;
    return matmul(halves);
}

RegionCounts dot_fp8_through_f16(const DotCall& call) {
    const Widened left(call.left, 1);
    const Widened right(call.right, 1);
    DotCall halves = call;
    halves.left = left.operand;
    halves.right = right.operand;
    halves.block = kInstructionDepth;
    return dot(halves);
}

}  // namespace bitwitness
