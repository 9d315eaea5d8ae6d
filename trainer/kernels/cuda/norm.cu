// RMSNorm, forward and backward (docs/formats/operators.md). One block is one row, but for the
// weight's gradient, where one block is 32 columns.
#include "reduce.cuh"

using bitwitness::rms_reciprocal;
using bitwitness::rmsnorm_backward_element;
using bitwitness::rmsnorm_backward_term;
using bitwitness::rmsnorm_dweight_term;
using bitwitness::rmsnorm_element;

// x, y [blocks, width]; weight [width]; rstd [blocks].
KERNEL(kLanes, rmsnorm)
(const float* x, const float* weight, float eps, i64 width, float* y, float* rstd, u32* status,
 u32 op) {
    __shared__ float lanes[kLanes];
    x += blockIdx.x * width;
    y += blockIdx.x * width;
    const float sum = tree(width, lanes, [=](i64 i) { return mul_rn(x[i], x[i]); });
    const float reciprocal = rms_reciprocal(sum, static_cast<float>(width), eps);
    bool finite = is_finite(reciprocal);
    for (i64 i = lane_number(); i < width; i += kLanes) {
        y[i] = rmsnorm_element(x[i], reciprocal, weight[i]);
        finite = finite && is_finite(y[i]);
    }
    if (lane_number() == 0) rstd[blockIdx.x] = reciprocal;
    if (!finite) report_nonfinite(status, op);
}

KERNEL(kLanes, rmsnorm_backward)
(const float* dy, const float* x, const float* weight, const float* rstd, i64 width, float* dx,
 u32* status, u32 op) {
    __shared__ float lanes[kLanes];
    dy += blockIdx.x * width;
    x += blockIdx.x * width;
    dx += blockIdx.x * width;
    const float r = rstd[blockIdx.x];
    const float sum =
        tree(width, lanes, [=](i64 i) { return rmsnorm_backward_term(dy[i], x[i], weight[i], r); });
    const float mean = div_rn(sum, static_cast<float>(width));
    bool finite = true;
    for (i64 i = lane_number(); i < width; i += kLanes) {
        dx[i] = rmsnorm_backward_element(dy[i], x[i], weight[i], r, mean);
        finite = finite && is_finite(dx[i]);
    }
    if (!finite) report_nonfinite(status, op);
}

constexpr int kColumns = 32;                  // of a block: one warp reads them at once
constexpr int kGroups = kLanes / kColumns;    // threads of a column
constexpr int kLanesEach = kLanes / kGroups;  // lanes that a thread keeps in registers

// Recursion instead of a loop: registers can only be indexed by constants.
template <int APART>
__device__ __forceinline__ void fold_registers(float (&lanes)[kLanesEach]) {
    if constexpr (APART >= 1) {
#pragma unroll
        for (int i = 0; i < APART; ++i) lanes[i] = add_rn(lanes[i], lanes[i + APART]);
        fold_registers<APART / 2>(lanes);
    }
}

// dweight[width] := TREE over rows. Thread (group, column) keeps lanes group, group + 8, ... of
// its column, so folds of 8 and more stay inside a thread.
KERNEL(kLanes, rmsnorm_dweight)
(const float* dy, const float* x, const float* rstd, i64 rows, i64 width, float* dweight,
 u32* status, u32 op) {
    __shared__ float folded[kGroups][kColumns];
    const int group = lane_number() / kColumns;
    const int column = lane_number() % kColumns;
    const i64 at = static_cast<i64>(blockIdx.x) * kColumns + column;
    const i64 live_rows = at < width ? rows : 0;
    float lanes[kLanesEach] = {};
    for (i64 base = 0; base < live_rows; base += kLanes) {
#pragma unroll
        for (int i = 0; i < kLanesEach; ++i) {
            const i64 row = base + group + i * kGroups;
            const i64 place = row * width + at;
            if (row < live_rows) {
                lanes[i] = add_rn(lanes[i], rmsnorm_dweight_term(dy[place], x[place], rstd[row]));
            }
        }
    }
    fold_registers<kLanesEach / 2>(lanes);
    folded[group][column] = lanes[0];
    __syncthreads();
    for (int apart = kGroups / 2; apart >= 1; apart /= 2) {
        if (group < apart) {
            folded[group][column] = add_rn(folded[group][column], folded[group + apart][column]);
        }
        __syncthreads();
    }
    if (group != 0 || at >= width) return;
    dweight[at] = folded[0][column];
    if (!is_finite(dweight[at])) report_nonfinite(status, op);
}
