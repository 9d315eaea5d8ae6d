// The softmax of one row by one block: causal and prefix softmax differ only in what is live.
#pragma once

#include "reduce.cuh"

// Row p of `width` from scores: entries [0, live) by docs/formats/operators.md, the others 0 and
// never read. All threads of the block must call it, on shared memory as for fold.
__device__ __forceinline__ void softmax_row(const float* scores, float scale, i64 live, i64 width,
                                            float* p, float (&lanes)[kLanes], i32 (&keys)[kLanes],
                                            u32* status, u32 op) {
    const float c = bitwitness::softmax_constant(scale);
    const i32 key =
        largest_key(live, keys, [=](i64 i) { return bitwitness::order_key(mul_rn(scores[i], c)); });
    const float shift = bitwitness::softmax_shift(key);
    const float sum = tree(live, lanes, [=](i64 i) {
        p[i] = bitwitness::exp2_shifted(mul_rn(scores[i], c), shift);  // read back by this thread
        return p[i];
    });
    bool finite = true;
    for (i64 i = lane_number(); i < width; i += kLanes) {
        p[i] = i < live ? div_rn(p[i], sum) : 0.0F;
        finite = finite && is_finite(p[i]);
    }
    if (!finite) report_nonfinite(status, op);
}
