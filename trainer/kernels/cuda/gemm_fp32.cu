// The fp32 profile: every output is one chain of fmaf from +0 in ascending K (NUMERICS 2). No
// tensor core and no padding along K: adding a zero product would turn a -0 into +0.
#include "operand.cuh"

constexpr int kThreads = 256;
constexpr int kTile = 64;  // rows and columns of a block
constexpr int kTileK = 16;
constexpr int kEach = 4;  // rows and columns of a thread
constexpr int kLoads = kTile * kTileK / kThreads;
constexpr int kPitch = kTile + 4;

using Panel = float[kTileK][kPitch];

// What a thread carries from global memory to a panel, K-major there.
struct Carrier {
    float held[kLoads];

    __device__ __forceinline__ static int row(int i, bool along_k) {
        const int element = static_cast<int>(threadIdx.x) + i * kThreads;
        return along_k ? element / kTileK : element % kTile;
    }
    __device__ __forceinline__ static int k(int i, bool along_k) {
        const int element = static_cast<int>(threadIdx.x) + i * kThreads;
        return along_k ? element % kTileK : element / kTile;
    }
    __device__ __forceinline__ void fetch(const Operand& x, const float* base, i64 row0, i64 k0) {
        const bool along_k = x.k_stride == 1;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            held[i] = x.at(base, row0 + row(i, along_k), k0 + k(i, along_k));
        }
    }
    __device__ __forceinline__ void put(Panel& panel, const Operand& x) const {
        const bool along_k = x.k_stride == 1;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) panel[k(i, along_k)][row(i, along_k)] = held[i];
    }
};

__device__ __forceinline__ void multiply(float (&c)[kEach][kEach], const Panel& a, const Panel& b,
                                         int k, int row, int column) {
    float x[kEach], y[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] = a[k][row + i];
#pragma unroll
    for (int j = 0; j < kEach; ++j) y[j] = b[k][column + j];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) c[i][j] = __fmaf_rn(x[i], y[j], c[i][j]);
    }
}

// Blocks: (column tiles, row tiles, batch). b's rows are the columns of B.
KERNEL(kThreads, gemm_fp32)(OPERAND(a), OPERAND(b), float* d, u32* status, u32 op) {
    __shared__ Panel panels[2][2];
    const Operand a = MAKE_OPERAND(a);
    const Operand b = MAKE_OPERAND(b);
    const float* from_a = a.matrix(blockIdx.z);
    const float* from_b = b.matrix(blockIdx.z);
    const i64 row0 = static_cast<i64>(blockIdx.y) * kTile;
    const i64 column0 = static_cast<i64>(blockIdx.x) * kTile;
    const int row = static_cast<int>(threadIdx.x) / (kTile / kEach) * kEach;
    const int column = static_cast<int>(threadIdx.x) % (kTile / kEach) * kEach;
    float c[kEach][kEach] = {};
    Carrier next_a, next_b;
    next_a.fetch(a, from_a, row0, 0);
    next_b.fetch(b, from_b, column0, 0);
    int side = 0;
    for (i64 k0 = 0; k0 < a.k; k0 += kTileK, side ^= 1) {
        next_a.put(panels[side][0], a);
        next_b.put(panels[side][1], b);
        // One barrier a round: the other side was read before the last one.
        __syncthreads();
        next_a.fetch(a, from_a, row0, k0 + kTileK);
        next_b.fetch(b, from_b, column0, k0 + kTileK);
        const int depth = static_cast<int>(min(a.k - k0, static_cast<i64>(kTileK)));
        if (depth == kTileK) {
#pragma unroll
            for (int k = 0; k < kTileK; ++k) {
                multiply(c, panels[side][0], panels[side][1], k, row, column);
            }
        } else {
            for (int k = 0; k < depth; ++k) {
                multiply(c, panels[side][0], panels[side][1], k, row, column);
            }
        }
    }
    bool finite = true;
    for (int i = 0; i < kEach; ++i) {
        for (int j = 0; j < kEach; ++j) {
            const i64 m = row0 + row + i, n = column0 + column + j;
            if (m >= a.rows || n >= b.rows) continue;
            finite = finite && is_finite(c[i][j]);
            d[(blockIdx.z * a.rows + m) * b.rows + n] = c[i][j];
        }
    }
    if (!finite) report_nonfinite(status, op);
}
