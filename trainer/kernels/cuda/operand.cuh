// A strided f32 operand of a product, as the kernels that read it see it.
#pragma once

#include "device.cuh"

// [batch / batch1, batch1, rows, k] by strides in elements. Rows are A's rows or B's columns,
// so a transposition is a matter of strides.
struct Operand {
    const float* data;
    i64 batch1;
    i64 stride0, stride1, row_stride, k_stride;
    i64 rows, k;

    __device__ __forceinline__ const float* matrix(i64 batch) const {
        return data + batch / batch1 * stride0 + batch % batch1 * stride1;
    }
    // Zero outside the operand.
    __device__ __forceinline__ float at(const float* base, i64 row, i64 col) const {
        return row < rows && col < k ? base[row * row_stride + col * k_stride] : 0.0F;
    }
};

// An operand as eight kernel parameters: structures are not passed, so that any launcher can.
#define OPERAND(x)                                                                               \
    const float *x##_data, i64 x##_batch1, i64 x##_stride0, i64 x##_stride1, i64 x##_row_stride, \
        i64 x##_k_stride, i64 x##_rows, i64 x##_k
#define MAKE_OPERAND(x)                                                                         \
    Operand {                                                                                   \
        x##_data, x##_batch1, x##_stride0, x##_stride1, x##_row_stride, x##_k_stride, x##_rows, \
            x##_k                                                                               \
    }
