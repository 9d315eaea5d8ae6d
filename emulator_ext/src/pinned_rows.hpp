// The row kernels of the pinned operators: each handles one row, or one run of elements, on
// one thread. They are compiled once per instruction set from the same source; the choice
// changes speed and no bit.
#pragma once

#include "bitwitness/pinned_ops.h"

namespace bitwitness {

// Lanes that one item of a whole-vector reduction covers, so that threads can share one.
inline constexpr int kLaneGroup = 64;

// No output may overlap an input or another output.
struct RowKernels {
    const char* name;

    void (*exp2)(const float* x, float* y, i64 n);
    void (*log2)(const float* x, float* y, i64 n);
    void (*tanh)(const float* x, float* y, i64 n);
    void (*erf)(const float* x, float* y, i64 n);
    void (*sigmoid)(const float* x, float* y, i64 n);

    // Nonzero if any element is NaN or infinite.
    u32 (*any_nonfinite)(const float* x, i64 n);
    // y = a + b; y may be a.
    void (*add)(const float* a, const float* b, float* y, i64 n);
    float (*lane_sum)(const float* x, i64 n);
    // Lanes [first, first + kLaneGroup) of the sum of squares, into lanes + first.
    void (*square_lanes)(const float* x, i64 n, int first, float* lanes);
    // The tree over kLanes lanes; overwrites them.
    float (*fold)(float* lanes);

    // Returns 1/rms.
    float (*rmsnorm)(const float* x, const float* weight, float eps, i64 width, float* y);
    void (*rmsnorm_backward)(const float* dy, const float* x, const float* weight, float rstd,
                             i64 width, float* dx);
    // Columns [first, last) of the weight's gradient; `lanes` holds kLanes * (last - first).
    void (*rmsnorm_dweight)(const float* dy, const float* x, const float* rstd, i64 rows, i64 width,
                            i64 first, i64 last, float* lanes, float* dweight);

    // One row of 2 * half; direction is +1, or -1 for the inverse.
    void (*rope)(const float* x, const float* cos, const float* sin, float direction, i64 half,
                 float* y);

    // The first `length` of `width` entries are live; the rest of the output is zero.
    void (*softmax)(const float* scores, float constant, i64 length, i64 width, float* p);
    void (*softmax_backward)(const float* p, const float* dp, float scale, i64 length, i64 width,
                             float* dscores);

    void (*swiglu)(const float* gate, const float* up, i64 n, float* y);
    void (*swiglu_backward)(const float* dy, const float* gate, const float* up, i64 n,
                            float* dgate, float* dup);

    // `scratch` holds n floats.
    float (*cross_entropy)(const float* logits, i64 n, i64 target, float* scratch);
    void (*cross_entropy_backward)(const float* logits, i64 n, i64 target, float share,
                                   float* dlogits);

    void (*adamw)(const AdamW& constants, const float* p, const float* g, const float* m,
                  const float* v, i64 n, float* p1, float* m1, float* v1);
};

// Compiled for every x86-64, and for processors with AVX2 and FMA.
extern const RowKernels kRowsBase;
extern const RowKernels kRowsAvx2;

}  // namespace bitwitness
