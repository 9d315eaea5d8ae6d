// From gradients to the next state: sum of squares, clipping, AdamW (docs/formats/operators.md).
#include "reduce.cuh"

using bitwitness::AdamW;
using bitwitness::adamw_constants;
using bitwitness::adamw_element;
using bitwitness::AdamWElement;

constexpr int kAhead = 16;  // loads that a thread has under way before it needs the first

// lanes[256] of TREE(x * x). A vector has few lanes and many elements, so one warp has 32 lanes
// to itself on each of eight multiprocessors.
KERNEL(32, square_lanes)(const float* x, i64 n, float* lanes) {
    const i64 first = static_cast<i64>(blockIdx.x) * 32 + lane_number();
    float lane = 0.0F;
    i64 i = first;
    for (; i + (kAhead - 1) * kLanes < n; i += kAhead * kLanes) {
        float held[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) held[k] = x[i + k * kLanes];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) lane = add_rn(lane, mul_rn(held[k], held[k]));
    }
    for (; i < n; i += kLanes) lane = add_rn(lane, mul_rn(x[i], x[i]));
    lanes[first] = lane;
}

KERNEL(kLanes, fold_lanes)(const float* from, float* sum, u32* status, u32 op) {
    __shared__ float lanes[kLanes];
    const float total = fold(from[lane_number()], lanes);
    if (lane_number() != 0) return;
    *sum = total;
    if (!is_finite(total)) report_nonfinite(status, op);
}

KERNEL(1, clip_coefficient)
(const float* sum_squares, float max_norm, float* norm, float* coefficient, u32* status, u32 op) {
    *norm = bitwitness::sqrt_rn(*sum_squares);
    *coefficient = bitwitness::clip_coefficient(*norm, max_norm);
    if (!is_finite(*norm) || !is_finite(*coefficient)) report_nonfinite(status, op);
}

// n elements, one thread each; coefficient[1] and scalars[3] are on the device.
KERNEL(kLanes, adamw)
(const float* p, const float* g, const float* m, const float* v, const float* coefficient,
 const float* scalars, float beta1, float beta2, float eps, float weight_decay, i64 n, float* p1,
 float* m1, float* v1, u32* status, u32 op) {
    const i64 i = global_thread();
    if (i >= n) return;
    const AdamW k = adamw_constants(*coefficient, scalars, beta1, beta2, eps, weight_decay);
    const AdamWElement next = adamw_element(k, p[i], g[i], m[i], v[i]);
    p1[i] = next.p;
    m1[i] = next.m;
    v1[i] = next.v;
    if (!is_finite(next.p) || !is_finite(next.m) || !is_finite(next.v)) {
        report_nonfinite(status, op);
    }
}
