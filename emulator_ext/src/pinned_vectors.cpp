// The pinned operators over whole flat vectors: clipping, AdamW, the ranks' sum, Philox.
#include "bitwitness/philox.h"
#include "pinned_rows_choice.hpp"

namespace bitwitness {

void sum_squares(const float* x, std::int64_t n, float* sum, int threads) {
    float lanes[kLanes];
    parallel_for(n < kGrain ? 1 : threads, kLanes / kLaneGroup, [&](std::int64_t group) {
        rows().square_lanes(x, n, static_cast<int>(group) * kLaneGroup, lanes);
    });
    *sum = rows().fold(lanes);
    check_finite("sum_squares", "sum", sum, 1, 1);
}

void clip(float sum_of_squares, float max_norm, float* norm, float* coefficient) {
    require_ieee_environment();
    *norm = sqrt_rn(sum_of_squares);
    *coefficient = clip_coefficient(*norm, max_norm);
    check_finite("clip_coefficient", "norm", norm, 1, 1);
    check_finite("clip_coefficient", "coefficient", coefficient, 1, 1);
}

void adamw(std::int64_t n, const float* p, const float* g, const float* m, const float* v,
           float coefficient, const float* scalars, AdamWHyper hyper, float* p1, float* m1,
           float* v1, int threads) {
    Finite finite_p("adamw", "p");
    Finite finite_m("adamw", "m");
    Finite finite_v("adamw", "v");
    const AdamW constants = adamw_constants(coefficient, scalars, hyper.beta1, hyper.beta2,
                                            hyper.eps, hyper.weight_decay);
    constexpr std::int64_t kCost = 4;
    for_rows(threads, n, kCost, [&](std::int64_t first, std::int64_t last) {
        rows().adamw(constants, p + first, g + first, m + first, v + first, last - first,
                     p1 + first, m1 + first, v1 + first);
        finite_p.watch(p1, first, last - first);
        finite_m.watch(m1, first, last - first);
        finite_v.watch(v1, first, last - first);
    });
    finite_m.require();
    finite_v.require();
    finite_p.require();
}

void tree_sum(std::int64_t ranks, std::int64_t n, const float* shards, float* total, int threads) {
    Finite finite("tree_sum", "total");
    for_rows(threads, n, ranks, [&](std::int64_t first, std::int64_t last) {
        const std::int64_t width = last - first;
        // level[i * width ...] is node i of the current level, lowest rank first.
        std::vector<float> level(static_cast<std::size_t>(ranks * width));
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
            std::copy_n(shards + rank * n + first, width, level.data() + rank * width);
        }
        for (std::int64_t nodes = ranks; nodes > 1; nodes = (nodes + 1) / 2) {
            for (std::int64_t i = 0; i < nodes / 2; ++i) {
                const float* pair = level.data() + 2 * i * width;
                float* parent = level.data() + i * width;
                // In place: a parent never lies above the pair it is made of.
                for (std::int64_t k = 0; k < width; ++k)
                    parent[k] = add_rn(pair[k], pair[width + k]);
            }
            if (nodes % 2 != 0) {
                std::copy_n(level.data() + (nodes - 1) * width, width,
                            level.data() + (nodes / 2) * width);
            }
        }
        std::copy_n(level.data(), width, total + first);
        finite.watch(total, first, width);
    });
    finite.require();
}

void philox(std::uint64_t seed, std::uint32_t stream, std::uint64_t step, std::int64_t count,
            std::uint32_t* words, int threads) {
    const std::int64_t blocks = (count + 3) / 4;
    for_rows(threads, blocks, 4 * kScalarCost, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t b = first; b < last; ++b) {
            const PhiloxBlock block =
                philox_block(seed, stream, step, static_cast<std::uint32_t>(b));
            std::copy_n(block.word, std::min<std::int64_t>(4, count - 4 * b), words + 4 * b);
        }
    });
}

void unit_intervals(const std::uint32_t* words, std::int64_t count, float* y) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = unit_interval(words[i]);
}

}  // namespace bitwitness
