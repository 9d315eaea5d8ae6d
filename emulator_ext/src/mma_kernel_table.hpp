// The table of one instruction set's functions.
#pragma once

#include "mma_dense_body.hpp"
#include "mma_kernel_body.hpp"
#include "mma_pack_body.hpp"
#include "mma_wide_body.hpp"

namespace bitwitness {
namespace {

template <class V>
constexpr Kernels make_kernels() {
    constexpr int panel = kWidth<V>;
    return {
        .panel_width = panel,
        .chain = chain<V>,
        .wide_chain = wide_chain<V>,
        .fma_chain = fma_chain<V>,
        .double_chain = double_chain<V>,
        .integer_chain = integer_chain<V>,
        .scan_line = scan_line,
        .scan_panel = scan_panel<panel>,
        .decode_left = decode_left,
        .decode_right = decode_right<panel>,
        .decode_wide_left = decode_wide_left,
        .decode_wide_right = decode_wide_right<V>,
        .split_left = split_left,
        .split_right = split_right<panel>,
    };
}

}  // namespace
}  // namespace bitwitness
