// One instruction set's copy of the row kernels; BW_ROWS names the table it defines.
//
// Nothing from the standard library is included: an inline function compiled here with wider
// instructions could otherwise be the copy that the linker keeps for everybody. Loops are
// plain, and wide because elements are independent; nothing is reassociated.
#include "pinned_rows.hpp"

namespace bitwitness {
namespace {

// Folds lanes 128, 64, ... 1 apart. Lanes from `live` on are +0, and adding +0 changes no
// lane (a lane is never -0, having started at +0), so a short row skips the wide folds.
float fold_live(float* lanes, i64 live) {
    int apart = kLanes / 2;
    while (apart >= live && apart > 1) apart /= 2;
    for (; apart >= 1; apart /= 2) {
        for (int t = 0; t < apart; ++t) lanes[t] = add_rn(lanes[t], lanes[t + apart]);
    }
    return lanes[0];
}

// The pinned reduction over term(0) ... term(n - 1).
template <class Term>
[[gnu::always_inline]] inline float lane_sum_of(i64 n, Term term) {
    float lanes[kLanes] = {};
    i64 base = 0;
    for (; base + kLanes <= n; base += kLanes) {
        for (int t = 0; t < kLanes; ++t) lanes[t] = add_rn(lanes[t], term(base + t));
    }
    const int rest = static_cast<int>(n - base);
    for (int t = 0; t < rest; ++t) lanes[t] = add_rn(lanes[t], term(base + t));
    return fold_live(lanes, n < kLanes ? n : kLanes);
}

template <class Function>
[[gnu::always_inline]] inline void map(const float* __restrict x, float* __restrict y, i64 n,
                                       Function function) {
    for (i64 i = 0; i < n; ++i) y[i] = function(x[i]);
}

void exp2_run(const float* x, float* y, i64 n) {
    map(x, y, n, [](float v) { return exp2(v); });
}
void log2_run(const float* x, float* y, i64 n) {
    map(x, y, n, [](float v) { return log2(v); });
}
void tanh_run(const float* x, float* y, i64 n) {
    map(x, y, n, [](float v) { return tanh(v); });
}
void erf_run(const float* x, float* y, i64 n) {
    map(x, y, n, [](float v) { return erf(v); });
}
void sigmoid_run(const float* x, float* y, i64 n) {
    map(x, y, n, [](float v) { return sigmoid(v); });
}

u32 any_nonfinite(const float* x, i64 n) {
    u32 found = 0;
    for (i64 i = 0; i < n; ++i) found |= is_nonfinite(x[i]);
    return found;
}

void add(const float* a, const float* b, float* y, i64 n) {
    for (i64 i = 0; i < n; ++i) y[i] = add_rn(a[i], b[i]);
}

float lane_sum(const float* x, i64 n) {
    return lane_sum_of(n, [=](i64 i) { return x[i]; });
}

void square_lanes(const float* x, i64 n, int first, float* out) {
    float lanes[kLaneGroup] = {};
    i64 base = first;
    for (; base + kLaneGroup <= n; base += kLanes) {
        for (int t = 0; t < kLaneGroup; ++t) {
            lanes[t] = add_rn(lanes[t], mul_rn(x[base + t], x[base + t]));
        }
    }
    for (int t = 0; base + t < n; ++t) {
        lanes[t] = add_rn(lanes[t], mul_rn(x[base + t], x[base + t]));
    }
    for (int t = 0; t < kLaneGroup; ++t) out[first + t] = lanes[t];
}

float fold(float* lanes) { return fold_live(lanes, kLanes); }

float rmsnorm(const float* x, const float* weight, float eps, i64 width, float* __restrict y) {
    const float sum = lane_sum_of(width, [=](i64 i) { return mul_rn(x[i], x[i]); });
    const float rstd = rms_reciprocal(sum, static_cast<float>(width), eps);
    for (i64 i = 0; i < width; ++i) y[i] = rmsnorm_element(x[i], rstd, weight[i]);
    return rstd;
}

void rmsnorm_backward(const float* dy, const float* x, const float* weight, float rstd, i64 width,
                      float* __restrict dx) {
    const float sum = lane_sum_of(
        width, [=](i64 i) { return rmsnorm_backward_term(dy[i], x[i], weight[i], rstd); });
    const float mean = div_rn(sum, static_cast<float>(width));
    for (i64 i = 0; i < width; ++i) {
        dx[i] = rmsnorm_backward_element(dy[i], x[i], weight[i], rstd, mean);
    }
}

void rmsnorm_dweight(const float* dy, const float* x, const float* rstd, i64 rows, i64 width,
                     i64 first, i64 last, float* __restrict lanes, float* __restrict dweight) {
    const i64 columns = last - first;
    for (i64 i = 0; i < kLanes * columns; ++i) lanes[i] = 0.0F;
    for (i64 row = 0; row < rows; ++row) {
        float* lane = lanes + (row % kLanes) * columns;
        const i64 at = row * width + first;
        for (i64 c = 0; c < columns; ++c) {
            lane[c] = add_rn(lane[c], rmsnorm_dweight_term(dy[at + c], x[at + c], rstd[row]));
        }
    }
    for (i64 apart = kLanes / 2; apart >= 1; apart /= 2) {
        for (i64 i = 0; i < apart * columns; ++i) {
            lanes[i] = add_rn(lanes[i], lanes[i + apart * columns]);
        }
    }
    for (i64 c = 0; c < columns; ++c) dweight[first + c] = lanes[c];
}

void rope(const float* x, const float* cos, const float* sin, float direction, i64 half,
          float* __restrict y) {
    for (i64 i = 0; i < half; ++i) {
        const Pair turned = rope_pair(x[i], x[i + half], cos[i], mul_rn(sin[i], direction));
        y[i] = turned.first;
        y[i + half] = turned.second;
    }
}

// Writes the numerators 2^(x * constant - shift) and returns the shift.
float numerators(const float* x, float constant, i64 n, float* __restrict out) {
    i32 key = order_key(mul_rn(x[0], constant));
    for (i64 i = 1; i < n; ++i) {
        const i32 other = order_key(mul_rn(x[i], constant));
        key = other > key ? other : key;
    }
    const float shift = softmax_shift(key);
    for (i64 i = 0; i < n; ++i) out[i] = exp2_shifted(mul_rn(x[i], constant), shift);
    return shift;
}

void softmax(const float* scores, float constant, i64 length, i64 width, float* __restrict p) {
    numerators(scores, constant, length, p);
    const float sum = lane_sum(p, length);
    for (i64 i = 0; i < length; ++i) p[i] = div_rn(p[i], sum);
    for (i64 i = length; i < width; ++i) p[i] = 0.0F;
}

void softmax_backward(const float* p, const float* dp, float scale, i64 length, i64 width,
                      float* __restrict dscores) {
    const float dot = lane_sum_of(length, [=](i64 i) { return mul_rn(p[i], dp[i]); });
    for (i64 i = 0; i < length; ++i) {
        dscores[i] = softmax_backward_element(p[i], dp[i], dot, scale);
    }
    for (i64 i = length; i < width; ++i) dscores[i] = 0.0F;
}

void swiglu(const float* gate, const float* up, i64 n, float* __restrict y) {
    for (i64 i = 0; i < n; ++i) y[i] = swiglu_element(gate[i], up[i]);
}

void swiglu_backward(const float* dy, const float* gate, const float* up, i64 n,
                     float* __restrict dgate, float* __restrict dup) {
    for (i64 i = 0; i < n; ++i) {
        const Pair d = swiglu_backward_element(dy[i], gate[i], up[i]);
        dgate[i] = d.first;
        dup[i] = d.second;
    }
}

float cross_entropy(const float* logits, i64 n, i64 target, float* scratch) {
    const float shift = numerators(logits, kLog2eF32, n, scratch);
    return cross_entropy_row(shift, lane_sum(scratch, n), mul_rn(logits[target], kLog2eF32));
}

void cross_entropy_backward(const float* logits, i64 n, i64 target, float share,
                            float* __restrict dlogits) {
    numerators(logits, kLog2eF32, n, dlogits);
    const float sum = lane_sum(dlogits, n);
    for (i64 i = 0; i < n; ++i) {
        const float hit = i == target ? 1.0F : 0.0F;
        dlogits[i] = cross_entropy_backward_element(dlogits[i], sum, hit, share);
    }
}

void adamw(const AdamW& constants, const float* p, const float* g, const float* m, const float* v,
           i64 n, float* __restrict p1, float* __restrict m1, float* __restrict v1) {
    const AdamW k = constants;
    for (i64 i = 0; i < n; ++i) {
        const AdamWElement next = adamw_element(k, p[i], g[i], m[i], v[i]);
        p1[i] = next.p;
        m1[i] = next.m;
        v1[i] = next.v;
    }
}

}  // namespace

const RowKernels BW_ROWS = {
    .name = BW_ROWS_NAME,
    .exp2 = exp2_run,
    .log2 = log2_run,
    .tanh = tanh_run,
    .erf = erf_run,
    .sigmoid = sigmoid_run,
    .any_nonfinite = any_nonfinite,
    .add = add,
    .lane_sum = lane_sum,
    .square_lanes = square_lanes,
    .fold = fold,
    .rmsnorm = rmsnorm,
    .rmsnorm_backward = rmsnorm_backward,
    .rmsnorm_dweight = rmsnorm_dweight,
    .rope = rope,
    .softmax = softmax,
    .softmax_backward = softmax_backward,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .cross_entropy = cross_entropy,
    .cross_entropy_backward = cross_entropy_backward,
    .adamw = adamw,
};

}  // namespace bitwitness
