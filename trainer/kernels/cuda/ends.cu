// The two ends of the model: embedding and cross entropy (docs/formats/operators.md).
#include "reduce.cuh"

using bitwitness::cross_entropy_backward_element;
using bitwitness::cross_entropy_row;
using bitwitness::exp2_shifted;
using bitwitness::kLog2eF32;
using bitwitness::order_key;
using bitwitness::softmax_shift;

// y[rows, width] := rows of table[vocab, width]; n = rows * width, one thread each.
KERNEL(kLanes, embedding)
(const i32* tokens, const float* table, i64 vocab, i64 width, i64 n, float* y, u32* status,
 u32 op) {
    const i64 at = global_thread();
    if (at >= n) return;
    const i32 token = tokens[at / width];
    if (!in_range(token, vocab)) return report_out_of_range(status, op);
    y[at] = table[token * width + at % width];
    if (!is_finite(y[at])) report_nonfinite(status, op);
}

// Positions in stable token order, and where each token's begin: `order` [rows], `start`
// [vocab + 1]. Row v of dtable adds dy's rows in ascending position. Blocks: (vocab, columns).
KERNEL(kLanes, embedding_backward)
(const i64* order, const i64* start, const float* dy, i64 width, float* dtable, u32* status,
 u32 op) {
    const i64 column = static_cast<i64>(blockIdx.y) * kLanes + lane_number();
    if (column >= width) return;
    float sum = 0.0F;
    for (i64 i = start[blockIdx.x]; i < start[blockIdx.x + 1]; ++i) {
        sum = add_rn(sum, dy[order[i] * width + column]);
    }
    dtable[blockIdx.x * width + column] = sum;
    if (!is_finite(sum)) report_nonfinite(status, op);
}

// Reports any index[n] outside [0, size).
KERNEL(kLanes, check_range)(const i32* index, i64 n, i64 size, u32* status, u32 op) {
    const i64 at = global_thread();
    if (at < n && !in_range(index[at], size)) report_out_of_range(status, op);
}

// The integral shift of one row of logits.
__device__ __forceinline__ float row_shift(const float* logits, i64 vocab, i32 (&keys)[kLanes]) {
    return softmax_shift(
        largest_key(vocab, keys, [=](i64 i) { return order_key(mul_rn(logits[i], kLog2eF32)); }));
}

// losses[blocks] := each row's loss in nats.
KERNEL(kLanes, cross_entropy)
(const float* logits, const i32* targets, i64 vocab, float* losses, u32* status, u32 op) {
    __shared__ float lanes[kLanes];
    __shared__ i32 keys[kLanes];
    logits += blockIdx.x * vocab;
    const float shift = row_shift(logits, vocab, keys);
    const float sum = tree(
        vocab, lanes, [=](i64 i) { return exp2_shifted(mul_rn(logits[i], kLog2eF32), shift); });
    if (lane_number() != 0) return;
    const i32 target = targets[blockIdx.x];
    if (!in_range(target, vocab)) return report_out_of_range(status, op);
    const float loss = cross_entropy_row(shift, sum, mul_rn(logits[target], kLog2eF32));
    losses[blockIdx.x] = loss;
    if (!is_finite(loss)) report_nonfinite(status, op);
}

// mean[1] := TREE(x) / n, by one block.
KERNEL(kLanes, mean)(const float* x, i64 n, float* mean, u32* status, u32 op) {
    __shared__ float lanes[kLanes];
    const float sum = tree(n, lanes, [=](i64 i) { return x[i]; });
    if (lane_number() != 0) return;
    *mean = div_rn(sum, static_cast<float>(n));
    if (!is_finite(*mean)) report_nonfinite(status, op);
}

// dlogits[blocks, vocab] for dloss[1].
KERNEL(kLanes, cross_entropy_backward)
(const float* dloss, const float* logits, const i32* targets, i64 vocab, float* dlogits,
 u32* status, u32 op) {
    __shared__ float lanes[kLanes];
    __shared__ i32 keys[kLanes];
    const i32 target = targets[blockIdx.x];
    logits += blockIdx.x * vocab;
    dlogits += blockIdx.x * vocab;
    const float shift = row_shift(logits, vocab, keys);
    const float sum = tree(vocab, lanes, [=](i64 i) {
        dlogits[i] = exp2_shifted(mul_rn(logits[i], kLog2eF32), shift);
        return dlogits[i];
    });
    const float share = div_rn(*dloss, static_cast<float>(gridDim.x));
    bool finite = true;
    for (i64 i = lane_number(); i < vocab; i += kLanes) {
        const float hit = i == target ? 1.0F : 0.0F;
        dlogits[i] = cross_entropy_backward_element(dlogits[i], sum, hit, share);
        finite = finite && is_finite(dlogits[i]);
    }
    if (!finite) report_nonfinite(status, op);
    if (lane_number() == 0 && !in_range(target, vocab)) report_out_of_range(status, op);
}
