// The element-wise bodies of the pinned operators: what one CUDA thread and one CPU lane
// compute alike. The whole operators, with their reductions, stand in
// docs/formats/operators.md, whose symbols these functions use.
#pragma once

#include "bitwitness/pinned.h"

namespace bitwitness {

// Width of the pinned reduction: lane t takes elements t, t + 256, ... ascending from +0,
// then lanes fold 128, 64, ... 1 apart.
inline constexpr int kLanes = 256;

struct Pair {
    float first;
    float second;
};

// RMSNorm.

BW_PINNED float rms_reciprocal(float sum_of_squares, float width, float eps) {
    return div_rn(1.0F, sqrt_rn(add_rn(div_rn(sum_of_squares, width), eps)));
}

BW_PINNED float rmsnorm_element(float x, float rstd, float weight) {
    return mul_rn(mul_rn(x, rstd), weight);
}

// The term that is reduced over a row in the backward pass.
BW_PINNED float rmsnorm_backward_term(float dy, float x, float weight, float rstd) {
    return mul_rn(mul_rn(dy, weight), mul_rn(x, rstd));
}

// `mean` is the reduced term divided by the width.
BW_PINNED float rmsnorm_backward_element(float dy, float x, float weight, float rstd, float mean) {
    const float projected = mul_rn(mul_rn(x, rstd), mean);
    return mul_rn(rstd, sub_rn(mul_rn(dy, weight), projected));
}

// The term that is reduced over rows for the weight's gradient.
BW_PINNED float rmsnorm_dweight_term(float dy, float x, float rstd) {
    return mul_rn(dy, mul_rn(x, rstd));
}

// Rotary embedding.

// The inverse rotation is the rotation by (cos, -sin).
BW_PINNED Pair rope_pair(float x0, float x1, float cos, float sin) {
    return {sub_rn(mul_rn(x0, cos), mul_rn(x1, sin)), add_rn(mul_rn(x1, cos), mul_rn(x0, sin))};
}

// Softmax.

// The one constant that turns a score into an exponent of two.
BW_PINNED float softmax_constant(float scale) {
    return round_to_f32(mul_rn(static_cast<double>(scale), kLog2e));
}

// The shift of a row: the least integer that is no less than its largest exponent.
BW_PINNED float softmax_shift(i32 max_key) { return ceil_exact(from_order_key(max_key)); }

BW_PINNED float softmax_backward_element(float p, float dp, float dot, float scale) {
    return mul_rn(mul_rn(p, sub_rn(dp, dot)), scale);
}

// SwiGLU.

BW_PINNED float swiglu_element(float gate, float up) {
    return mul_rn(mul_rn(gate, sigmoid(gate)), up);
}

// {dgate, dup}.
BW_PINNED Pair swiglu_backward_element(float dy, float gate, float up) {
    const float s = sigmoid(gate);
    const float slope = mul_rn(s, add_rn(1.0F, mul_rn(gate, sub_rn(1.0F, s))));
    return {mul_rn(mul_rn(dy, up), slope), mul_rn(dy, mul_rn(gate, s))};
}

// Cross entropy.

BW_PINNED float cross_entropy_row(float shift, float sum, float target_exponent) {
    return mul_rn(sub_rn(add_rn(shift, log2(sum)), target_exponent), kLn2F32);
}

// `share` is dloss divided by the number of rows; `hit` is 1 at the target, else 0.
BW_PINNED float cross_entropy_backward_element(float numerator, float sum, float hit, float share) {
    return mul_rn(sub_rn(div_rn(numerator, sum), hit), share);
}

// Gradient clipping.

BW_PINNED float clip_coefficient(float norm, float max_norm) {
    return norm > max_norm ? div_rn(max_norm, norm) : 1.0F;
}

// AdamW.

// What is the same for every element of a step.
struct AdamW {
    float beta1;
    float beta2;
    float rest1;  // 1 - beta1
    float rest2;  // 1 - beta2
    float eps;
    float rate;
    float correction1;
    float correction2;
    float keep;  // 1 - rate * weight_decay
    float coefficient;
};

BW_PINNED AdamW adamw_constants(float coefficient, const float scalars[3], float beta1, float beta2,
                                float eps, float weight_decay) {
    return {beta1,
            beta2,
            sub_rn(1.0F, beta1),
            sub_rn(1.0F, beta2),
            eps,
            scalars[0],
            scalars[1],
            scalars[2],
            sub_rn(1.0F, mul_rn(scalars[0], weight_decay)),
            coefficient};
}

struct AdamWElement {
    float p;
    float m;
    float v;
};

BW_PINNED AdamWElement adamw_element(const AdamW& k, float p, float g, float m, float v) {
    const float scaled = mul_rn(g, k.coefficient);
    const float m1 = add_rn(mul_rn(k.beta1, m), mul_rn(k.rest1, scaled));
    const float v1 = add_rn(mul_rn(k.beta2, v), mul_rn(k.rest2, mul_rn(scaled, scaled)));
    const float denominator = add_rn(sqrt_rn(mul_rn(v1, k.correction2)), k.eps);
    const float direction = div_rn(mul_rn(m1, k.correction1), denominator);
    return {sub_rn(mul_rn(p, k.keep), mul_rn(k.rate, direction)), m1, v1};
}

}  // namespace bitwitness
