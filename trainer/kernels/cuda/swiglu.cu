// SwiGLU, forward and backward (docs/formats/operators.md). One thread is one element of y.
#include "reduce.cuh"

using bitwitness::Pair;
using bitwitness::swiglu_backward_element;
using bitwitness::swiglu_element;

// gate_up [rows, 2 * width], the gate first; y [rows, width], n elements.
KERNEL(kLanes, swiglu)(const float* gate_up, i64 width, i64 n, float* y, u32* status, u32 op) {
    const i64 at = global_thread();
    if (at >= n) return;
    const float* gate = gate_up + at / width * 2 * width + at % width;
    y[at] = swiglu_element(gate[0], gate[width]);
    if (!is_finite(y[at])) report_nonfinite(status, op);
}

KERNEL(kLanes, swiglu_backward)
(const float* dy, const float* gate_up, i64 width, i64 n, float* dgate_up, u32* status, u32 op) {
    const i64 at = global_thread();
    if (at >= n) return;
    const i64 gate = at / width * 2 * width + at % width;
    const Pair d = swiglu_backward_element(dy[at], gate_up[gate], gate_up[gate + width]);
    dgate_up[gate] = d.first;
    dgate_up[gate + width] = d.second;
    if (!is_finite(d.first) || !is_finite(d.second)) report_nonfinite(status, op);
}
