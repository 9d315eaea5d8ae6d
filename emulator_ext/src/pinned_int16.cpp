// The operators over INT16 vectors: integer sums, so neither order nor vector width matters.
#include "bitwitness/pinned_int16.h"

#include "bitwitness/pinned_int16_operators.hpp"
#include "pinned_rows_choice.hpp"

namespace bitwitness {
namespace {

std::uint32_t largest_bits(const float* x, std::int64_t n) {
    std::uint32_t largest = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        largest = std::max(largest, bits_of(x[i]) & 0x7fffffffU);
    }
    return largest;
}

void require_finite(const char* op, const char* name, const float* x, std::int64_t n, int threads) {
    check_finite(op, std::string("operand ") + name, x, n, threads);
}

std::int64_t dot(const std::int32_t* a, const std::uint16_t* b, std::int64_t n) {
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += a[i] * int16_value(b[i]);
    return sum;
}

void require_most(const char* op, const char* what, std::int64_t n, std::int64_t most) {
    if (n > most) {
        throw OutOfRange(std::string(op) + ": " + what + " of " + std::to_string(n) +
                         "; sums are exact up to " + std::to_string(most));
    }
}

// Each p_j times the unit of row j of v: what the rows of q are multiplied with.
std::vector<float> folded(AttentionExtent e, const float* p, const std::uint8_t* v_scale,
                          int threads) {
    const std::int64_t rows = e.count * e.queries;
    std::vector<float> weights(static_cast<std::size_t>(rows * e.keys));
    for_rows(threads, rows, e.keys, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const std::uint8_t* scale = v_scale + r / e.queries * e.keys;
            float* weight = weights.data() + r * e.keys;
            for (std::int64_t j = 0; j < e.keys; ++j) {
                weight[j] = mul_rn(p[r * e.keys + j], int16_unit(scale[j]));
            }
        }
    });
    check_finite("int16_mix", "weights", weights.data(), rows * e.keys, threads);
    return weights;
}

// sums = factors times the rows of v, one row a factor.
void add_rows(const std::vector<std::int32_t>& factors, const std::uint16_t* v,
              std::vector<std::int64_t>& sums) {
    std::fill(sums.begin(), sums.end(), 0);
    for (const std::int32_t factor : factors) {
        const std::uint16_t* row = v;
        v += sums.size();
        if (factor == 0) continue;
        for (std::int64_t& sum : sums) sum += std::int64_t{factor} * int16_value(*row++);
    }
}

}  // namespace

void int16_quantise(Extent e, const float* x, std::uint16_t* q, std::uint8_t* scale, int threads) {
    require_finite("int16_quantise", "x", x, e.rows * e.width, threads);
    for_rows(threads, e.rows, e.width, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const std::uint32_t code = int16_scale(largest_bits(x + r * e.width, e.width));
            scale[r] = static_cast<std::uint8_t>(code);
            for (std::int64_t i = r * e.width; i < (r + 1) * e.width; ++i) {
                q[i] = static_cast<std::uint16_t>(int16_quantise(x[i], code));
            }
        }
    });
}

void int16_dequantise(Extent e, const std::uint16_t* q, const std::uint8_t* scale, float* x,
                      int threads) {
    for_rows(threads, e.rows, e.width, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const float unit = int16_unit(scale[r]);
            for (std::int64_t i = r * e.width; i < (r + 1) * e.width; ++i) {
                x[i] = mul_rn(static_cast<float>(int16_value(q[i])), unit);
            }
        }
    });
}

void int16_scores(AttentionExtent e, const float* queries, const std::uint16_t* k,
                  const std::uint8_t* k_scale, float* scores, int threads) {
    require_most("int16_scores", "heads", e.width, kInt16Width);
    const std::int64_t rows = e.count * e.queries;
    require_finite("int16_scores", "q", queries, rows * e.width, threads);
    Finite finite("int16_scores", "scores");
    for_rows(threads, rows, e.keys * e.width, [&](std::int64_t first, std::int64_t last) {
        std::vector<std::int32_t> q(static_cast<std::size_t>(e.width));
        for (std::int64_t r = first; r < last; ++r) {
            const float* query = queries + r * e.width;
            const std::uint32_t code = int16_scale(largest_bits(query, e.width));
            for (std::int64_t i = 0; i < e.width; ++i) {
                q[static_cast<std::size_t>(i)] = int16_quantise(query[i], code);
            }
            const std::int64_t head = r / e.queries * e.keys;
            for (std::int64_t j = 0; j < e.keys; ++j) {
                const std::int64_t sum = dot(q.data(), k + (head + j) * e.width, e.width);
                const int exponent = static_cast<int>(code) + k_scale[head + j] - 254;
                scores[r * e.keys + j] = int16_round(sum, exponent);
            }
        }
        finite.watch(scores, first * e.keys, (last - first) * e.keys);
    });
    finite.require();
}

void int16_mix(AttentionExtent e, const float* p, const std::uint16_t* v,
               const std::uint8_t* v_scale, float* mixed, int threads) {
    require_most("int16_mix", "contexts", e.keys, kInt24Keys);
    const std::int64_t rows = e.count * e.queries;
    const std::vector<float> weights = folded(e, p, v_scale, threads);
    Finite finite("int16_mix", "mixed");
    for_rows(threads, rows, e.keys * e.width, [&](std::int64_t first, std::int64_t last) {
        std::vector<std::int32_t> q(static_cast<std::size_t>(e.keys));
        std::vector<std::int64_t> sums(static_cast<std::size_t>(e.width));
        for (std::int64_t r = first; r < last; ++r) {
            const float* weight = weights.data() + r * e.keys;
            const std::uint32_t code = int24_scale(largest_bits(weight, e.keys));
            for (std::int64_t j = 0; j < e.keys; ++j) {
                q[static_cast<std::size_t>(j)] = int24_quantise(weight[j], code);
            }
            add_rows(q, v + r / e.queries * e.keys * e.width, sums);
            const int exponent = static_cast<int>(code) - 127;
            float* out = mixed + r * e.width;
            for (const std::int64_t sum : sums) *out++ = int16_round(sum, exponent);
        }
        finite.watch(mixed, first * e.width, (last - first) * e.width);
    });
    finite.require();
}

void prefix_softmax(Extent e, const float* scores, std::int64_t live, float scale, float* p,
                    int threads) {
    Finite finite("prefix_softmax", "p");
    const float constant = softmax_constant(scale);
    for_rows(threads, e.rows, e.width * kScalarCost, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            rows().softmax(scores + r * e.width, constant, live, e.width, p + r * e.width);
        }
        finite.watch(p, first * e.width, (last - first) * e.width);
    });
    finite.require();
}

void argmax(Extent e, const float* x, std::int32_t* index, int threads) {
    check_finite("argmax", "operand x", x, e.rows * e.width, threads);
    for_rows(threads, e.rows, e.width, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const float* row = x + r * e.width;
            std::int64_t best = 0;
            for (std::int64_t i = 1; i < e.width; ++i) {
                if (order_key(row[i]) > order_key(row[best])) best = i;
            }
            index[r] = static_cast<std::int32_t>(best);
        }
    });
}

}  // namespace bitwitness
