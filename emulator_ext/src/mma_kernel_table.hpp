// The table of one instruction set's functions.
#pragma once

#include "mma_dense_body.hpp"
#include "mma_kernel_body.hpp"
#include "mma_pack_body.hpp"
#include "mma_wide_body.hpp"

namespace bitwitness {
namespace {

template <class V, int kVectors>
constexpr Kernels make_kernels() {
    constexpr int panel = kWidth<V, kVectors>;
    return {
        .panel_width = panel,
        .chain = chain<V, kVectors>,
        .wide_chain = wide_chain<V, kVectors>,
        .scan_line = scan_line,
        .scan_panel = scan_panel<panel>,
        .decode_left = decode_left<kVectors>,
        .decode_right = decode_right<V, kVectors>,
        .decode_wide_left = decode_wide_left,
        .decode_wide_right = decode_wide_right<V, kVectors>,
        .split_left = split_left<V, kVectors>,
        .split_right = split_right<V, kVectors>,
    };
}

template <class V>
constexpr KernelTable make_table() {
    return {
        .wide = make_kernels<V, 4>(),
        .narrow = make_kernels<V, 2>(),
        .dense = {.panel_width = kDenseWidth<V>,
                  .fma_chain = fma_chain<V>,
                  .double_chain = double_chain<V>,
                  .integer_chain = integer_chain<V>},
    };
}

}  // namespace
}  // namespace bitwitness
