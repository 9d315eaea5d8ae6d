// The rotary embedding and the causal softmax (docs/formats/operators.md).
#include "softmax.cuh"

using bitwitness::Pair;
using bitwitness::rope_pair;
using bitwitness::softmax_backward_element;

// x, y [outer, time, 2 * half]; cos, sin [time, half]; `direction` is -1 for the inverse. One
// thread is one pair, `pairs` of them.
KERNEL(kLanes, rope)
(const float* x, const float* cos, const float* sin, float direction, i64 time, i64 half, i64 pairs,
 float* y, u32* status, u32 op) {
    const i64 pair = global_thread();
    if (pair >= pairs) return;
    const i64 row = pair / half, i = pair % half;
    const i64 table = row % time * half + i;
    const i64 first = row * 2 * half + i;
    const Pair turned =
        rope_pair(x[first], x[first + half], cos[table], mul_rn(sin[table], direction));
    y[first] = turned.first;
    y[first + half] = turned.second;
    if (!is_finite(turned.first) || !is_finite(turned.second)) report_nonfinite(status, op);
}

// scores, p [count, time, time]; one block is one row. Scores above the diagonal are not read.
KERNEL(kLanes, causal_softmax)
(const float* scores, float scale, i64 time, float* p, u32* status, u32 op) {
    __shared__ float lanes[kLanes];
    __shared__ i32 keys[kLanes];
    const i64 row = blockIdx.x * time;
    softmax_row(scores + row, scale, blockIdx.x % time + 1, time, p + row, lanes, keys, status, op);
}

KERNEL(kLanes, causal_softmax_backward)
(const float* p, const float* dp, float scale, i64 time, float* dscores, u32* status, u32 op) {
    __shared__ float lanes[kLanes];
    p += blockIdx.x * time;
    dp += blockIdx.x * time;
    dscores += blockIdx.x * time;
    const i64 live = blockIdx.x % time + 1;
    const float dot = tree(live, lanes, [=](i64 i) { return mul_rn(p[i], dp[i]); });
    bool finite = true;
    for (i64 i = lane_number(); i < time; i += kLanes) {
        dscores[i] = i < live ? softmax_backward_element(p[i], dp[i], dot, scale) : 0.0F;
        finite = finite && is_finite(dscores[i]);
    }
    if (!finite) report_nonfinite(status, op);
}
