// Operand fragments of the tensor-core kernels and how a stage of shared memory is laid out.
#pragma once

#include "device.cuh"

constexpr int kBlockK = 32;           // heal's block along K: two instructions
constexpr int kChunks = kBlockK / 8;  // 16-byte chunks in a row of a stage

// Where chunk c of row r lies in a stage, in 16-bit elements. Rows are 64 bytes, so eight rows
// would meet in the same banks; the exclusive or spreads any eight consecutive rows over all.
// It depends on r modulo 8 only: whole eights of rows may be added as r * kBlockK.
__device__ __forceinline__ int swizzled(int row, int chunk) {
    return row * kBlockK + ((chunk ^ ((row >> 1) & (kChunks - 1))) * 8);
}

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
