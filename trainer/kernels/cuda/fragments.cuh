// Operand fragments of the warp-level tensor-core kernels, read from a stage of shared memory.
#pragma once

#include "stages.cuh"

// Two instructions' worth of A: 16 rows, K 0..15 and 16..31.
struct FragmentA {
    u32 k0[4], k16[4];

    __device__ __forceinline__ void load(const u16* stage, int row0, int lane) {
        const u16* rows = stage + row0 * kBlockK;
        ldmatrix_x4(k0, rows + swizzled(lane % 16, lane / 16));
        ldmatrix_x4(k16, rows + swizzled(lane % 16, 2 + lane / 16));
    }
};

// Two instructions' worth of B: 8 columns, K in eights.
struct FragmentB {
    u32 k[4];

    __device__ __forceinline__ void load(const u16* stage, int column0, int lane) {
        ldmatrix_x4(k, stage + column0 * kBlockK + swizzled(lane % 8, lane / 8));
    }
};
