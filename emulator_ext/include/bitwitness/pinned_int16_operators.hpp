// The operators over INT16 vectors, and what a greedy decoding step needs beside them, over
// whole C-contiguous arrays on the host. Errors and threads: pinned_operators.hpp.
#pragma once

#include "bitwitness/pinned_operators.hpp"

namespace bitwitness {

// x [rows, width]; q holds int16 values by their bits; one scale a row.
void int16_quantise(Extent e, const float* x, std::uint16_t* q, std::uint8_t* scale, int threads);
void int16_dequantise(Extent e, const std::uint16_t* q, const std::uint8_t* scale, float* x,
                      int threads);

// `count` heads of `queries` rows against `keys` rows, each `width` wide.
struct AttentionExtent {
    std::int64_t count;
    std::int64_t queries;
    std::int64_t keys;
    std::int64_t width;
};
// queries [count, queries, width], k [count, keys, width] -> scores [count, queries, keys].
// A query is quantised first. Throws OutOfRange for a width above kInt16Width.
void int16_scores(AttentionExtent e, const float* queries, const std::uint16_t* k,
                  const std::uint8_t* k_scale, float* scores, int threads);
// p [count, queries, keys], v [count, keys, width] -> mixed [count, queries, width].
// The scales of v go into p, whose rows are then held in 24 bits. Throws OutOfRange for more
// than kInt24Keys keys.
void int16_mix(AttentionExtent e, const float* p, const std::uint16_t* v,
               const std::uint8_t* v_scale, float* mixed, int threads);

// Rows of scores whose first `live` entries count; the others are 0 in p and never read.
void prefix_softmax(Extent e, const float* scores, std::int64_t live, float scale, float* p,
                    int threads);
// The lowest index of the largest entry of each row, by the order of integer keys.
void argmax(Extent e, const float* x, std::int32_t* index, int threads);

}  // namespace bitwitness
