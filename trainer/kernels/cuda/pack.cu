// From strided f32 operands to the planes that the tensor-core kernels read.
//
// A plane is [batch, rows_padded, k_padded] of 16-bit elements, K contiguous, zero outside the
// operand: rows are A's rows or B's columns, so one product kernel serves every transposition
// and needs no bounds while it loads. Zeros are neutral in a chain along K (NUMERICS 1).
#include "exact.cuh"
#include "heal.cuh"
#include "operand.cuh"

constexpr int kThreads = 256;
constexpr int kTileRows = 32;
constexpr int kTileK = 64;

// Reads a tile with neighbouring threads along whichever dimension is contiguous.
__device__ __forceinline__ void load_tile(float (*tile)[kTileK + 1], const Operand& x,
                                          const float* base, i64 row0, i64 k0) {
    for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kTileK; i += kThreads) {
        const bool along_k = x.k_stride == 1;
        const int row = along_k ? i / kTileK : i % kTileRows;
        const int col = along_k ? i % kTileK : i / kTileRows;
        tile[row][col] = x.at(base, row0 + row, k0 + col);
    }
}

// amax[batch, rows_padded] := largest magnitude of each row, as bits; it must start as zeros.
// Blocks: (rows_padded / 32 * slices, batch); a slice is `slice_k` long. Integer maxima, so
// the order in which blocks arrive has no effect.
KERNEL(kThreads, row_maxima)(OPERAND(x), u32* amax, i64 rows_padded, i64 slice_k, u32* status,
                             u32 op) {
    __shared__ float tile[kTileRows][kTileK + 1];
    const Operand x = MAKE_OPERAND(x);
    const i64 row_tiles = rows_padded / kTileRows;
    const i64 row0 = (blockIdx.x % row_tiles) * kTileRows;
    const i64 k_begin = (blockIdx.x / row_tiles) * slice_k;
    const i64 k_end = min(k_begin + slice_k, x.k);
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int warp = static_cast<int>(threadIdx.x / kWarp);
    u32 largest[kTileRows / 8] = {};
    for (i64 k0 = k_begin; k0 < k_end; k0 += kTileK) {
        __syncthreads();
        load_tile(tile, x, x.matrix(blockIdx.y), row0, k0);
        __syncthreads();
        for (int r = 0; r < kTileRows / 8; ++r) {
            for (int c = lane; c < kTileK; c += kWarp) {
                largest[r] = max(largest[r], __float_as_uint(tile[warp + 8 * r][c]) & 0x7fffffffU);
            }
        }
    }
    for (int r = 0; r < kTileRows / 8; ++r) {
        for (u32 d = kWarp / 2; d > 0; d /= 2) {
            largest[r] = max(largest[r], __shfl_xor_sync(kAllLanes, largest[r], d));
        }
        if (lane != 0) continue;
        atomicMax(&amax[blockIdx.y * rows_padded + row0 + warp + 8 * r], largest[r]);
        if (largest[r] >= 0x7f800000U) report_nonfinite(status, op);
    }
}

// planes[2, batch, rows_padded, k_padded] := hi and lo of the heal profile. Blocks: (row tiles * k
// tiles, batch).
KERNEL(kThreads, heal_planes)(OPERAND(x), const u32* amax, u16* planes, i64 rows_padded,
                              i64 k_padded) {
    __shared__ float tile[kTileRows][kTileK + 1];
    const Operand x = MAKE_OPERAND(x);
    const i64 row_tiles = rows_padded / kTileRows;
    const i64 row0 = (blockIdx.x % row_tiles) * kTileRows;
    const i64 k0 = (blockIdx.x / row_tiles) * kTileK;
    load_tile(tile, x, x.matrix(blockIdx.y), row0, k0);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kTileK; i += kThreads) {
        const int row = i / kTileK, col = i % kTileK;
        if (k0 + col >= k_padded) continue;
        const i64 plane_row = blockIdx.y * rows_padded + row0 + row;
        const float y = scaled(tile[row][col], heal_exponent(amax[plane_row]));
        const u16 high = f16_rne(y);
        u16* const to = planes + plane_row * k_padded + k0 + col;
        to[0] = high;
        to[gridDim.y * rows_padded * k_padded] =
            f16_rne(__fmul_rn(__fsub_rn(y, f16_value(high)), 2048.0f));
    }
}

// Nearest even, in integers; the caller has excluded NaN.
__device__ __forceinline__ u16 bf16_rne(float x) {
    const u32 bits = __float_as_uint(x);
    return static_cast<u16>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// The plane of the bf16 profile. Blocks as for heal_planes.
KERNEL(kThreads, bf16_plane)(OPERAND(x), u16* plane, i64 rows_padded, i64 k_padded, u32* status,
                             u32 op) {
    __shared__ float tile[kTileRows][kTileK + 1];
    const Operand x = MAKE_OPERAND(x);
    const i64 row_tiles = rows_padded / kTileRows;
    const i64 row0 = (blockIdx.x % row_tiles) * kTileRows;
    const i64 k0 = (blockIdx.x / row_tiles) * kTileK;
    load_tile(tile, x, x.matrix(blockIdx.y), row0, k0);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kTileK; i += kThreads) {
        const int row = i / kTileK, col = i % kTileK;
        if (k0 + col >= k_padded) continue;
        if (!is_finite(tile[row][col])) report_nonfinite(status, op);
        plane[(blockIdx.y * rows_padded + row0 + row) * k_padded + k0 + col] =
            bf16_rne(tile[row][col]);
    }
}

// planes[3, batch, rows_padded, k_padded] := digits of the exact profile, and
// amax[batch, k_padded / 64, rows_padded]. A tile is one block along K. Blocks as for heal_planes.
KERNEL(kThreads, exact_planes)(OPERAND(x), u32* amax, u16* planes, i64 rows_padded, i64 k_padded,
                               u32* status, u32 op) {
    static_assert(kTileK == kExactBlock, "a tile must hold whole blocks");
    __shared__ float tile[kTileRows][kTileK + 1];
    const Operand x = MAKE_OPERAND(x);
    const i64 row_tiles = rows_padded / kTileRows;
    const i64 row0 = (blockIdx.x % row_tiles) * kTileRows;
    const i64 block = blockIdx.x / row_tiles;
    load_tile(tile, x, x.matrix(blockIdx.y), row0, block * kTileK);
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const i64 plane = gridDim.y * rows_padded * k_padded;
    for (int row = static_cast<int>(threadIdx.x / kWarp); row < kTileRows; row += kThreads / 32) {
        const float values[2] = {tile[row][lane], tile[row][lane + 32]};
        u32 largest =
            max(__float_as_uint(values[0]) & 0x7fffffffU, __float_as_uint(values[1]) & 0x7fffffffU);
        for (u32 d = kWarp / 2; d > 0; d /= 2) {
            largest = max(largest, __shfl_xor_sync(kAllLanes, largest, d));
        }
        if (lane == 0) {
            amax[(blockIdx.y * (k_padded / kTileK) + block) * rows_padded + row0 + row] = largest;
            if (largest >= 0x7f800000U) report_nonfinite(status, op);
        }
        u16* to = planes + (blockIdx.y * rows_padded + row0 + row) * k_padded + block * kTileK;
        for (int half = 0; half < 2; ++half) {
            i32 digits[kDigits];
            exact_digits(exact_integer(values[half], exact_exponent(largest)), digits);
            for (int i = 0; i < kDigits; ++i) {
                to[i * plane + lane + 32 * half] = f16_rne(static_cast<float>(digits[i]));
            }
        }
    }
}
